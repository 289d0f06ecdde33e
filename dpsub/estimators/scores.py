"""Checks of scores and bits."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpsub._core import checks
from dpsub.estimators.claims import Array


def scores_and_bits(scores: ArrayLike, bits: ArrayLike) -> tuple[Array, NDArray[np.bool_], bool]:
    """The scores as (runs, steps); which runs were trained with z; and whether the scores came with steps."""
    checks.no_mask("scores", scores)
    checks.no_mask("bits", bits)
    try:
        columns = np.asarray(scores)
    except ValueError:
        raise ValueError(
            "scores must have the same number of steps for every run, got rows of different lengths"
        ) from None
    if columns.ndim not in (1, 2) or columns.size == 0:
        raise ValueError(f"scores must have shape (runs,) or (runs, steps), neither of them 0, got {columns.shape}")
    if columns.dtype.kind not in "iuf":
        raise ValueError(f"scores must be real numbers, got dtype {columns.dtype}")
    if np.isnan(columns).any():
        raise ValueError(f"scores must not be NaN, got {int(np.isnan(columns).sum())} of them: look for diverged runs")
    try:
        worlds = np.asarray(bits)
        known = bool(np.isin(worlds, (0, 1)).all())
    except (TypeError, ValueError):
        raise ValueError("bits must be 0 (trained with z) or 1 (with z_prime), one for each run") from None
    if worlds.shape != columns.shape[:1]:
        raise ValueError(f"bits must have shape {columns.shape[:1]}, one for each run, got {worlds.shape}")
    if not known:
        raise ValueError(
            f"bits must be 0 (trained with z) or 1 (with z_prime), got {list(dict.fromkeys(worlds.tolist()))[:5]}"
        )
    if len(np.unique(worlds)) < 2:
        raise ValueError(f"bits must hold runs of both worlds, got {worlds[0]} only: run more, or check the coin")
    return columns.reshape(len(columns), -1).astype(np.float64), worlds == 0, columns.ndim == 2
