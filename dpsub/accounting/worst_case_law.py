r"""The law of the sum over T steps that the adversary of S1 sees, in units of the clipping bound.

Given z it is :math:`\sum_k \mathrm{Bin}(k; T, q)\, N(k, T\sigma^2)`. Given z′ it is the mirror image or, if the slot is
empty, N(0, Tσ²) (*Beyond Membership*, equations 2 and 3).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import gammaln, log_ndtr, logsumexp, ndtri_exp, xlog1py, xlogy

from dpsub._core import checks
from dpsub.accounting.dominating_pairs import NOISE, Array, Pair

MOST_STEPS = 10**6  # of `worst_case_epsilon`: a few seconds
TERMS = 2**18  # of the sum, computed at once


@dataclass(frozen=True)
class IndependentBatches:
    """What the adversary of S1 sees if each step samples the record with probability q, independently of other steps.

    In the units used, z moves a batch's sum by 1. z′ moves it by −1 if the worlds are mirrored, otherwise by 0. Methods
    take a coin for each run, 0 for the world with z, and return one number for each run.
    """

    sigma: float
    sample_rate: float
    steps: int
    mirrored: bool = False

    def _moved(self, coins: NDArray[np.int64]) -> NDArray[np.int64]:
        """How far the record moves the sum of a batch that holds it."""
        return np.where(coins == 0, 1, -1 if self.mirrored else 0)

    @cached_property
    def _binomial(self) -> tuple[Array, Array]:
        """The counts 0 … steps, and the log-probability that the record is sampled each number of times."""
        counts = np.arange(self.steps + 1.0)
        log_weights = (
            gammaln(self.steps + 1) - gammaln(counts + 1) - gammaln(self.steps - counts + 1)
            + xlogy(counts, self.sample_rate) + xlog1py(self.steps - counts, -self.sample_rate)
        )  # fmt: skip
        return counts, log_weights

    def sums(self, coins: NDArray[np.int64], rng: np.random.Generator) -> Array:
        """The sum over all steps."""
        sampled = rng.binomial(self.steps, self.sample_rate, len(coins))
        noise = np.sqrt(self.steps) * self.sigma * rng.standard_normal(len(coins))
        return np.asarray(self._moved(coins) * sampled + noise)

    def ratios_of_sums(self, sums: Array) -> Array:
        """log Pr(sum | z) − log Pr(sum | z′), increasing in the sum.

        The Gaussian factor that both worlds share is cancelled before the summation, so large sums do not overflow.
        """
        variance = self.steps * self.sigma**2
        counts, weights = self._binomial
        weights = weights - counts**2 / (2 * variance)
        # Only counts that contribute somewhere in the range of the sums are kept; other terms are below e^-50 of the
        # largest. The exponent is concave in the count, so these counts lie between those that matter at the two ends.
        reach = np.abs(sums).max(initial=0.0)
        terms = weights + counts * np.array([[-reach], [reach]]) / variance
        matter = np.flatnonzero((terms >= terms.max(axis=1, keepdims=True) - 50).any(axis=0))
        kept = slice(matter[0], matter[-1] + 1)
        weights, slopes = weights[kept], counts[kept] / variance

        def log_mixture(x: Array) -> Array:
            parts = []
            for part in np.array_split(x, len(x) * len(slopes) // TERMS + 1):
                terms = weights + slopes * part[:, None]
                top = terms.max(axis=1)
                terms -= top[:, None]
                parts.append(top + np.log(np.exp(terms, out=terms).sum(axis=1)))
            return np.concatenate(parts)

        return log_mixture(sums) - log_mixture(-sums) if self.mirrored else log_mixture(sums)

    def ratios(self, coins: NDArray[np.int64], rng: np.random.Generator) -> Array:
        """The log-likelihood ratio of all that is seen step by step."""
        pair = Pair("substitute" if self.mirrored else "remove", self.sigma, self.sample_rate)
        moved, total = self._moved(coins), np.zeros(len(coins))
        for _ in range(self.steps):
            sampled = rng.random(len(coins)) < self.sample_rate
            total += pair.loss(moved * sampled + self.sigma * rng.standard_normal(len(coins)))
        return total

    def log_above(self, x: float, sign: int) -> float:
        """log Pr(sum > x), given z (`sign` +1) or the mirrored z′ (−1)."""
        counts, weights = self._binomial
        return float(logsumexp(weights + log_ndtr((sign * counts - x) / (np.sqrt(self.steps) * self.sigma))))


@dataclass(frozen=True)
class SecretEpochs:
    """What the adversary of S1 sees if z is in one batch of each epoch, and z′ moves nothing.

    The batch is drawn anew for each epoch and kept secret. Units and methods are those of `IndependentBatches`.
    """

    sigma: float
    batches: int
    epochs: int

    def sums(self, coins: NDArray[np.int64], rng: np.random.Generator) -> Array:
        noise = np.sqrt(self.epochs * self.batches) * self.sigma * rng.standard_normal(len(coins))
        return np.asarray((coins == 0) * self.epochs + noise)

    def ratios_of_sums(self, sums: Array) -> Array:
        return np.asarray(self.epochs * (2 * sums - self.epochs) / (2 * self.epochs * self.batches * self.sigma**2))

    def ratios(self, coins: NDArray[np.int64], rng: np.random.Generator) -> Array:
        total = np.zeros(len(coins))
        for _ in range(self.epochs):
            place, ratio = rng.integers(0, self.batches, len(coins)), np.full(len(coins), -np.inf)
            for batch in range(self.batches):
                seen = (coins == 0) * (place == batch) + self.sigma * rng.standard_normal(len(coins))
                ratio = np.logaddexp(ratio, (2 * seen - 1) / (2 * self.sigma**2))
            total += ratio - np.log(self.batches)
        return total


Law = IndependentBatches | SecretEpochs


@checks.checked("sample_rate", "delta", noise_multiplier=NOISE, steps=partial(checks.whole, at_most=MOST_STEPS))
def worst_case_epsilon(*, noise_multiplier: float, sample_rate: float, steps: int, delta: float) -> float:
    r"""The exact substitute ε against an adversary who sees only the sum over all steps.

    Infinitely many runs of S1 would show this ε. `epsilon` covers an adversary who sees every step. At q = 1 the two
    agree; elsewhere they differ by what the threat model hides, not by what a finite number of runs fails to show.

    The likelihood ratio increases in the sum x, so the best event at ε is the half-line from the x whose log-ratio is
    ε, and δ(ε) follows from the tails of the two mixtures. The arguments are those of `epsilon`; `steps` is one number,
    at most 1e6.

    Source: *Beyond Membership*, section 3.1, equation 3.

    >>> round(worst_case_epsilon(noise_multiplier=1.6772842407, sample_rate=0.0625, steps=500, delta=1e-5), 4)
    7.9237
    """
    law = IndependentBatches(noise_multiplier, sample_rate, steps, mirrored=True)

    def ratio(x: float) -> float:
        return float(law.ratios_of_sums(np.array([x]))[0])

    def excess(x: float) -> float:
        """Increases with δ at the ratio of x, and is 0 where that is `delta`. It is accurate for δ close to 0 or 1."""
        above, weighted = law.log_above(x, 1), ratio(x) + law.log_above(x, -1)
        if delta < 0.5:
            return above + math.log(max(-math.expm1(min(weighted - above, 0.0)), 1e-300)) - math.log(delta)
        return (1 - delta) - math.exp(law.log_above(-x, -1)) - math.exp(min(weighted, 0.0))

    if excess(0.0) <= 0:
        return 0.0
    beyond = float(ndtri_exp(math.log(delta) - math.log(2)))
    farthest = steps - math.sqrt(steps) * noise_multiplier * beyond  # less than δ lies beyond, in either world
    return ratio(float(brentq(excess, 0.0, farthest, xtol=1e-10)))
