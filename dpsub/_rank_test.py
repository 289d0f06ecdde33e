r"""The exact rank test of a claim, at thresholds fixed before looking at the scores.

The threshold is the k-th largest score of the negative world. Whatever the scores' law, its false-positive rate is
distributed Beta(k, n0 - k + 1), or below that where scores are tied; and under the claim f the number of false
negatives among n1 is at least Binomial(n1, f(FPR)). So

.. math:: p = E_{U \sim \mathrm{Beta}(k, n_0-k+1)}\big[\mathrm{BinomialCDF}(\mathrm{FN};\, n_1, f(U))\big]

is a p-value of the claim, with no nuisance parameter.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from scipy.optimize import brentq
from scipy.special import betaincc, betainccinv, betaincinv, ndtr

from dpsub._claims import Array, Claim

RANKS = 8
SMALLEST_SHARE, LARGEST_SHARE = 0.02, 0.6  # of the negative world's runs


def fixed_ranks(negatives: int) -> list[int]:
    """Ranks among the negative world's scores, counted from the largest, geometric between the two shares."""
    shares = np.geomspace(SMALLEST_SHARE, LARGEST_SHARE, RANKS)
    return sorted({max(1, round(share * negatives)) for share in shares.tolist()})


@lru_cache(maxsize=64)
def _beta_nodes(rank: int, negatives: int) -> tuple[Array, Array]:
    """Nodes and weights for expectations over Beta(rank, negatives - rank + 1).

    The trapezoidal rule in the normal score of U converges exponentially, in the tails too.
    """
    z = np.arange(-32, 33) / 4
    shape = (rank, negatives - rank + 1)
    u = np.where(z < 0, betaincinv(*shape, ndtr(z)), betainccinv(*shape, ndtr(-z)))
    weights = np.exp(-(z**2) / 2)
    return u, weights / weights.sum()


def p_value(
    claim: Claim, parameter: float, *, rank: int, negatives: int, false_negatives: int, positives: int
) -> float:
    """The probability, at most, of so few false negatives if the claim holds."""
    if false_negatives >= positives:
        return 1.0
    u, weights = _beta_nodes(rank, negatives)
    fnr = np.clip(claim.tradeoff(u, parameter), 0.0, 1.0)
    return float(weights @ betaincc(false_negatives + 1, positives - false_negatives, fnr))


def smallest_parameter(claim: Claim, positives: Array, negatives: Array, alpha: float) -> tuple[float, float | None]:
    """The largest parameter refuted at any of the fixed ranks, and the score at that rank; both samples sorted."""
    ranks = fixed_ranks(len(negatives))
    level = alpha / len(ranks)
    best, threshold = 0.0, None
    for rank in ranks:
        score = float(negatives[-rank])
        false_negatives = int(np.searchsorted(positives, score, side="right"))

        def excess(parameter: float, rank: int = rank, false_negatives: int = false_negatives) -> float:
            p = p_value(
                claim,
                parameter,
                rank=rank,
                negatives=len(negatives),
                false_negatives=false_negatives,
                positives=len(positives),
            )
            return p - level

        if excess(best) >= 0:
            continue
        unrefuted = best + 1.0
        while excess(unrefuted) < 0:
            unrefuted = 2 * unrefuted
        best, threshold = float(brentq(excess, best, unrefuted, xtol=1e-9)), score
    return best, threshold
