"""Checks of arrays that users give: numbers, and the final weights of models."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dpsub._core import checks
from dpsub.models.interface import Model


def numbers(name: str, values: object) -> NDArray[np.float32]:
    """Finite real numbers in float32; not a copy where none is needed."""
    checks.no_mask(name, values)
    try:
        given = np.asarray(values.detach().cpu() if isinstance(values, Tensor) else values)
        if given.dtype.kind not in "iufO":
            raise TypeError
        with np.errstate(over="ignore"):
            array = given.astype(np.float32, copy=False)
    except (TypeError, ValueError, RuntimeError, ArithmeticError):
        raise ValueError(f"{name} must be real numbers, got a {type(values).__name__} of others") from None
    if not np.isfinite(array).all():
        many = int((~np.isfinite(array)).sum())
        raise ValueError(f"{name} must be finite in float32, got {many} numbers that are not")
    return array


def final_weights(model: Model, weights: object) -> NDArray[np.float32]:
    """(runs, parameters), of one model or more."""
    array = numbers("weights", weights)
    if array.ndim != 2 or array.shape[1] != model.parameters or not len(array):
        raise ValueError(
            f"weights must have shape (runs, {model.parameters}), the final weights of one model or more of {model!r}, "
            f"got {array.shape}"
        )
    return array
