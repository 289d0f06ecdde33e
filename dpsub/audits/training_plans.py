"""The plan of an audit of a training function: its runs, its coins, and its shards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpsub._core import CanaryPair, checks
from dpsub._core.datasets import LONG_NAMES
from dpsub._core.random_streams import stream, torch_seed
from dpsub.audits.plans import Cut, Shard, Variable, fingerprint

Plain = bool | int | float | str
OWN_FUNCTION = "own function"  # the attribute `trained_by`, which audits by dpsub's own trainers do not have
MOST_SHARDS = 4096  # of an audit: one for each run up to so many runs
MOST_RUNS = 10**6
MOST_STEP = 2**53
MOST_WHOLE = 2**63
ABOUT = ("trained_by", "name", "adjacency", "runs", "seed", "observed_steps", "parameters")
# What a store or a dataset says beside that. Parameters have other names.
WHERE_FROM = {
    "dpsub_store", "models_stored", "device", "cpu_capability", "commit", "wall_seconds", "last_written", "files",
    "sha256",
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class TrainingPlan:
    """What an audit of a training function will train."""

    name: str
    adjacency: str
    parameters: Mapping[str, Plain]
    runs: int
    seed: int
    observed: tuple[int, ...]

    canaries: tuple[CanaryPair, ...] = ()  # the function has its own
    repeats: int = 1

    @property
    def title(self) -> str:
        return self.name

    @property
    def cut(self) -> Cut:
        return training_cut(self.runs)

    @cached_property
    def shards(self) -> list[Shard]:
        return [self.cut.shard(number) for number in range(self.cut.shards)]

    @property
    def variables(self) -> dict[str, Variable]:
        sizes = {"run": self.runs, "step": len(self.observed)}
        return {
            "score": Variable(sizes, "float32", np.nan, LONG_NAMES["score"]),
            "bit": Variable({"run": self.runs}, "int8", -1, LONG_NAMES["bit"]),
        }

    @property
    def indexes(self) -> dict[str, tuple[str, NDArray[np.int64]]]:
        return {"step": ("step", np.array(self.observed, np.int64))}

    def region(self, name: str, shard: Shard) -> tuple[slice | int, ...]:
        """The part of a variable that this shard fills."""
        return (slice(shard.start, shard.stop),)

    @cached_property
    def bits(self) -> NDArray[np.int8]:
        """The world of each run, by a fair coin."""
        return stream(self.seed, "training").integers(0, 2, self.runs, dtype=np.int8)

    def run_seed(self, run: int) -> int:
        """The seed of one run, below 2³². No two runs share one."""
        return torch_seed(self.seed, "training", run)

    @cached_property
    def attributes(self) -> dict[str, Any]:
        """Everything needed to run the audit again, except the function and the versions."""
        return {
            "trained_by": OWN_FUNCTION,
            "name": self.name,
            "adjacency": self.adjacency,
            "runs": self.runs,
            "seed": self.seed,
            "observed_steps": list(self.observed),
            "parameters": " ".join(self.parameters),
            **self.parameters,
        }

    @cached_property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that change with any attribute."""
        return fingerprint(self.attributes)


def is_of_training(attributes: Mapping[str, Any]) -> bool:
    """Whether these are the attributes of an audit of a training function."""
    return "trained_by" in attributes


def training_cut(runs: int) -> Cut:
    """How the runs of a training function are cut into shards: one for each, up to MOST_SHARDS."""
    return Cut(runs, 1, 1, MOST_SHARDS)


def checked_parameters(parameters: object) -> dict[str, Plain]:
    """The parameters of a training function, by name and in order.

    Raises:
        ValueError: if they are no mapping from names that are free to numbers and texts.
    """
    if parameters is None:
        return {}
    expected = "parameters must be a mapping from names to numbers and texts"
    if not isinstance(parameters, Mapping):
        raise ValueError(f"{expected}, got {parameters!r}")
    found: dict[str, Plain] = {}
    for name, value in parameters.items():
        if not isinstance(name, str) or not name.isidentifier():
            raise ValueError(f"{expected}, whose names are identifiers, such as sample_rate, got {name!r}")
        if name in ABOUT or name in WHERE_FROM or name.startswith(("version_", "failed_")):
            raise ValueError(f"parameters must have names other than an audit's own attributes, got {name!r}")
        plain = value.item() if isinstance(value, np.generic) else value
        if isinstance(plain, str):
            fine = checks.drawable(plain)
        elif isinstance(plain, float):
            fine = isfinite(plain)
        else:
            fine = isinstance(plain, int) and abs(plain) < MOST_WHOLE
        if not fine:
            raise ValueError(
                f"{expected}: finite, below 2⁶³ if whole, and without NUL or halves of characters, got a "
                f"{type(value).__name__} for {name!r} that is none of these"
            )
        found[name] = str(plain) if isinstance(plain, str) else plain
    return dict(sorted(found.items()))


def checked_steps(steps: Sequence[int] | None) -> tuple[int, ...]:
    """The steps that scores belong to; (1,) if each run has one score."""
    if steps is None:
        return (1,)
    expected = "steps must be increasing whole numbers, one for each score of a run, such as [50, 100], or None"
    given = checks.several(expected, steps)
    found = tuple(checks.whole(f"steps[{i}]", step, at_most=MOST_STEP) for i, step in enumerate(given))
    if not found or any(one >= other for one, other in pairwise(found)):
        raise ValueError(f"{expected}, got {steps!r}")
    return found
