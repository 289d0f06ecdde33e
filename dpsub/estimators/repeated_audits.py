"""Mean and error of repeated audits, as the papers draw them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dpsub._core import checks
from dpsub.estimators.claims import Array
from dpsub.estimators.lower_bounds import LowerBound


class OverRepeats(NamedTuple):
    """Repeated audits as the papers draw them. A mean of bounds is not a bound: it has no confidence level.

    Attributes:
        mean: over the repeats; a float, or (steps,).
        error: two standard errors of that mean, of the same shape; NaN for a single repeat.
        repeats: the number of repeats.
    """

    mean: float | Array
    error: float | Array
    repeats: int


def over_repeats(bounds: Sequence[Any]) -> OverRepeats:
    """Mean and two standard errors over repeated audits.

    Args:
        bounds: one entry for each repeat: a `LowerBound`, a list with one for each step, or numbers likewise. Numbers
            whose dimensions have names, as xarray gives, are read by the dimension "repeat".

    Raises:
        ValueError: if there are no repeats, if they differ in their number of steps, or if a bound is NaN.

    Source: *Beyond Membership*, Figures 2–6: "±2 standard errors around the mean".

    >>> over_repeats([3.0, 4.0, 5.0])
    OverRepeats(mean=4.0, error=1.1547005383792517, repeats=3)
    """
    expected = "bounds must be a sequence of repeats, each a bound or a list with one bound for each step"
    if isinstance(bounds, LowerBound):
        raise ValueError(f"{expected}, got a single LowerBound")
    checks.no_mask("bounds", bounds)
    names = getattr(bounds, "dims", None)
    if isinstance(names, tuple) and hasattr(bounds, "transpose"):
        if "repeat" not in names:
            raise ValueError(f'{expected}: the dimension "repeat", got the dimensions {names}')
        bounds = bounds.transpose("repeat", ...)
    repeats = checks.several(expected, bounds)
    try:
        found = [np.asarray(_epsilons(repeat)) for repeat in repeats]
        if any(repeat.dtype.kind not in "iuf" for repeat in found):
            raise TypeError
        stacked = np.stack(found).astype(np.float64)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"{expected}, got none, repeats of different shapes, or something else") from None
    if stacked.size == 0 or stacked.ndim > 2 or not np.isfinite(stacked).all():
        many = int((~np.isfinite(stacked)).sum())
        raise ValueError(f"{expected}, got shape {stacked.shape} with {many} numbers that are not finite")
    error = np.full(stacked.shape[1:], np.nan)
    if len(stacked) > 1:
        with np.errstate(over="ignore"):
            error = 2 * stacked.std(axis=0, ddof=1) / np.sqrt(len(stacked))
        if not np.isfinite(error).all():
            raise ValueError(f"{expected}, got numbers up to {np.abs(stacked).max():g}, too large for their error")
    mean = stacked.mean(axis=0)
    return OverRepeats(mean if mean.ndim else float(mean), error if mean.ndim else float(error), len(stacked))


def _epsilons(bounds: Any) -> Any:
    if isinstance(bounds, LowerBound):
        return bounds.epsilon
    return [_epsilons(bound) for bound in bounds] if isinstance(bounds, list | tuple) else bounds
