"""The private records whose slots canaries take, and the records that adversaries may choose from, which are not."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from dpsub._core import CanaryPair, Pairs, checks
from dpsub._core.random_streams import stream
from dpsub.data.tasks import Task, check_task, features_of
from dpsub.models import Model, check_fits


def slot_of(task: Task, model: Model, seed: int) -> int:
    """The private record whose place one canary takes, after checking that model and task fit."""
    check_fits(model, task)
    return int(stream(seed, "crafter").integers(len(task.y_train)))


def slots_of(task: Task, model: Model, pairs: int, seed: int) -> tuple[int, NDArray[np.int64]]:
    """How many pairs there are, and (n,) the private records in random order: the first are those that pairs replace.

    Raises:
        ValueError: if model and task do not fit, or there are too many pairs.
    """
    check_fits(model, task)
    n = len(task.y_train)
    order = stream(seed, "crafter", 3).permutation(n).astype(np.int64)
    return checks.whole("pairs", pairs, at_most=n - 1), order


def together(made: Iterable[CanaryPair], details: dict[str, int | str], *measured: str) -> Pairs:
    """Pairs of records as one object, whose trace has what is measured of each pair: names among their details."""
    several = [(pair.slot, pair.z, pair.z_prime, pair.details, pair.scenario, pair.task) for pair in made]
    slots, z, z_prime, own, scenarios, tasks = zip(*several, strict=True)
    return Pairs(
        np.array(slots),
        np.stack([record.x for record in z]),
        np.stack([record.x for record in z_prime]),
        np.array([record.y for record in z]),
        np.array([record.y for record in z_prime]),
        scenario=scenarios[0],
        details=details,
        task=tasks[0],
        trace={name: np.array([of_pair[name] for of_pair in own]) for name in measured},
    )


def check_auxiliary(task: Task, purpose: str = "to choose from") -> None:
    """Check that there are auxiliary records, and that none of them is private.

    Raises:
        ValueError: if there are none, or some are private.
    """
    check_task(task)
    if not len(task.y_aux):
        raise ValueError(f"task must have auxiliary records {purpose}: give x_aux and y_aux")
    check_not_private(task, "aux")


def check_not_private(task: Task, part: str) -> None:
    """Check that no record of a part of the task, "aux" or "test", has the features of a private one.

    Raises:
        ValueError: if some have.
    """
    private = set(features_of(task.x_train))
    others = getattr(task, f"x_{part}")
    if known := sum(record in private for record in features_of(others)):
        name = "auxiliary" if part == "aux" else "test"
        raise ValueError(
            f"task must have {name} records that are not private ones, got {known} of {len(others)} with the "
            f"features of a private record: leave those out of x_{part} and y_{part}"
        )
