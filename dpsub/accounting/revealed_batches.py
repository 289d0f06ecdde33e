"""The last resort of `engine="auto"`, for when no grid helps: an upper bound in closed form."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.optimize import brentq
from scipy.special import log_ndtr

from dpsub.accounting.delta_to_tradeoff import tradeoff
from dpsub.accounting.dominating_pairs import Array
from dpsub.accounting.gaussian import gdp_epsilon


@dataclass(frozen=True)
class RevealedCurve:
    """δ(ε) against an adversary who is also told which batches the record was in: an upper bound in closed form.

    The number of these batches has a binomial law. Given that number, the training is one Gaussian mechanism.
    """

    distance: float
    noise_multiplier: float
    sample_rate: float
    steps: int

    def epsilon(self, delta: float) -> tuple[float, float]:
        if self._delta(0.0) <= delta:
            return 0.0, 0.0
        enough = gdp_epsilon(self.distance * math.sqrt(self.steps) / self.noise_multiplier, delta)
        while self._delta(enough) > delta:
            enough = 1.001 * enough + 1e-6
        root = float(brentq(lambda epsilon: self._delta(epsilon) - delta, 0.0, enough, xtol=1e-9))
        return 0.0, min(root + 2e-9, enough)

    def delta(self, epsilon: float) -> tuple[float, float]:
        return 0.0, self._delta(epsilon)

    def tradeoff(self, fpr: Array) -> tuple[Array, Array]:
        epsilon = np.linspace(0, self.epsilon(1e-12)[1], 1000)
        return tradeoff(fpr, epsilon, np.array([self._delta(e) for e in epsilon])), np.ones_like(fpr)

    def _delta(self, epsilon: float) -> float:
        counts, weights, rest = self._batches
        mu = self.distance * np.sqrt(counts) / self.noise_multiplier
        log_p, log_q = log_ndtr(mu / 2 - epsilon / mu), log_ndtr(-mu / 2 - epsilon / mu)
        return float(np.exp(weights + log_p) @ -np.expm1(np.minimum(epsilon + log_q - log_p, 0.0))) + rest

    @cached_property
    def _batches(self) -> tuple[Array, Array, float]:
        """The numbers of batches, from 1; their log-probabilities; and the probability of numbers that are left out."""
        from scipy.stats import binom  # its import takes as long as the rest of this room

        law = binom(self.steps, self.sample_rate)
        spread = 40 * law.std() + 1000
        least, most = max(math.floor(law.mean() - spread), 0), min(math.ceil(law.mean() + spread), self.steps)
        counts = np.arange(max(least, 1), most + 1.0)
        return counts, law.logpmf(counts), float(law.cdf(least - 1) + law.sf(most))
