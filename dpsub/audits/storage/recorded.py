"""Checks of the attributes of a store: those that every audit records, with their types."""

from __future__ import annotations

import re
from dataclasses import asdict, fields
from reprlib import repr as short
from typing import Any

from dpsub._core import DPSGD, checks, random_streams
from dpsub.audits.learned_scores import LEAST_RUNS, SCORES
from dpsub.audits.plans import EACH_REPEAT, ONCE
from dpsub.audits.step_plans import EACH_STEP, PROTOCOLS, STEPS, is_of_steps
from dpsub.audits.storage.documents import MOST, Json
from dpsub.trainers import COORDINATES, devices

SPEC = tuple(field.name for field in fields(DPSGD))
TEXTS = ("scenario", "task", "task_fingerprint", "model", "metrics")
ORIGIN = ("device", "cpu_capability", "commit", "last_written")  # written once there are shards
BLOCKS = [2**power for power in range(8)]
LEARNING = {"score", "learning_runs", "learned_fingerprint"}


def check_recorded(attributes: Json) -> None:
    """Check the attributes of a root document.

    Raises:
        ValueError: if one is missing, or is not of the kind that an audit records.
    """
    check_trained(attributes, "runs", "observe_every", "repeats")
    if attributes["observe_every"] > attributes["steps"]:
        raise ValueError(f"observe_every must be <= steps, got {short(attributes['observe_every'])}")
    checks.choice("trained_coordinates", attributes.get("trained_coordinates"), COORDINATES)
    if LEARNING & attributes.keys():
        _check_learning(attributes)
    if "audited" in attributes:
        _check_steps(attributes)
    _check_repeats(attributes)


def check_trained(attributes: Json, *counts: str) -> None:
    """Check what all audits by dpsub's own trainers record, and these whole numbers >= 1.

    Raises:
        ValueError: if one is missing, or is not of the kind that an audit records.
    """
    check_plain(attributes)
    counts = ("n", "steps", *counts)
    for name in (*TEXTS, *SPEC, *counts, "seed", "block_size", "models_stored"):
        if name not in attributes:
            raise ValueError(f"{name} is missing")
    for name in (*TEXTS, *(name for name in attributes if name in ORIGIN or name.startswith("version_"))):
        if not isinstance(attributes[name], str):
            raise ValueError(f"{name} must be a text, got {short(attributes[name])}")
    spec = {name: attributes[name] for name in SPEC}
    if asdict(DPSGD(**spec)) != spec or type(spec["steps"]) is not int:
        raise ValueError(f"steps must be a whole number, got {short(spec['steps'])}")
    for name in counts:
        whole(name, attributes[name], 1)
    whole("models_stored", attributes["models_stored"], 0)
    whole("seed", attributes["seed"], 0, None)
    if type(attributes["block_size"]) is not int or attributes["block_size"] not in BLOCKS:
        raise ValueError(f"block_size must be a power of two up to 128, got {short(attributes['block_size'])}")
    checks.adjacency(attributes.get("adjacency"))
    checks.choice("matmul_precision", attributes.get("matmul_precision"), tuple(devices.PRECISIONS))
    checks.real("wall_seconds", attributes.get("wall_seconds", 0.0), at_least=0)


def _check_learning(attributes: Json) -> None:
    """Check what an audit with a learned score records beside what every audit does."""
    checks.choice("score", attributes.get("score"), SCORES[1:])
    whole("learning_runs", attributes.get("learning_runs"), LEAST_RUNS)
    text("learned_fingerprint", attributes.get("learned_fingerprint"))
    if is_of_steps(attributes):
        raise ValueError("score must not be there for an audit of steps")


def _check_steps(attributes: Json) -> None:
    """Check what an audit of steps records beside what every audit does."""
    checks.choice("audited", attributes["audited"], (STEPS,))
    checks.choice("protocol", attributes.get("protocol"), PROTOCOLS)
    checks.real("q_c", attributes.get("q_c"), above=0, at_most=1)
    if attributes["observe_every"] != 1 or attributes["repeats"] != 1 or attributes["metrics"]:
        raise ValueError("observe_every and repeats must be 1, and metrics empty, for an audit of steps")


def _check_repeats(attributes: Json) -> None:
    """Check what has one value for each repeat: the seeds and, if there are several canaries, theirs."""
    repeats, seed = attributes["repeats"], attributes["seed"]
    seeds = attributes.get("seeds", [seed] if repeats == 1 else None)
    if not isinstance(seeds, list) or len(seeds) != repeats or seeds != random_streams.repeat_seeds(seed, repeats):
        raise ValueError("seeds must be those of the repeats")
    known = (ONCE, EACH_STEP) if is_of_steps(attributes) else (ONCE, EACH_REPEAT)
    crafted = checks.choice("canary_crafted", attributes.get("canary_crafted"), known)
    several = crafted == EACH_REPEAT
    if several and repeats == 1:
        raise ValueError(f"canary_crafted must be {ONCE!r} for one repeat")
    for name in ("slot", "canary_fingerprint", *(name for name in attributes if name.startswith("canary_"))):
        value: Any = attributes.get(name)
        if name != "canary_crafted" and (isinstance(value, list) != several or (several and len(value) != repeats)):
            raise ValueError(f"{name} must be {'one value for each repeat' if several else 'one value'}")
        for one in value if isinstance(value, list) else [value]:
            if name == "slot" and whole("slot", one, 0) >= attributes["n"]:
                raise ValueError(f"slot must be one of the {attributes['n']} records, got {short(one)}")
            if name == "canary_fingerprint" and not isinstance(one, str):
                raise ValueError(f"canary_fingerprint must be a text, got {short(one)}")


def check_plain(attributes: Json) -> None:
    """Check that all attributes but the list of files are texts, numbers, or lists of them."""
    for name, value in attributes.items():
        if name != "files" and not all(map(_is_plain, value if isinstance(value, list) else [value])):
            raise ValueError(f"{short(name)} must be a text, a number or a list of them, got {short(value)}")


def check_files(files: object) -> None:
    """Check the names and checksums of files that a document lists."""
    if not isinstance(files, dict):
        raise ValueError(f"files must be names and checksums, got {short(files)}")
    for name, digest in files.items():
        if not isinstance(digest, str) or not re.fullmatch("[0-9a-f]{64}", digest):
            raise ValueError(f"files must have SHA-256 checksums, got {short(digest)} for {short(name)}")


def whole(name: str, value: object, least: int, most: int | None = MOST) -> int:
    """The value, if it is a whole number of the type int and within the bounds."""
    if type(value) is not int or value < least or (most is not None and value > most):
        raise ValueError(f"{name} must be a whole number >= {least}, got {short(value)}")
    return value


def text(name: str, value: object) -> str:
    if not isinstance(value, str) or not _is_plain(value):
        raise ValueError(f"{name} must be a text, got {short(value)}")
    return value


def _is_plain(value: Any) -> bool:
    """Whether this is a number or a text that can be encoded."""
    if isinstance(value, str):
        return checks.drawable(value)
    return isinstance(value, bool | int | float)
