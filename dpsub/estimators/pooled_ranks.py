r"""The exact rank test of a claim over folds of runs, where each fold has a scorer of its own.

Each fold may be scored by what was learned from the folds before it, as `dpsub.distinguish(protocol="folds")` does. In
fold j the threshold is the k_j-th largest score of its negative world, and k_j depends on the numbers of runs alone.
Let FN_j be the false negatives there, and let M_j be Binomial(n1_j, f(U_j)) with U_j ~ Beta(k_j, n0_j - k_j + 1).

Given the bits and all earlier folds, fold j's scorer is fixed, so the rank test's argument applies: under the claim f,
FN_j is stochastically at least M_j, whose law does not depend on the earlier folds. So the sum of all FN_j is
stochastically at least the sum of independent M_j, and

.. math:: p = P\Big[\sum_j M_j \le \sum_j \mathrm{FN}_j\Big]

is a p-value of the claim. It decreases with f, so it increases with the parameter. With one fold it is the rank test's.

Cross-fitting, where each fold is scored by what was learned from all others, does not allow this: its folds depend on
each other both ways. Its p-values may only be combined by rules that hold under any dependence, such as K times the
least of K.

Measured by `python benchmarks/protocols.py --audits 400`: N models in all, N(μ, 1) against N(0, 1) along one direction
of d dimensions, which is learned as the difference of means. The mean bound on μ of 400 audits; at μ = 0, the share of
the bounds that are above 0:

===  =====  =  =========  ==============  =============  =========  =====
  d      N  μ  in sample  held out, 0.25  held out, 0.5  cross-fit  folds
===  =====  =  =========  ==============  =============  =========  =====
 50    256  0     100.0%            4.2%           4.0%       3.0%   3.0%
 50    256  1       1.04            0.20           0.26       0.28   0.31
 50    256  2       1.83            1.16           1.27       1.28   1.33
 50    512  0     100.0%            3.5%           4.2%       4.2%   3.8%
 50    512  1       1.00            0.41           0.48       0.51   0.53
 50    512  2       1.88            1.46           1.51       1.54   1.57
 50  2,048  0     100.0%            2.8%           4.2%       3.0%   4.0%
 50  2,048  1       0.97            0.74           0.78       0.80   0.80
 50  2,048  2       1.93            1.78           1.79       1.81   1.82
500    256  0     100.0%            3.0%           2.0%       3.0%   2.8%
500    256  1       2.50            0.03           0.03       0.03   0.04
500    256  2       2.86            0.36           0.49       0.57   0.59
500    512  0     100.0%            4.2%           4.0%       4.0%   5.2%
500    512  1       1.98            0.07           0.10       0.12   0.13
500    512  2       2.52            0.67           0.88       0.98   0.96
500  2,048  0     100.0%            5.0%           5.5%       4.0%   3.5%
500  2,048  1       1.32            0.34           0.44       0.50   0.49
500  2,048  2       2.13            1.31           1.49       1.57   1.54
===  =====  =  =========  ==============  =============  =========  =====

In sample: the best threshold, not valid. Held out: that share is learned from, and the others are judged by the rank
test. Cross-fit: the largest of three folds' bounds, each at alpha/3. Folds: this test, five folds after a share of
0.35. The standard errors of the means are at most 0.011.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache

import numpy as np
from scipy.special import betainc, betaincc, betaln, gammaln, xlog1py, xlogy

from dpsub.estimators.beta_tails import POINTS, WEIGHTS, law_breaks
from dpsub.estimators.claims import Array, Claim, crossing
from dpsub.estimators.rank_tests import fixed_ranks, p_value, probit

Ranks = tuple[int, ...]  # one for each fold
REACH = 9.0  # standard deviations of a binomial law that count
NEGLIGIBLE = 1e-40  # probabilities at the ends of a law, which are left out


def ranks_of_folds(claim: Claim, negatives: Sequence[int]) -> dict[Ranks, float]:
    """For each of the fixed ranks, its place in every fold in proportion, and its share of alpha.

    Args:
        claim: the family of claims.
        negatives: the number of runs with z′ in each fold, ≥ 1.
    """
    total = sum(negatives)
    found: dict[Ranks, float] = {}
    for rank, share in fixed_ranks(claim, total).items():
        ranks = tuple(min(max(1, round(rank * count / total)), count) for count in negatives)
        found[ranks] = found.get(ranks, 0.0) + share
    return found


def pooled_p_value(
    claim: Claim,
    parameter: float,
    *,
    ranks: Ranks,
    negatives: Sequence[int],
    positives: Sequence[int],
    false_negatives: int,
) -> float:
    """An upper bound on the probability of at most this many false negatives in all folds if the claim holds."""
    if false_negatives >= sum(positives):
        return 1.0
    folds = list(zip(ranks, negatives, positives, strict=True))
    if len(folds) == 1:
        [(rank, of_z_prime, of_z)] = folds
        return p_value(
            claim, parameter, rank=rank, negatives=of_z_prime, false_negatives=false_negatives, positives=of_z
        )
    start, law = _sum(false_negatives_law(claim, parameter, *fold) for fold in folds)
    return min(float(law[: max(false_negatives - start + 1, 0)].sum()), 1.0)


def largest_refuted(
    claim: Claim,
    missed: dict[Ranks, int],
    shares: dict[Ranks, float],
    negatives: Sequence[int],
    positives: Sequence[int],
    alpha: float,
) -> tuple[float, Ranks | None]:
    """The largest parameter refuted by the false negatives of all folds at any of the ranks, and these ranks."""
    best, decided = 0.0, None
    for ranks, share in shares.items():

        @cache
        def excess(parameter: float, ranks: Ranks = ranks, level: float = share * alpha) -> float:
            found = pooled_p_value(
                claim,
                parameter,
                ranks=ranks,
                negatives=negatives,
                positives=positives,
                false_negatives=missed[ranks],
            )
            return probit(found) - probit(level)

        if excess(best) < 0:
            best, decided = crossing(excess, best, claim.most), ranks
    return best, decided


def false_negatives_law(claim: Claim, parameter: float, rank: int, negatives: int, positives: int) -> tuple[int, Array]:
    """The law of Binomial(n1, f(U)): the first count, and the probabilities of it and the counts that follow.

    As in `beta_tails`, the integral over U is over the angle θ with u = sin²θ. Its pieces are short for the Beta law
    and, by the images of equal steps, for the binomial law, whose width is about the same in the angle of f(u).
    """
    if not positives:
        return 0, np.ones(1)
    a, b = float(rank), negatives - rank + 1.0
    own = law_breaks(np.array([a]), np.array([b]))[0]
    ends = np.clip(claim.tradeoff(np.sin(own[[0, -1]]) ** 2, parameter), 0.0, 1.0)
    high, low = np.arcsin(np.sqrt(ends))
    steps = np.linspace(low, high, 2 + math.ceil((high - low) * math.sqrt(positives)))
    images = claim.tradeoff(np.sin(steps) ** 2, parameter)
    kinks = np.array(claim.kinks(parameter))
    others = np.arcsin(np.sqrt(np.clip(np.concatenate((images, kinks)), 0.0, 1.0)))
    edges = np.sort(np.concatenate((own, np.clip(others, own[0], own[-1]))))
    half = np.diff(edges)[:, None] / 2
    rate = np.sin(edges[:-1, None] + half * (1 + POINTS)).ravel() ** 2
    weights = (2 * half * WEIGHTS).ravel() * np.exp(xlogy(a - 0.5, rate) + xlog1py(b - 0.5, -rate) - betaln(a, b))
    counted = weights > NEGLIGIBLE
    rate, weights = rate[counted], weights[counted]
    missed = np.clip(claim.tradeoff(rate, parameter), 0.0, 1.0)
    law = _mixture(missed, weights, positives)
    # What lies outside the pieces counts as no false negative, which can only make the p-value larger.
    law[0] += betainc(a, b, np.sin(own[0]) ** 2) + betaincc(a, b, np.sin(own[-1]) ** 2)
    return _trimmed(0, law)


def _mixture(rates: Array, weights: Array, trials: int) -> Array:
    """(trials + 1,): the probabilities of binomial counts, with rates that have these weights."""
    width = math.ceil(REACH * math.sqrt(trials)) + 20  # on both sides together; the deviation is at most √trials/2
    first = np.clip(np.floor(rates * trials - width / 2), 0, None).astype(np.int64)
    counts = first[:, None] + np.arange(width + 1)
    inside = counts <= trials
    counts = np.minimum(counts, trials)
    logarithms = (
        _coefficients(trials)[counts] + xlogy(counts, rates[:, None]) + xlog1py(trials - counts, -rates[:, None])
    )
    masses = np.where(inside, np.exp(logarithms), 0.0) * weights[:, None]
    return np.asarray(np.bincount(counts.ravel(), masses.ravel(), minlength=trials + 1), dtype=np.float64)


@lru_cache(maxsize=32)
def _coefficients(trials: int) -> Array:
    counts = np.arange(trials + 1)
    return np.asarray(gammaln(trials + 1) - gammaln(counts + 1) - gammaln(trials - counts + 1))


def _sum(laws: Iterable[tuple[int, Array]]) -> tuple[int, Array]:
    start, total = 0, np.ones(1)
    for first, law in laws:
        start, total = _trimmed(start + first, np.convolve(total, law))
    return start, total


def _trimmed(start: int, law: Array) -> tuple[int, Array]:
    kept = np.flatnonzero(law > NEGLIGIBLE)
    return start + int(kept[0]), law[kept[0] : kept[-1] + 1]
