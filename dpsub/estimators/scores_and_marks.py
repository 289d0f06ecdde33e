"""Scores and bits: checks of them, and what they say of how they were made, which decides which bounds hold for them.

The marks are the names of dimensions, and coordinates. So they stay with the scores through selections, arithmetic and
files, and xarray refuses to concatenate scores that have a coordinate with scores that do not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpsub._core import checks
from dpsub.estimators.numerics import Array

Of = Literal["step", "training"]
KINDS: dict[str, Of] = {"observation": "step", "run": "training", "model": "training"}  # by the rows' dimension
LARGEST_EXACT = 2.0**53  # integers up to here are exact in float64


@dataclass(frozen=True, eq=False)
class Marks:
    """How scores were made, as far as they or their bits say it.

    Attributes:
        of: what a row is an observation of: one step, or a whole training. None for arrays without names.
        in_sample: whether the judged models were learned from.
        seed_ignored: whether all runs of a world have one score, whatever their seed.
        same_world: whether the world is the same at all steps of a training, and not tossed anew.
        folds: (runs,) each run's fold, if each fold has a scorer of its own.
        together: the number of observations of each step; None if nothing says it.
    """

    of: Of | None
    in_sample: bool
    seed_ignored: bool
    same_world: bool
    folds: NDArray[np.int64] | None
    together: int | None


def marks_of(scores: Any, bits: Any, folds: ArrayLike | None, runs: int) -> Marks:
    """The marks of scores and bits. `folds` are those that a user gives beside them."""
    no_row_twice(scores, bits)
    names, along = _named(scores, bits)
    return Marks(
        of=next((KINDS[name] for name in names if name in KINDS), None),
        in_sample=_any(along, "in_sample"),
        seed_ignored=_any(along, "seed_ignored"),
        same_world=_any(along, "same_world"),
        folds=_folds(along["fold"].values if folds is None and "fold" in along else folds, runs),
        together=_together(along["step"].values) if "observation" in names and "step" in along else None,
    )


def no_pairs(scores: Any, bits: Any) -> None:
    """Refuse the scores of many pairs in one model, which are not independent as those of many models are."""
    names, along = _named(scores, bits)
    if "pair" in names or {"pair", "slot"} & along.keys():
        raise ValueError(
            "scores must be one for each model, got scores of many pairs in one model: give the audit to dpsub.bound, "
            "which guesses the pairs by one_run_guesses and bounds ε by one_run_epsilon_lower_bound"
        )


def no_row_twice(scores: Any, bits: Any) -> None:
    """Refuse rows that were drawn from the same seed and number: they have the same randomness. Arrays cannot tell."""
    _, along = _named(scores, bits)
    if not {"seed", "number"} <= along.keys():
        return
    seeds, numbers = (along[name].values.ravel() for name in ("seed", "number"))
    first, of_seed = np.unique(seeds, return_inverse=True)
    drawn = len(np.unique(of_seed * (numbers.max() + 1) + numbers))
    if drawn < len(seeds):
        raise ValueError(
            f"scores must be of independent runs, got {len(seeds):,} rows of which {drawn:,} differ in seed and number "
            f"(seeds {', '.join(map(str, first[:3]))}): the others have the randomness of one that is there already. "
            "Give each audit that you join a seed of its own"
        )


def _named(scores: Any, bits: Any) -> tuple[list[str], dict[str, Any]]:
    """The dimensions of scores and bits, and the coordinates that have a dimension."""
    named = [values for values in (scores, bits) if isinstance(getattr(values, "dims", None), tuple)]
    names = [str(dim) for values in named for dim in values.dims]
    return names, {str(name): of for values in named for name, of in values.coords.items() if of.ndim}


def _any(along: dict[str, Any], name: str) -> bool:
    """Whether some row has the mark. A mark that was lost, NaN, counts as one."""
    return name in along and bool((along[name] != 0).any())


def _together(steps: NDArray[Any]) -> int:
    """How many observations each step has, by the steps of all observations."""
    [starts] = np.nonzero(np.append(True, steps[1:] != steps[:-1]))
    sizes = np.diff(np.append(starts, len(steps)))
    if len(set(sizes.tolist())) > 1:
        raise ValueError(
            f"scores must hold all observations of each step, one after the other, got steps with {sizes.min()} to "
            f"{sizes.max()} of them: select whole steps"
        )
    return int(sizes[0])


def _folds(folds: ArrayLike | None, runs: int) -> NDArray[np.int64] | None:
    if folds is None:
        return None
    expected = f"folds must be whole numbers, one for each of the {runs} runs"
    checks.no_mask("folds", folds)
    given = real_array(expected, folds)
    with np.errstate(invalid="ignore"):
        numbers = given.astype(np.int64)
    whole = bool((numbers == given).all())
    if not whole or numbers.shape != (runs,):
        raise ValueError(f"{expected}, got {'fractions' if not whole else f'shape {numbers.shape}'}")
    return numbers


def real_array(expected: str, values: Any, kinds: str = "iuf") -> NDArray[Any]:
    """The values as an array of numbers. `expected` begins the sentence that refuses others."""
    try:
        array = np.asarray(values)
        if array.dtype.kind in kinds:
            return array
    except (TypeError, ValueError, RuntimeError):  # the last of tensors that require gradients
        pass
    raise ValueError(f"{expected}, got a {type(values).__name__}")


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
    worlds = real_array("bits must be 0 (trained with z) or 1 (with z_prime), one for each run", bits, "biuf")
    if worlds.shape != columns.shape[:1]:
        raise ValueError(f"bits must have shape {columns.shape[:1]}, one for each run, got {worlds.shape}")
    if not np.isin(worlds, (0, 1)).all():
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
    worlds = real_array("bits must be numbers", bits, "biuf")
    if worlds.shape != columns.shape[:1]:
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
