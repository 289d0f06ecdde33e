"""Mechanisms whose ε is known, and the scores of the strongest attack.

The adversary is the strongest that the truth allows: its errors lie on the trade-off function f itself. The
false-positive rate of a z′ run's score is uniform. A run of z exceeds a score whose false-positive rate is u with
probability 1 − f(u).
"""

from dataclasses import asdict, dataclass
from functools import lru_cache

import numpy as np
from scipy.special import ndtr, ndtri

from dpsub import accounting

NORMAL_SCORES = np.linspace(-9, 9, 20_001)


@dataclass(frozen=True)
class Gaussian:
    """A mechanism that attains μ-GDP."""

    mu: float

    def epsilon(self, delta):
        """The true ε at δ."""
        return accounting.gdp_epsilon(self.mu, delta)

    def tradeoff(self, fpr):
        """The least false-negative rate at each false-positive rate."""
        return np.asarray(ndtr(-ndtri(fpr) - self.mu))


@dataclass(frozen=True)
class Drifting(Gaussian):
    """μ-GDP at each observation, whose place and spread depend on all scores and coins before it."""

    def scores(self, in_z, rng):
        """Observations in order, each with a coin of its own."""
        noises = rng.normal(size=len(in_z)).tolist()
        scores, place = np.empty(len(in_z)), 0.0
        for t, (noise, own) in enumerate(zip(noises, in_z.tolist(), strict=True)):
            scores[t] = place + (1 + (place > 0)) * (noise + self.mu * own)
            place = 0.9 * scores[t] + own
        return scores


@dataclass(frozen=True)
class SortedByLuck(Gaussian):
    """μ-GDP at each observation, at a place that makes ranks lie.

    After a group of observations in which z came up more often than not, all later scores are made lower, otherwise
    higher, each time by half as much. Given the past, a score is N(0, 1) or N(μ, 1) at a place that is known. But in
    the end groups lie above others because z came up more often in them.
    """

    together: int = 16  # observations at one place

    def scores(self, in_z, rng):
        ends = range(self.together, len(in_z), self.together)
        groups = np.array_split(in_z, ends)
        luck = np.array([np.sign(group.mean() - 0.5) for group in groups])
        halved = 10 * 2.0 ** np.arange(len(groups), 0, -1)
        places = -np.concatenate(([0.0], np.cumsum(luck * halved)[:-1]))
        places = np.repeat(places, [len(group) for group in groups])
        return places + rng.normal(size=len(in_z)) + self.mu * in_z


@dataclass(frozen=True)
class SampledGaussian:
    """DP-SGD with one record substituted; the adversary sees every step."""

    noise_multiplier: float
    sample_rate: float
    steps: int

    def epsilon(self, delta):
        interval = accounting.epsilon_interval(**asdict(self), delta=delta, adjacency="substitute")
        return float(interval.lower)

    def tradeoff(self, fpr):
        return accounting.tradeoff(fpr, **asdict(self), adjacency="substitute")


@dataclass(frozen=True)
class RandomizedResponse:
    """One bit, reported truthfully with probability e^loss/(1 + e^loss): far from a Gaussian mechanism."""

    loss: float

    def epsilon(self, delta):
        odds = np.exp(self.loss)
        return float(np.log(max(odds * (1 - delta) - delta, 1.0)))

    def tradeoff(self, fpr):
        steep = 1 - np.exp(self.loss) * fpr
        return np.maximum(steep, np.exp(-self.loss) * (1 - fpr))


@lru_cache(maxsize=16)
def inverse_tradeoff(truth):
    """The normal scores of f(u), increasing, and those of u."""
    fnr = np.clip(truth.tradeoff(ndtr(NORMAL_SCORES)), 1e-300, 1 - 1e-16)
    return ndtri(fnr[::-1]), NORMAL_SCORES[::-1]


def strongest_scores(truth, bits, rng):
    """(runs,) the scores of the strongest attack on runs with these bits.

    Those of Drifting and SortedByLuck are observations in order, each with a coin of its own.
    """
    in_z = np.asarray(bits) == 0
    if isinstance(truth, Drifting | SortedByLuck):
        return truth.scores(in_z, rng)
    negative = ndtri(rng.random(len(in_z)))
    # f is its own inverse.
    positive = np.interp(negative, *inverse_tradeoff(truth))
    return -np.where(in_z, positive, negative)
