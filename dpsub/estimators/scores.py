"""Checks of scores and bits."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpsub._core import checks
from dpsub.estimators.claims import Array

LARGEST_EXACT = 2.0**53  # integers up to here are exact in float64


def scores_and_bits(scores: ArrayLike, bits: ArrayLike) -> tuple[Array, NDArray[np.bool_], bool]:
    """The scores as (runs, steps); which runs were trained with z; and whether the scores came with steps."""
    checks.no_mask("scores", scores)
    checks.no_mask("bits", bits)
    scores = _runs_first(scores, bits)
    try:
        columns = np.asarray(scores)
    except (TypeError, RuntimeError):  # torch raises the second for tensors that require gradients
        if getattr(scores, "requires_grad", False) or _any_requires_grad(scores):
            raise ValueError("scores must not require gradients, got tensors that do: detach() them") from None
        raise ValueError(f"scores must be an array of numbers, got {type(scores).__name__}") from None
    except ValueError:
        raise ValueError(
            "scores must have the same number of steps for every run, got rows of different lengths"
        ) from None
    if columns.ndim not in (1, 2) or columns.size == 0:
        raise ValueError(f"scores must have shape (runs,) or (runs, steps), neither of them 0, got {columns.shape}")
    if columns.dtype.kind not in "iuf":
        raise ValueError(f"scores must be real numbers, got dtype {columns.dtype}")
    if np.isnan(columns).any():
        if untrained := _untrained(columns, bits):
            raise ValueError(
                f"scores must be of trained models: {untrained:,} of {len(columns):,} runs are not trained yet, with "
                "bit -1: finish the audit, or drop them with dataset.isel(run=dataset.bit.values >= 0)"
            )
        raise ValueError(f"scores must not be NaN, got {int(np.isnan(columns).sum())} of them: look for diverged runs")
    try:
        worlds = np.asarray(bits)
        if worlds.dtype.kind not in "biuf":
            raise TypeError
        known = bool(np.isin(worlds, (0, 1)).all())
    except (TypeError, ValueError, RuntimeError):
        raise ValueError("bits must be 0 (trained with z) or 1 (with z_prime), one for each run") from None
    if worlds.shape != columns.shape[:1]:
        raise ValueError(f"bits must have shape {columns.shape[:1]}, one for each run, got {worlds.shape}")
    if not known:
        raise ValueError(
            f"bits must be 0 (trained with z) or 1 (with z_prime), got {list(dict.fromkeys(worlds.tolist()))[:5]}"
        )
    if len(np.unique(worlds)) < 2:
        raise ValueError(f"bits must hold runs of both worlds, got {worlds[0]} only: run more, or check the coin")
    several = columns.ndim == 2
    columns = columns.reshape(len(columns), -1)
    with np.errstate(over="ignore"):
        floats = columns.astype(np.float64)
    if np.abs(floats).max() >= LARGEST_EXACT or columns.dtype.itemsize > floats.dtype.itemsize:
        # NumPy has already rounded the integers of a list that also holds floats.
        exact = columns if hasattr(scores, "dtype") else np.array(scores, dtype=object).reshape(columns.shape)
        for before, after in zip(exact.T, floats.T, strict=True):
            distinct, kept = len(np.unique(before)), len(np.unique(after))
            if kept < distinct:
                raise ValueError(
                    f"scores must differ as float64 where they differ, got {distinct} different scores of which {kept} "
                    "remain: subtract a constant from all of them, or give their ranks"
                )
    return floats, worlds == 0, several


def _untrained(columns: NDArray[Any], bits: Any) -> int:
    """How many runs a store that is not finished has no model of yet: it has NaN for them, and -1 for their bits."""
    try:
        worlds = np.asarray(bits)
    except (TypeError, ValueError, RuntimeError):
        return 0
    if worlds.dtype.kind not in "if" or worlds.shape != columns.shape[:1]:
        return 0
    return int(((worlds == -1) & np.isnan(columns).reshape(len(columns), -1).all(axis=1)).sum())


def _any_requires_grad(scores: Any) -> bool:
    return isinstance(scores, list | tuple) and any(getattr(one, "requires_grad", False) for one in scores)


def _runs_first(scores: Any, bits: Any) -> Any:
    """Scores with names for their dimensions, as xarray gives, with the dimension of the bits first."""
    names, of_bits = (getattr(values, "dims", None) for values in (scores, bits))
    if not isinstance(names, tuple) or not hasattr(scores, "transpose"):
        return scores
    run = of_bits[0] if isinstance(of_bits, tuple) and len(of_bits) == 1 else "run"
    if isinstance(of_bits, tuple) and run not in names:
        raise ValueError(f"scores must have the dimension {run!r} of bits, got {names}")
    if "repeat" in names and len(names) == 2:
        raise ValueError(f"scores must be of one repeat, got the dimensions {names}: choose one with isel(repeat=…)")
    mine, its = (getattr(values, "indexes", {}).get(run) for values in (scores, bits))
    if mine is not None and its is not None and not mine.equals(its):
        raise ValueError(f"scores and bits must be of the same runs in the same order, got other numbers of {run!r}")
    return scores.transpose(run, ...) if run in names else scores
