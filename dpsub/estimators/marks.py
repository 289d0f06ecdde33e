"""What scores say of how they were made: it decides which bounds hold for them.

The marks are the names of dimensions, and coordinates. So they stay with the scores through selections, arithmetic and
files, and xarray refuses to concatenate scores that have a coordinate with scores that do not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpsub._core import checks

Of = Literal["step", "training"]
KINDS: dict[str, Of] = {"observation": "step", "run": "training", "model": "training"}  # by the rows' dimension


@dataclass(frozen=True, eq=False)
class Marks:
    """How scores were made, as far as they or their bits say it.

    Attributes:
        of: what a row is an observation of: one step, or a whole training. None for arrays without names.
        in_sample: whether the judged models were learned from.
        same_world: whether the world is the same at all steps of a training, and not tossed anew.
        folds: (runs,) each run's fold, if each fold has a scorer of its own.
    """

    of: Of | None
    in_sample: bool
    same_world: bool
    folds: NDArray[np.int64] | None


def marks_of(scores: Any, bits: Any, folds: ArrayLike | None, runs: int) -> Marks:
    """The marks of scores and bits. `folds` are those that a user gives beside them."""
    names, along = _named(scores, bits)
    return Marks(
        of=next((KINDS[name] for name in names if name in KINDS), None),
        in_sample=_any(along, "in_sample"),
        same_world=_any(along, "same_world"),
        folds=_folds(along["fold"].values if folds is None and "fold" in along else folds, runs),
    )


def no_pairs(scores: Any, bits: Any) -> None:
    """Refuse the scores of many pairs in one model, which are not independent as those of many models are."""
    names, along = _named(scores, bits)
    if "pair" in names or {"pair", "slot"} & along.keys():
        raise ValueError(
            "scores must be one for each model, got scores of many pairs in one model: guess the pairs by "
            "one_run_guesses, and give the guesses to one_run_epsilon_lower_bound"
        )


def _named(scores: Any, bits: Any) -> tuple[list[str], dict[str, Any]]:
    """The dimensions of scores and bits, and the coordinates that have a dimension."""
    named = [values for values in (scores, bits) if isinstance(getattr(values, "dims", None), tuple)]
    names = [str(dim) for values in named for dim in values.dims]
    return names, {str(name): of for values in named for name, of in values.coords.items() if of.ndim}


def _any(along: dict[str, Any], name: str) -> bool:
    """Whether some row has the mark. A mark that was lost, NaN, counts as one."""
    return name in along and bool((along[name] != 0).any())


def _folds(folds: ArrayLike | None, runs: int) -> NDArray[np.int64] | None:
    if folds is None:
        return None
    expected = f"folds must be whole numbers, one for each of the {runs} runs"
    checks.no_mask("folds", folds)
    try:
        given = np.asarray(folds)
        if given.dtype.kind not in "iuf" or not np.isfinite(given).all():
            raise TypeError
        with np.errstate(invalid="ignore"):
            numbers = given.astype(np.int64)
        whole = bool((numbers == given).all())
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise ValueError(f"{expected}, got {folds!r}") from None
    if not whole or numbers.shape != (runs,):
        raise ValueError(f"{expected}, got {'fractions' if not whole else f'shape {numbers.shape}'}")
    return numbers
