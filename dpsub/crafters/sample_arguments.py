"""Checks of what adversarial samples are crafted from and scored on."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpsub._core import Record, checks
from dpsub._core.frozen import read_only
from dpsub.crafters.separations import BY_NAME
from dpsub.models import Model
from dpsub.models.interface import numbers

OPTIMIZERS = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}
MOST = 1e30  # a larger rate or margin overflows float32
Limits = tuple[NDArray[np.float32], NDArray[np.float32]]


def check_settings(loss: Any, margin: Any, steps: Any, learning_rate: Any, optimizer: Any) -> tuple[float, int, float]:
    """Check how a sample is crafted. Returns the margin, steps and learning rate as Python's numbers."""
    checks.choice("loss", loss, tuple(BY_NAME))
    checks.choice("optimizer", optimizer, tuple(OPTIMIZERS))
    return (
        checks.real("margin", margin, at_least=0, at_most=MOST),
        checks.whole("steps", steps, at_least=0),
        checks.real("learning_rate", learning_rate, above=0, at_most=MOST),
    )


def trained_with_z(bits: object, runs: int) -> NDArray[np.bool_]:
    """(runs,): which models were trained with z."""
    checks.no_mask("bits", bits)
    try:
        array = np.asarray(bits.detach().cpu() if isinstance(bits, Tensor) else bits)
        if array.dtype.kind not in "biuf" or not np.isin(array, (0, 1)).all():
            raise TypeError
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"bits must be 0 (trained with z) or 1, got {bits!r}") from None
    if array.shape != (runs,):
        raise ValueError(f"bits must have shape ({runs},), one bit for each model, got {array.shape}")
    with_z = array == 0
    if min(with_z.sum(), runs - with_z.sum()) < 2:
        raise ValueError(
            f"bits must hold two models or more of each world, got {with_z.sum()} trained with z and "
            f"{runs - with_z.sum()} others"
        )
    return np.asarray(with_z)


def record(name: str, value: object) -> Record:
    """A record (x, y), read-only."""
    if not isinstance(value, tuple) or len(value) != 2:
        raise ValueError(f"{name} must be a record, the tuple (x, y), got a {type(value).__name__}")
    x = read_only(numbers(f"{name}'s features", value[0]))
    return Record(x, checks.whole(f"{name}'s label", value[1], at_least=0))


def check_record(name: str, model: Model, given: Record) -> None:
    """Check that a record has a model's shape and one of its labels."""
    if given.x.shape != model.input_shape:
        raise ValueError(
            f"{name} must have features of shape {model.input_shape}, as {model!r} does, got {given.x.shape}"
        )
    checks.whole(f"{name}'s label", given.y, at_least=0, at_most=model.classes - 1)


def two_labels(y: object, y_prime: object, *, classes: int | None = None) -> tuple[int, int | None]:
    """A label, and another one or None, as Python's numbers."""
    most = None if classes is None else classes - 1
    own = checks.whole("y", y, at_least=0, at_most=most)
    if y_prime is None:
        return own, None
    other = checks.whole("y_prime", y_prime, at_least=0, at_most=most)
    if other == own:
        raise ValueError(f"y_prime must be None or a label other than y, got {other}, which is y")
    return own, other


def check_sample(model: Model, x: NDArray[np.float32], y: int, y_prime: int | None) -> None:
    """Check that a model takes a sample's features, and has its labels."""
    if x.shape != model.input_shape or not 0 <= y < model.classes or not (y_prime or 0) < model.classes:
        labels = f"label {y}" if y_prime is None else f"labels {y} and {y_prime}"
        raise ValueError(f"model must take records like the sample, of shape {x.shape} with {labels}, got {model!r}")


def limits(bounds: object, start: NDArray[np.float32]) -> Limits | None:
    """The bounds, each broadcast to the features of the start, which are within them."""
    if bounds is None:
        return None
    if not isinstance(bounds, tuple | list) or len(bounds) != 2:
        raise ValueError(f"bounds must be None or a pair (low, high), got {bounds!r}")
    ends = [numbers("bounds", one) for one in bounds]
    try:
        low, high = (np.broadcast_to(one, start.shape).copy() for one in ends)
    except ValueError:
        shapes = " and ".join(str(one.shape) for one in ends)
        raise ValueError(
            f"bounds must be numbers or broadcast to the start's shape {start.shape}, got {shapes}"
        ) from None
    if not (low <= high).all():
        raise ValueError("bounds must be (low, high) with low <= high everywhere, got some that are not")
    if outside := int(((start < low) | (start > high)).sum()):
        raise ValueError(
            f"start must be within bounds, got {outside} of {start.size} features outside: clip them first, or widen "
            "the bounds"
        )
    return low, high
