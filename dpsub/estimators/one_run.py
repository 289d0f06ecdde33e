"""Many pairs in one run: guesses of their coins, with abstention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import bdtr

from dpsub._core import checks
from dpsub.estimators.scores_and_marks import refuse_rows_twice

UNLIKELY = 1e-9  # fair coins fall so rarely
TIES = 0x636F696E  # a seed of its own: what breaks ties must say nothing about coins


class Guesses(NamedTuple):
    """Guesses of coins, as `one_run_epsilon_lower_bound` takes them: `one_run_epsilon_lower_bound(*guesses, …)`.

    Attributes:
        correct: how many guesses are right. A tuple for several numbers of guesses.
        guesses: how many there are. The other pairs are abstained from. A tuple for several.
        pairs: how many pairs there are, of all models together.
    """

    correct: int | tuple[int, ...]
    guesses: int | tuple[int, ...]
    pairs: int


def one_run_guesses(
    scores: ArrayLike, bits: ArrayLike, *, guesses: int | Sequence[int], centre: float | str = 0.0
) -> Guesses:
    """Guess the coins of the pairs with the clearest scores, and abstain from the others.

    The guesses depend on the scores alone, never on the bits. So a bound of them is valid whatever the centre is; a
    centre between the worlds makes it tight. The number of guesses must be fixed before one looks at the bits.

    Args:
        scores: (pairs,) or (models, pairs), higher speaks for z. Pairs of several models are guessed together.
        bits: shaped like scores, 0 where z was in the slot and 1 where z′ was.
        guesses: r, from 1 to the number of pairs of all models; or a sequence of several, which then share the bound's
            alpha.
        centre: what a score is compared with.

            - A number: the r scores that are farthest from it are guessed, those above it as z. 0 is right for
              `step_score` of `audit_one_run` with `subtract_expected`, and for gradient pairs.
            - "median": the same, with the median of each model's scores. For scores whose centre is not known, such as
              those of final models.

    Returns:
        How many guesses are correct, how many there are, and how many pairs. Among equal scores a fixed seed draws
        which are guessed, since the order of pairs may depend on the coins.

    Raises:
        ValueError: if shapes differ, a score is not finite, r is larger than the number of pairs, the bits are not
            fair coins: 0 or 1 nearly always, or the same in two models; if a pair is there twice, which scores with the
            coordinates `seed` and `number` tell, and bare arrays do not; or if the scores are of a training's steps.

    Source: Steinke, Nasr and Jagielski (2023), Algorithm 1, for guesses with abstention.

    >>> one_run_guesses([3.0, -2.0, 0.5, -0.1], [0, 1, 1, 0], guesses=2)
    Guesses(correct=2, guesses=2, pairs=4)
    >>> one_run_guesses([3.0, -2.0, 0.5, -0.1], [0, 1, 1, 0], guesses=(2, 4))
    Guesses(correct=(2, 2), guesses=(2, 4), pairs=4)
    """
    table, worlds = _checked(scores, bits)
    numbers = checks.array("guesses", guesses, kind=np.int64, at_least=1, at_most=table.size)
    if not isinstance(centre, str):
        table = table - checks.real("centre", centre)
    elif checks.choice("centre", centre, ("median",)):
        table = table - np.median(table, axis=1, keepdims=True)
    made = np.atleast_1d(numbers).tolist()
    right = [_right(table.ravel(), worlds.ravel() == 0, number) for number in made]
    if numbers.ndim:
        return Guesses(tuple(right), tuple(made), table.size)
    return Guesses(right[0], made[0], table.size)


def _right(scores: NDArray[np.float64], in_z: NDArray[np.bool_], number: int) -> int:
    """How many of the clearest guesses are right."""
    drawn = np.random.default_rng(TIES).permutation(scores.size)
    clearest = np.lexsort((drawn, -np.abs(scores)))[:number]
    return int(((scores[clearest] >= 0) == in_z[clearest]).sum())


def _checked(scores: ArrayLike, bits: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.int8]]:
    """Scores and bits as (models, pairs)."""
    if "observation" in getattr(scores, "dims", ()):
        raise ValueError(
            "scores must be of pairs in one training or more, got observations of steps: epsilon_lower_bound "
            "takes these"
        )
    refuse_rows_twice(scores, bits)
    table = checks.array("scores", scores)
    worlds = checks.array("bits", bits, shape=table.shape, kind=np.int8, at_least=0, at_most=1)
    if table.ndim not in (1, 2) or not table.size:
        raise ValueError(f"scores must have shape (pairs,) or (models, pairs), neither of them 0, got {table.shape}")
    of_models = worlds.reshape(-1, worlds.shape[-1])
    ones = int(of_models.sum())
    if 2 * bdtr(min(ones, worlds.size - ones), worlds.size, 0.5) < UNLIKELY:
        raise ValueError(f"bits must be fair coins, one for each pair, got {ones} ones among {worlds.size}")
    models, pairs = of_models.shape
    if 2.0**-pairs * models**2 < UNLIKELY and len(np.unique(of_models, axis=0)) < models:
        raise ValueError("bits must be tossed anew for each model, got two models with the same coins")
    return table.reshape(of_models.shape), of_models
