"""What crafters of many pairs check, and which records the pairs replace."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpsub._core import DPSGD, checks
from dpsub._core.random_streams import stream
from dpsub.data import Task
from dpsub.models import Model, check_fits


def seed_and_count(task: Task, model: Model, spec: DPSGD, pairs: int, seed: int) -> tuple[int, int]:
    check_fits(model, task)
    if not isinstance(spec, DPSGD):
        raise ValueError(f"spec must be a dpsub.DPSGD, got a {type(spec).__name__}")
    return checks.whole("seed", seed, at_least=0), checks.whole("pairs", pairs, at_most=len(task.y_train) - 1)


def order_of(task: Task, seed: int) -> NDArray[np.int64]:
    """(n,): the private records in random order."""
    return stream(seed, "crafter", 3).permutation(len(task.y_train)).astype(np.int64)


def slots_of(task: Task, pairs: int, seed: int) -> NDArray[np.int64]:
    return order_of(task, seed)[:pairs]
