"""From the scores of one run's pairs to guesses of their coins."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpsub._core import checks
from dpsub.estimators.scores import scores_and_bits
from dpsub.estimators.threshold_rules import UNFAIR

TIES = 0x74696573  # a seed of its own: what breaks ties must say nothing about coins

Counts = NDArray[np.int64]


def count_guesses(scores: ArrayLike, bits: ArrayLike, fractions: ArrayLike = 1.0) -> tuple[Counts, Counts]:
    """How many of the coins that the largest scores guess are guessed rightly.

    A pair with a score above 0 is guessed to be z, and any other z′. The guesses are made for the pairs whose scores
    are farthest from 0; the others are left out. Among equal distances, a fixed seed draws which pairs come first: the
    order in which the pairs are given may depend on the coins.

    Args:
        scores: (pairs,) of one run; a score above 0 speaks for z. What 0 means is fixed by theory, never by the coins.
        bits: (pairs,) the fair coins: 0 if the run had the pair's z, 1 if it had its z′.
        fractions: of the pairs that are guessed, above 0 and at most 1; one, or several. Fix them before you look at
            the scores.

    Returns:
        The numbers of right guesses and of guesses, (fractions,) each, for `one_run_epsilon_lower_bound`.

    Raises:
        ValueError: if scores, bits or fractions are not as described, or if bits cannot be those of a fair coin.

    Source: Steinke et al. (2023), Algorithm 1, where pairs stand for records that are in or out; Keinan et al. (2025),
    Algorithm 1, for pairs.

    >>> count_guesses([0.3, -2.0, 1.0, -0.1], [0, 1, 1, 0], fractions=(0.5, 1))
    (array([1, 2]), array([2, 4]))
    """
    columns, in_z, several = scores_and_bits(scores, bits)
    if several:
        raise ValueError(f"scores must have shape (pairs,), got {columns.shape}: give one column")
    of_z, pairs = int(in_z.sum()), len(in_z)
    if abs(of_z - pairs / 2) > math.sqrt(pairs * math.log(2 / UNFAIR) / 2):  # Hoeffding's inequality
        raise ValueError(
            f"bits must be those of a fair coin, got {of_z:,} of {pairs:,} pairs with bit 0: toss one for each pair"
        )
    shares = np.atleast_1d(checks.rates("fractions", fractions))
    if shares.ndim != 1 or not shares.size or not (shares > 0).all():
        raise ValueError(f"fractions must be one or several numbers above 0 and at most 1, got {fractions!r}")
    farthest_first = np.lexsort((np.random.default_rng(TIES).permutation(pairs), -np.abs(columns[:, 0])))
    right = np.cumsum(((columns[:, 0] > 0) == in_z)[farthest_first])
    guesses = np.maximum(np.round(shares * pairs), 1).astype(np.int64)
    return right[guesses - 1].astype(np.int64), guesses
