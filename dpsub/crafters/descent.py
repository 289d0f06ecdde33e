"""The loop that crafts records: gradient steps on a function of the record's features."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def moments(steps: int, most: int = 100) -> NDArray[np.int64]:
    """The start, 0, and `most` evenly spaced steps up to `steps`; all steps if there are no more than that."""
    return np.linspace(0, steps, min(steps, most) + 1).round().astype(np.int64)


def descend(
    x: Tensor,
    objective: Callable[[Tensor], tuple[Tensor, Tensor]],
    steps: int,
    learning_rate: float,
    move: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> Iterator[tuple[int, Tensor, float, Tensor]]:
    """Descend on a function of a record's features.

    Args:
        x: where to start.
        objective: returns its value at x, which is differentiated, and a tensor that is passed on to the caller.
        steps: the number of steps.
        learning_rate: η. With `move` it only appears in the error message.
        move: returns the next x for an x and the gradient g there. By default x − η·g.

    Yields:
        The number of steps so far, from 0 to `steps`; x after them; and the two that the objective returned there.

    Raises:
        ValueError: if the value is not finite, or has no gradient by x.
    """
    for step in range(steps + 1):
        x = x.detach().requires_grad_()
        value, extra = objective(x)
        number = float(value.detach())
        if not math.isfinite(number):
            if step:
                raise ValueError(
                    f"learning_rate must be small enough that crafting does not diverge, got {learning_rate:g}"
                )
            raise ValueError("the start must be a record at which all losses are finite, got one at which some are not")
        yield step, x.detach(), number, extra.detach()
        if step < steps:
            slope = feature_gradient(value, x)
            x = move(x.detach(), slope) if move else x.detach() - learning_rate * slope


def feature_gradient(value: Tensor, x: Tensor) -> Tensor:
    """The gradient of a value by a record's features.

    Raises:
        ValueError: if torch cannot differentiate the value.
    """
    try:
        return torch.autograd.grad(value, x)[0]
    except RuntimeError as error:
        raise ValueError(
            "model must be differentiable by its records' features, which token ids are not: craft another canary, "
            "such as mislabeled"
        ) from error
