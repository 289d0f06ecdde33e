r"""The exact rank test of a claim, at thresholds fixed before looking at the scores.

The threshold is the k-th largest score of the negative world. Whatever the scores' law, its false-positive rate is
distributed Beta(k, n0 - k + 1), or below that where scores are tied; and under the claim f the number of false
negatives among n1 is at least Binomial(n1, f(FPR)). So

.. math:: p = E_{U \sim \mathrm{Beta}(k, n_0-k+1)}\big[\mathrm{BinomialCDF}(\mathrm{FN};\, n_1, f(U))\big]

is a p-value of the claim, with no nuisance parameter.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy.optimize import brentq
from scipy.special import betaincc, betainccinv, betaincinv, betaln, ndtr, xlog1py, xlogy

from dpsub._claims import Array, Claim

RANKS = 8
SMALLEST_SHARE, LARGEST_SHARE = 0.02, 0.6  # of the negative world's runs


def fixed_ranks(negatives: int) -> list[int]:
    """Ranks among the negative world's scores, counted from the largest, geometric between the two shares."""
    shares = np.geomspace(SMALLEST_SHARE, LARGEST_SHARE, RANKS)
    return sorted({max(1, round(share * negatives)) for share in shares.tolist()})


@lru_cache(maxsize=256)
def _quantiles(rank: int, negatives: int, pieces: int) -> Array:
    """Quantiles of Beta(rank, negatives - rank + 1) at evenly spaced normal scores from -8 to 8."""
    z = np.linspace(-8, 8, 16 * pieces + 1)
    shape = (rank, negatives - rank + 1)
    return np.where(z < 0, betaincinv(*shape, ndtr(z)), betainccinv(*shape, ndtr(-z)))


@lru_cache(maxsize=256)
def _beta_nodes(rank: int, negatives: int, pieces: int, kinks: tuple[float, ...]) -> tuple[Array, Array]:
    """Nodes and weights for expectations over Beta(rank, negatives - rank + 1), Gauss–Legendre between breaks."""
    breaks = _quantiles(rank, negatives, pieces)
    breaks = np.unique(np.concatenate((breaks, [u for u in kinks if breaks[0] < u < breaks[-1]])))
    points, weights = np.polynomial.legendre.leggauss(8)
    half = np.diff(breaks)[:, None] / 2
    u = (breaks[:-1, None] + half * (1 + points)).ravel()
    log_density = xlogy(rank - 1, u) + xlog1py(negatives - rank, -u) - betaln(rank, negatives - rank + 1)
    return u, np.exp(log_density) * (half * weights).ravel()


def p_value(
    claim: Claim, parameter: float, *, rank: int, negatives: int, false_negatives: int, positives: int
) -> float:
    """The probability, at most, of so few false negatives if the claim holds."""
    if false_negatives >= positives:
        return 1.0
    # As a function of the rate the count's law is a step, the narrower the more positive runs there are to a negative.
    pieces = min(64, math.ceil(math.sqrt(positives / negatives)))
    u, weights = _beta_nodes(rank, negatives, pieces, claim.kinks(parameter))
    fnr = np.clip(claim.tradeoff(u, parameter), 0.0, 1.0)
    outside = 2 * float(ndtr(-8.0))
    return float(weights @ betaincc(false_negatives + 1, positives - false_negatives, fnr)) + outside


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
