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
MARKS = ("in_sample", "seed_ignored", "watched", "same_world")


@dataclass(frozen=True, eq=False)
class Marks:
    """How scores were made, as far as they or their bits say it.

    Attributes:
        of: what a row is an observation of: one step, or a whole training. None for arrays without names.
        said: the marks, among `MARKS`, of some row. "in_sample": the judged models were learned from. "seed_ignored":
            all runs of a world have one score, whatever their seed. "watched": a test of the scores decided how many
            runs there are. "same_world": the world is the same at all steps of a training, and not tossed anew.
        folds: (runs,) each run's fold, if each fold has a scorer of its own.
        together: the number of observations of each step; None if nothing says it.
    """

    of: Of | None
    said: frozenset[str]
    folds: NDArray[np.int64] | None
    together: int | None


def marks_of(scores: Any, bits: Any, folds: ArrayLike | None, runs: int) -> Marks:
    """The marks of scores and bits. `folds` are those that a user gives beside them."""
    refuse_rows_twice(scores, bits)
    names, along = _named(scores, bits)
    given = along["fold"].values if folds is None and "fold" in along else folds
    return Marks(
        of=next((KINDS[name] for name in names if name in KINDS), None),
        said=frozenset(name for name in MARKS if name in along and (along[name] != 0).any()),  # lost ones, NaN, count
        folds=None if given is None else checks.array("folds", given, shape=(runs,), kind=np.int64),
        together=_together(along["step"].values) if "observation" in names and "step" in along else None,
    )


def refuse_rows_twice(scores: Any, bits: Any) -> None:
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


def scores_bits_and_marks(scores: Any, bits: Any, folds: Any = None) -> tuple[Array, NDArray[np.bool_], bool, Marks]:
    """What `scores_and_bits` returns, and the marks.

    It refuses the scores of many pairs in one model, which are not independent as those of many models are.
    """
    names, along = _named(scores, bits)
    if "pair" in names or {"pair", "slot"} & along.keys():
        raise ValueError(
            "scores must be one for each model, got scores of many pairs in one model: give the audit to dpsub.bound, "
            "which guesses the pairs by one_run_guesses and bounds ε by one_run_epsilon_lower_bound"
        )
    columns, in_z, several = scores_and_bits(scores, bits)
    return columns, in_z, several, marks_of(scores, bits, folds, len(columns))


def scores_and_bits(scores: ArrayLike, bits: ArrayLike) -> tuple[Array, NDArray[np.bool_], bool]:
    """The scores as (runs, steps); which runs were trained with z; and whether the scores came with steps."""
    worlds = checks.array("bits", bits, shape=("runs",), kind=np.int64)
    if not np.isin(worlds, (0, 1)).all():
        unfinished = (
            f": {np.sum(worlds == -1):,} of {len(worlds):,} runs are not trained yet, if these are a store's: finish "
            "the audit, or drop them with dataset.isel(run=dataset.bit.values >= 0)"
        )
        raise ValueError(
            f"bits must be 0 (trained with z) or 1 (with z_prime), got {np.unique(worlds)[:5].tolist()}"
            f"{unfinished if -1 in worlds else ''}"
        )
    if len(np.unique(worlds)) < 2:
        raise ValueError(
            f"bits must hold runs of both worlds, got {np.unique(worlds).tolist()} only: run more, or check the coin"
        )
    columns = checks.array("scores", _runs_first(scores, bits), shape=(len(worlds), ...), finite=False)
    if columns.ndim > 2 or not columns.size:
        raise ValueError(f"scores must have shape (runs,) or (runs, steps), neither of them 0, got {columns.shape}")
    return columns.reshape(len(columns), -1), worlds == 0, columns.ndim == 2


def _runs_first(scores: Any, bits: Any) -> Any:
    """Scores with names for their dimensions, as xarray gives, with the dimension of the bits first."""
    names, of_bits = (getattr(values, "dims", ()) for values in (scores, bits))
    if not names:
        return scores
    run = of_bits[0] if of_bits else "run"
    if of_bits and run not in names:
        raise ValueError(f"scores must have the dimension {run!r} of bits, got {names}")
    if "repeat" in names and len(names) == 2:
        raise ValueError(f"scores must be of one repeat, got the dimensions {names}: choose one with isel(repeat=…)")
    mine, its = (getattr(values, "indexes", {}).get(run) for values in (scores, bits))
    if mine is not None and its is not None and not mine.equals(its):
        raise ValueError(f"scores and bits must be of the same runs in the same order, got other numbers of {run!r}")
    return scores.transpose(run, ...) if run in names else scores
