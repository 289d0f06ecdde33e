r"""Tests of a claim from how many guesses of many coins are right, in one run.

There are m coins, one for each pair of records, and the mechanism's output is used to guess r of them, where r is fixed
in advance. Let C be the number of right guesses. Flipping one coin replaces one record. A coin may have s sides instead
of 2: then one of s candidates is the record, each with the same probability.

`of_tradeoff` tests a trade-off function f. Write :math:`p_c = P(C = c)`. Turning a coin that is guessed rightly to
another side takes c to c - 1. A wrong guess becomes right by one of the s - 1 other sides. So, averaged over the coins,
for every k

.. math:: \frac{1}{s-1} \sum_{c \ge k-1} \frac{r-c}{m} p_c \;\ge\; f\Big(1 - \sum_{c \ge k} \frac{c}{m} p_c\Big).

If :math:`P(C \ge v) \ge \alpha`, these inequalities bound both sums from below, for k = v, v - 1, …, 1 in turn. At the
end the sums are at least R and H. They add up to r/m, so the claim is refuted if R + H > r/m.

`of_odds` tests (ε, δ)-DP.

**More than two sides under (ε, δ)-DP.** Given the output and all other coins, the excess of a right guess's
probability over :math:`p = e^ε/(e^ε + s - 1)` is at most (1 - p)δ on average. Let the guesses be judged one after the
other, in random order, and let :math:`b_j` be the largest probability of a binomial distribution of j trials and p.
With j guesses to come, an excess adds to P(C ≥ v) at most itself times :math:`b_j`. So

.. math:: P(C \ge v) \le P(B \ge v) + m δ (1 - p) \frac{1}{r} \sum_{j < r} b_j

with B ~ Binomial(r, p), and :math:`b_j^2 \le 1/(2 e j p (1 - p))` by Herzog (1947).

Source: Mahloujifar et al. (2025) for `of_tradeoff`; Steinke et al. (2023), section 5 and appendix D, for `of_odds` with
two sides.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy.special import betainc, betaincinv, expit, logit

from dpsub.estimators.numerics import Array, Tested, crossing

SCANNED = 65  # values of ε: it is not known that p-values increase with it


class Seen(NamedTuple):
    """How many guesses were right, how many were made, of how many pairs, and of how many candidates each."""

    correct: int
    guesses: int
    pairs: int
    candidates: int = 2


def of_tradeoff(claim: Tested, seen: Seen, alpha: float) -> float:
    """The largest parameter whose trade-off function the guesses refute; 0 if they refute none."""

    def excess(parameter: float) -> float:
        return room_left(claim, parameter, seen, alpha)

    return crossing(excess, 0.0, claim.most) if seen[0] and excess(0.0) < 0 else 0.0


def room_left(claim: Tested, parameter: float, seen: Seen, alpha: float) -> float:
    """What R + H leave of r/m; negative if the claim is refuted."""
    correct, guesses, pairs, candidates = seen
    right = alpha * correct / pairs
    wrong = alpha * (guesses - correct) / pairs
    room = guesses / pairs - right - wrong
    # `right` and `wrong` are the least Σ_{c ≥ k} c p_c / m and Σ_{c ≥ k} (r - c) p_c / m. By the inequality above, the
    # second grows by `more` at k - 1, its new term (r - k + 1) p_{k-1} / m. So the first grows by
    # more (k - 1) / (r - k + 1). Here `count` is k - 1.
    for count in range(correct - 1, -1, -1):
        more = (candidates - 1) * float(claim.tradeoff(np.array(1 - min(right, 1.0)), parameter)) - wrong
        if more <= 0 or room < 0:  # nothing changes any more, or the claim is refuted already
            break
        added = count / (guesses - count) * more
        right, wrong, room = right + added, wrong + more, room - more - added
    return room


def of_odds(delta: float, seen: Seen, alpha: float) -> float:
    """The largest ε whose (ε, δ)-DP the guesses refute; 0 if they refute none.

    It exceeds the true ε with probability at most alpha even if `p_values` should fall somewhere. Let v be the fewest
    right guesses that refute some ε above the truth. The mechanism has this larger ε, too, so its p-value bounds the
    probability of v or more right guesses.
    """
    correct, guesses, _, candidates = seen
    if not correct:
        return 0.0
    most = float(logit(betaincinv(correct, guesses - correct + 1.0, alpha))) + math.log(candidates - 1)
    if most <= 0:
        return 0.0

    def excess(epsilon: float) -> float:
        return float(p_values(np.array([epsilon]), delta, seen)[0]) - alpha

    grid = np.linspace(0.0, most, SCANNED)
    [refuted] = np.nonzero(p_values(grid, delta, seen) < alpha)
    if not len(refuted):
        return 0.0
    last = int(refuted[-1])
    return crossing(excess, float(grid[last]), float(grid[min(last + 1, SCANNED - 1)]))


def p_values(epsilons: Array, delta: float, seen: Seen) -> Array:
    r"""Bounds on the probability of so many right guesses under (ε, δ)-DP, for each ε.

    With two candidates they are :math:`P(B \ge v) + 2m\delta \max_{1\le i\le v} P(v > B \ge v-i)/i` with
    B ~ Binomial(r, e^ε/(1 + e^ε)).
    """
    correct, guesses, pairs, candidates = seen
    others = math.log(candidates - 1)
    rates, failing = expit(epsilons - others), expit(others - epsilons)

    def at_least(counts: Array) -> Array:
        return np.where(counts > 0, betainc(np.maximum(counts, 1.0), guesses - np.maximum(counts, 1.0) + 1, rates), 1.0)

    tail = at_least(np.full(len(rates), float(correct)))
    if candidates > 2:
        likeliest = 1 / guesses + np.sqrt(2 / (math.e * guesses * rates * failing))
        added = pairs * delta * failing * np.minimum(likeliest, 1.0)
        return np.asarray(np.minimum(tail + added, 1.0))

    def mean(spans: Array) -> Array:
        return np.asarray((at_least(correct - spans) - tail) / spans)

    # The mean of the i probabilities below v rises with i up to its maximum, and falls behind it.
    low, high = np.ones(len(rates)), np.full(len(rates), float(max(correct, 1)))
    while (low < high).any():
        middle = np.floor((low + high) / 2)
        rising = mean(middle + 1) >= mean(middle)
        low, high = np.where(rising & (low < high), middle + 1, low), np.where(rising, high, middle)
    return np.asarray(np.minimum(tail + 2 * pairs * delta * mean(low), 1.0))


@lru_cache(maxsize=128)
def taken_by_delta(delta: float, perfect: Seen, alpha: float) -> float:
    """How much δ takes of what `of_odds` shows if all guesses are right: 1 for all of it."""
    without = of_odds(0.0, perfect, alpha)
    return 1 - of_odds(delta, perfect, alpha) / without if without > 0 else 0.0
