"""Checks of what figures are given: axes, numbers, bounds by name, and the names themselves."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from dpsub._core import checks
from dpsub.estimators import LowerBound

Array = NDArray[np.float64]


def on_axes(**given: Any) -> None:
    """Refuse what cannot be drawn on."""
    for argument, ax in given.items():
        if not isinstance(ax, Axes):
            raise ValueError(f"{argument} must be matplotlib axes, as plt.subplots makes them, got {_told(ax)}")


def text(argument: str, value: Any) -> str:
    if not isinstance(value, str) or not checks.drawable(value):
        raise ValueError(f"{argument} must be a text without NUL and halves of characters, got {_told(value)}")
    return value


def points(argument: str, values: Any, count: int | None = None, *, finite: bool = True) -> Array:
    """A sequence of numbers, `count` of them or one or more; infinite ones only if `finite` is False."""
    array = numbers(argument, values, finite=finite)
    if array.ndim != 1 or not len(array) or len(array) != (len(array) if count is None else count):
        expected = "(k,), one or more numbers" if count is None else f"({count},), one for each point"
        raise ValueError(f"{argument} must have shape {expected}, got {array.shape}")
    return array


def numbers(argument: str, values: Any, *, finite: bool = True) -> Array:
    """An array of numbers without NaN; infinite ones only if `finite` is False."""
    checks.no_mask(argument, values)
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, RuntimeError):  # the last of tensors that require gradients
        array = np.array(None)
    if array.size and array.dtype.kind not in "iuf":
        raise ValueError(f"{argument} must be numbers, got {_told(values)}")
    array = array.astype(np.float64)
    if np.isnan(array).any() or (finite and np.isinf(array).any()):
        raise ValueError(f"{argument} must be {'finite' if finite else 'no NaN'}, got {array[~np.isfinite(array)][0]}")
    return array


def named(argument: str, values: Any, *, taken: Collection[str] = ()) -> Mapping[Any, Any]:
    """A mapping with one entry or more, whose names can be told from each other and from those that are taken."""
    if not isinstance(values, Mapping):
        raise ValueError(f"{argument} must be a dictionary, by name, got {_told(values)}")
    if not values:
        raise ValueError(f"{argument} must have one entry or more, by name, got none")
    for name in values:
        if not str(name).strip() or not checks.drawable(str(name)) or name in taken:
            others = f", and not {', '.join(map(repr, taken))}" if taken else ""
            raise ValueError(f"{argument} must have names that are not empty{others}, got {name!r}")
    return values


def audits(argument: str, audited: Any, count: int, *, taken: Collection[str]) -> dict[Any, list[list[LowerBound]]]:
    """For each name its repeats, each with `count` bounds."""
    found = {}
    for name, repeats in named(argument, audited, taken=taken).items():
        of = f"{argument}[{name!r}]"
        if not isinstance(repeats, Sequence) or isinstance(repeats, str) or not len(repeats):
            raise ValueError(f"{of} must be a list of repeats, one or more, got {_told(repeats)}")
        for repeat in repeats:
            if not isinstance(repeat, Sequence) or not all(isinstance(bound, LowerBound) for bound in repeat):
                raise ValueError(f"{of} must hold lists of bounds, one list for each repeat, got {_told(repeat)}")
            for bound in repeat:
                if numbers(of, bound.epsilon).ndim or bound.epsilon < 0:
                    raise ValueError(f"{of} must hold bounds with an epsilon >= 0, got {_told(bound.epsilon)}")
                checks.choice(f"{of}: assumes", bound.assumes, ("none", "gdp", "mechanism", "product"))
            if len(repeat) != count:
                raise ValueError(f"{of} must have {count} bounds in each repeat, one for each point, got {len(repeat)}")
        found[name] = [list(repeat) for repeat in repeats]
    return found


def _told(value: Any) -> str:
    """What was given, short enough for a sentence."""
    told = repr(value)
    return told if len(told) <= 60 and "\n" not in told else f"{type(value).__name__}"
