"""Check the arguments of `audit`, and make a plan of them."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dpsub._core import DPSGD, CanaryPair, Record, checks, random_streams
from dpsub.audits.any_plans import BankPlan
from dpsub.audits.learned_scores import LEAST_RUNS, SCORES, Learning
from dpsub.audits.observers import Observer, chosen
from dpsub.audits.plans import Plan
from dpsub.data import Task
from dpsub.models import Model, check_fits
from dpsub.trainers import COORDINATES, StepCanary, devices


def plan_of(
    task: Task,
    model: Model,
    canary: CanaryPair | Sequence[CanaryPair],
    spec: DPSGD,
    *,
    runs: int,
    observe_every: int,
    repeats: int,
    metrics: Sequence[str | Observer],
    coordinates: str,
    seed: int,
    matmul_precision: str,
    score: str = "canary",
    learning_runs: int = 256,
) -> Plan:
    """The plan of an audit, from arguments that are checked here."""
    check_fits(model, task)
    if not isinstance(spec, DPSGD):
        raise ValueError(f"spec must be a dpsub.DPSGD, got a {type(spec).__name__}")
    repeats = checks.whole("repeats", repeats)
    canaries = tuple(canary) if isinstance(canary, Sequence) else (canary,)
    for each in canaries:
        if not isinstance(each, CanaryPair):
            raise ValueError(f"canary must be a dpsub.CanaryPair, got a {type(each).__name__}")
        check_canary(task, model, each, spec)
    if isinstance(canary, Sequence) and len(canaries) != repeats:
        raise ValueError(f"canary must be one for all repeats, or one for each of the {repeats}, got {len(canaries)}")
    if len({(each.scenario, each.adjacency, each.score, *sorted(each.details)) for each in canaries}) > 1:
        raise ValueError("canary must be of one scenario and adjacency in all repeats, crafted in one way")
    runs = checks.whole("runs", runs)
    observe_every = checks.whole("observe_every", observe_every)
    if observe_every > spec.steps:
        raise ValueError(f"observe_every must be <= spec.steps = {spec.steps}, got {observe_every}")
    observers = chosen(metrics, task)
    learning_runs = checks.whole("learning_runs", learning_runs, at_least=LEAST_RUNS)
    learned = checks.choice("score", score, SCORES) == "learned"
    plan = Plan(
        task=task,
        model=model,
        canaries=canaries,
        spec=spec,
        runs=runs,
        observe_every=observe_every,
        observers=observers,
        coordinates=_coordinates(coordinates, observers, learned),
        seeds=tuple(repeat_seeds(seed, repeats)),
        matmul_precision=checks.choice("matmul_precision", matmul_precision, tuple(devices.PRECISIONS)),
        learning=Learning(learning_runs) if learned else None,
    )
    plan.attributes  # noqa: B018, which refuses what stores could not tell apart
    return plan


def _coordinates(coordinates: str, observers: tuple[Observer, ...], learned: bool) -> str:
    """Resolve "auto": "all" if an observer or a learned score needs all coordinates, else "span"."""
    needing = [one.name for one in observers if one.all_coordinates]
    checks.choice("coordinates", coordinates, ("auto", *COORDINATES))
    if coordinates == "span" and needing:
        raise ValueError(
            f"coordinates must be 'all' or 'auto' for the metrics {', '.join(needing)}, which need all of a model's "
            "parameters, got 'span'"
        )
    if coordinates == "span" and learned:
        raise ValueError(
            "coordinates must be 'all' or 'auto' for score='learned', which uses all parameters, got 'span'"
        )
    return coordinates if coordinates != "auto" else "all" if needing or learned else "span"


def check_canary(task: Task, model: Model, canary: CanaryPair | StepCanary, spec: DPSGD) -> None:
    """Check that a canary fits task, model and spec.

    Raises:
        ValueError: if it does not. What is crafted at each step is checked by its crafter.
    """
    if canary.task is not None and canary.task != task.fingerprint:
        raise ValueError(
            f"canary must be crafted for this task, {task!r}, got one for other private records: craft it again"
        )
    if not 0 <= canary.slot < len(task.y_train):
        raise ValueError(f"canary.slot must be one of the {len(task.y_train)} private records, got {canary.slot}")
    if not isinstance(canary, CanaryPair):
        return

    def norm(gradient: NDArray[np.float32]) -> float:
        return float(np.linalg.norm(gradient.astype(np.float64)))

    for name, world in (("z", canary.z), ("z_prime", canary.z_prime)):
        if isinstance(world, Record):
            if world.x.shape != task.x_train.shape[1:] or world.y >= task.num_classes:
                raise ValueError(
                    f"canary.{name} must be a record like the task's, features {task.x_train.shape[1:]} and a label "
                    f"below {task.num_classes}, got {world.x.shape} and {world.y}"
                )
        elif world is not None and world.shape != (model.parameters,):
            raise ValueError(f"canary.{name} must have shape ({model.parameters},) for {model!r}, got {world.shape}")
        elif world is not None and not norm(world) <= spec.max_grad_norm * (1 + 1e-6):
            raise ValueError(
                f"canary.{name} must have norm <= max_grad_norm = {spec.max_grad_norm:g}, got {norm(world):g}"
            )


def check_told_apart(plan: BankPlan) -> None:
    """Check that a store would tell this audit from any other.

    Raises:
        ValueError: if the model or an observer holds something that cannot be told apart.
    """
    observers = plan.observers if isinstance(plan, Plan) else ()
    if untold := [one for holder in (plan.model, *observers) for one in getattr(holder, "untold", ())]:
        raise ValueError(
            f"store must tell this audit from others, got {', '.join(untold)}, which dpsub cannot tell apart: define "
            "functions and classes by name, outside of functions; or name the model yourself, "
            'models.from_module(..., name="..."), anew whenever it changes (for an observer, define `attributes`)'
        )
    if re.search(r" at 0x|\.\.\.", told := repr(plan.model)):
        raise ValueError(
            "store must tell this audit from others, got a model whose repr does not tell it from other models, "
            f"{told:.200}: define a __repr__ that shows all that its training depends on"
        )


def repeat_seeds(seed: int, repeats: int) -> list[int]:
    """The seeds of the repeats of `audit(seed=seed, repeats=repeats)`; the first is `seed` itself.

    An audit with `seed=repeat_seeds(seed, repeats)[i]` is the i-th repeat alone. To craft a canary for each repeat:
    `[crafters.gradient(task, model, spec, seed=s) for s in repeat_seeds(seed, repeats)]`.

    >>> repeat_seeds(7, 1)
    [7]
    """
    return random_streams.repeat_seeds(checks.whole("seed", seed, at_least=0), checks.whole("repeats", repeats))
