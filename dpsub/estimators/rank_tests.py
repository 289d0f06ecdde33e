r"""The exact rank test of a claim, at thresholds fixed before looking at the scores.

The threshold is the k-th largest score of the negative world. Whatever the law of the scores, its false-positive rate
has the law Beta(k, n0 - k + 1), or is stochastically smaller if scores are tied. Under the claim f, the number of false
negatives among n1 runs is stochastically at least Binomial(n1, f(FPR)). So

.. math:: p = E_{U \sim \mathrm{Beta}(k, n_0-k+1)}\big[\mathrm{BinomialCDF}(\mathrm{FN};\, n_1, f(U))\big]

is a p-value of the claim, without nuisance parameters.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from scipy.special import ndtri

from dpsub.estimators.beta_tails import probability_above
from dpsub.estimators.claims import Array, Claim, crossing

LEAST_P = 1e-16  # below every share of alpha
LEAST_RUNS = 8  # with z′, so that the ranks differ
# Ranks as shares of the negative world's runs, with each rank's share of alpha. If the trade-off curve is like a
# Gaussian mechanism's, all middle ranks refute about the same, and sharing alpha costs less among two than among eight.
# The outer ranks are for attacks that are certain of few models, or of nearly all.
MIDDLING = {0.12: 0.48, 0.35: 0.48, 0.03: 0.02, 0.6: 0.02}
# Under (ε, δ)-DP, the pairs of rates that refute most are those with one small rate.
SMALLEST, LARGEST_SHARE, PER_END = 3, 0.3, 4


def fixed_ranks(claim: Claim, negatives: int) -> dict[int, float]:
    """Ranks among the negative world's scores, counted from the largest, and each one's share of alpha."""
    if claim.assumes == "none":
        largest = LARGEST_SHARE * negatives
        near = np.geomspace(min(SMALLEST, largest), largest, PER_END).round().clip(1).astype(int)
        ends = np.unique(np.concatenate((near, negatives + 1 - near))).tolist()
        return dict.fromkeys(ends, 1 / len(ends))
    ranks: dict[int, float] = {}
    for share, weight in MIDDLING.items():
        rank = max(1, round(share * negatives))
        ranks[rank] = ranks.get(rank, 0.0) + weight
    return ranks


def p_value(
    claim: Claim, parameter: float, *, rank: int, negatives: int, false_negatives: int, positives: int
) -> float:
    """An upper bound on the probability of at most this many false negatives if the claim holds."""
    if false_negatives >= positives:
        return 1.0
    # Binomial(n, f) ≤ m as often as Beta(m + 1, n - m) > f.
    rate = np.array([float(rank)]), np.array([negatives - rank + 1.0])
    count = np.array([false_negatives + 1.0]), np.array([float(positives - false_negatives)])
    return float(probability_above(claim, parameter, rate, count)[0])


def probit(p: float) -> float:
    """Where a Gaussian's tail is p: nearly a straight line in the parameter, so its root is found in few steps."""
    return float(ndtri(min(max(p, LEAST_P), 1 - LEAST_P)))


def smallest_parameter(
    claim: Claim, positives: Array, negatives: Array, ranks: dict[int, float], alpha: float
) -> tuple[float, float | None]:
    """The largest parameter refuted at any of the ranks, and the score at that rank. Both samples must be sorted."""
    scores = {rank: float(negatives[-rank]) for rank in ranks}
    missed = {rank: int(np.searchsorted(positives, score, side="right")) for rank, score in scores.items()}
    best, decided = largest_refuted(claim, missed, len(negatives), len(positives), ranks, alpha)
    return best, None if decided is None else scores[decided]


def largest_refuted(
    claim: Claim, false_negatives: dict[int, int], negatives: int, positives: int, ranks: dict[int, float], alpha: float
) -> tuple[float, int | None]:
    """The largest parameter refuted by the false negatives at any of the ranks, and that rank."""
    best, decided = 0.0, None
    for rank, share in ranks.items():
        counts = {
            "rank": rank,
            "negatives": negatives,
            "false_negatives": false_negatives[rank],
            "positives": positives,
        }

        @cache
        def excess(parameter: float, counts: dict[str, int] = counts, share: float = share) -> float:
            return probit(p_value(claim, parameter, **counts)) - probit(share * alpha)

        if excess(best) < 0:
            best, decided = crossing(excess, best, claim.most), rank
    return best, decided
