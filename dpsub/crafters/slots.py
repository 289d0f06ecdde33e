"""Which private records canaries replace, and checks that the records to choose from are not private."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpsub._core import CanaryPair, Pairs, checks
from dpsub._core.random_streams import stream
from dpsub.data.tasks import Task, check_task, features_of
from dpsub.models.interface import Model, check_fits


def random_slot(task: Task, model: Model, seed: int) -> int:
    """The index of a random private record, which one canary replaces. Model and task must fit."""
    check_fits(model, task)
    return int(stream(seed, "crafter").integers(len(task.y_train)))


def shuffled_slots(task: Task, model: Model, pairs: int, seed: int) -> tuple[int, NDArray[np.int64]]:
    """The checked number of pairs, and (n,) the private records' indices in random order. Pairs replace the first ones.

    Raises:
        ValueError: if model and task do not fit, or there are too many pairs.
    """
    check_fits(model, task)
    n = len(task.y_train)
    order = stream(seed, "crafter", 3).permutation(n).astype(np.int64)
    return checks.whole("pairs", pairs, at_most=n - 1), order


def pairs_of_records(pairs: int, crafted: Iterable[CanaryPair], details: Mapping[str, Any], *measured: str) -> Pairs:
    """Join the first pairs of records. The details named by `measured` become arrays (pairs,) in the trace."""
    found = list(islice(crafted, pairs))
    if len(found) < pairs:
        raise ValueError(f"pairs must be <= {len(found)}, the private records that can be targets, got {pairs}")
    trace = {name: np.array([pair.details[name] for pair in found]) for name in measured}
    return replace(Pairs.of(found), details=details, trace=trace)


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
    if private_ones := sum(record in private for record in features_of(others)):
        name = "auxiliary" if part == "aux" else "test"
        raise ValueError(
            f"task must have {name} records that are not private ones, got {private_ones} of {len(others)} with the "
            f"features of a private record: leave those out of x_{part} and y_{part}"
        )
