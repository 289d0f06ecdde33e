r"""dpsub's own engine: the curves of a training, from compositions on grids of losses.

`RevealedCurve` is its last resort for when no grid helps: an upper bound in closed form.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.optimize import brentq
from scipy.special import log_ndtr

from dpsub.accounting.composition import Composition, TooWide
from dpsub.accounting.discretisation import LOSS_ROUNDING, Step, loss_range, merge_outcomes, split_outcomes, spread
from dpsub.accounting.dominating_pairs import Array, Mechanisms, pairs
from dpsub.accounting.gaussian import gdp_epsilon
from dpsub.accounting.phases import Training

ENDS = (merge_outcomes, split_outcomes)
ROUNDING = 1e-15  # the error of a difference of two rates


@dataclass(frozen=True, eq=False)
class GridCurve:
    """δ(ε) of one adjacency: the largest of its directions, each bounded by two compositions."""

    directions: tuple[tuple[Composition, Composition], ...]

    def epsilon(self, delta: float) -> tuple[float, float]:
        lower = max(optimistic.epsilon(delta, rounding=-1) for optimistic, _ in self.directions)
        upper = max(pessimistic.epsilon(delta, rounding=1) for _, pessimistic in self.directions)
        slack = self.directions[0][0].steps * LOSS_ROUNDING
        return max(lower - slack, 0.0), upper + slack if upper > 0 else 0.0

    def delta(self, epsilon: float) -> tuple[float, float]:
        slack = self.directions[0][0].steps * LOSS_ROUNDING
        lower = max(optimistic.delta(epsilon + slack, rounding=-1) for optimistic, _ in self.directions)
        upper = max(pessimistic.delta(epsilon - slack, rounding=1) for _, pessimistic in self.directions)
        return lower, max(lower, upper)

    def tradeoff(self, fpr: Array) -> tuple[Array, Array]:
        try:
            low, high = (self._tradeoff(fpr, end, sign) for end, sign in ((1, 1), (0, -1)))
        except TooWide:
            return np.zeros_like(fpr), 1 - fpr
        return low, np.maximum(low, high)

    def _tradeoff(self, fpr: Array, end: int, rounding: int) -> Array:
        deltas = [direction[end].deltas(rounding=rounding) for direction in self.directions]
        most = max(map(len, deltas))
        worst = np.max([np.pad(delta, (0, most - len(delta)), mode="edge") for delta in deltas], axis=0)
        epsilon = np.arange(float(most)) * self.directions[0][0].mesh
        slack = self.directions[0][0].steps * LOSS_ROUNDING  # δ decreases by less than ε increases
        return tradeoff_of_curve(fpr, epsilon, np.clip(np.minimum.accumulate(worst) + rounding * slack, 0.0, 1.0))

    def deltas(self, epsilons: Array) -> tuple[Array, Array]:
        try:
            low, high = (self._deltas(epsilons, end, sign) for end, sign in ((0, -1), (1, 1)))
        except TooWide:
            return np.zeros_like(epsilons), np.ones_like(epsilons)
        return low, np.maximum(low, high)

    def _deltas(self, epsilons: Array, end: int, rounding: int) -> Array:
        mesh, slack = self.directions[0][0].mesh, self.directions[0][0].steps * LOSS_ROUNDING
        shifted = epsilons - rounding * slack
        every = [between_multiples(shifted, mesh, pair[end].deltas(rounding=rounding)) for pair in self.directions]
        return np.asarray(np.clip(np.max(every, axis=0) + slack * (shifted < 0), 0.0, 1.0))


def between_multiples(epsilons: Array, mesh: float, deltas: Array) -> Array:
    """δ at these ε, from δ at the multiples of the mesh from 0 on. In between it is linear in e^ε."""
    below = np.clip(np.floor(epsilons / mesh), 0.0, len(deltas) - 1.0)
    above = np.clip(epsilons - below * mesh, 0.0, mesh)
    part = np.exp(above - mesh) * np.expm1(-above) / np.expm1(-mesh)
    place = below.astype(np.int64)
    return np.asarray((1 - part) * deltas[place] + part * deltas[np.minimum(place + 1, len(deltas) - 1)])


def scale(worlds: str, mechanisms: Mechanisms, counts: Sequence[int]) -> float:
    """The standard deviation of one step's privacy loss in its worst direction: the root mean square over all steps."""
    of_phases = [max(spread(pair) for pair in pairs(worlds, *mechanism)) for mechanism in mechanisms]
    total = sum(count * deviation**2 for count, deviation in zip(counts, of_phases, strict=True))
    return math.sqrt(total / sum(counts))


def widest(worlds: str, mechanisms: Mechanisms, reach: float) -> float:
    """The widest range of one step's losses in any phase and direction."""
    every = (pair for mechanism in mechanisms for pair in pairs(worlds, *mechanism))
    return max(float(np.ptp(loss_range(pair, reach))) for pair in every)


def curves(
    worlds: str, mechanisms: Mechanisms, counts: Sequence[Sequence[int]], mesh: float, reach: float
) -> list[GridCurve]:
    """One curve for each row of `counts`, which holds the steps of each phase; all share their discretisations."""
    directions = list(zip(*(pairs(worlds, *mechanism) for mechanism in mechanisms), strict=True))
    ends = [[[end(pair, mesh, reach) for pair in phases] for end in ENDS] for phases in directions]

    def composed(steps: Sequence[Step], row: Sequence[int]) -> Composition:
        return Composition(*zip(steps, row, strict=True))

    return [GridCurve(tuple((composed(low, row), composed(high, row)) for low, high in ends)) for row in counts]


def aligned(mesh: float, training: Training) -> float:
    """The mesh, changed under add/remove so that its outermost multiple lies 0.3 meshes inside -log(1 - q).

    The loss ends at -log(1 - q), and for a small q nearly all of its mass lies close to that end. Bounds are tightest
    with this distance. At least one multiple lies inside the end.
    """
    if training.worlds in ("substitute", "without_replacement"):
        return mesh
    phases = zip(training.mechanisms, training.most, strict=True)
    ends = [(-math.log1p(-q), count) for (_, q), count in phases if q < 1]
    most = max(end * count for end, count in ends)
    end = min(end for end, count in ends if end * count > 0.01 * most)  # the other phases hardly matter
    return end / (max(math.floor(end / mesh), 1) + 0.3)


def tradeoff_of_curve(fpr: Array, epsilon: Array, delta: Array) -> Array:
    r"""The trade-off function that δ at these ε implies. Exchanging the two worlds does not change it.

    .. math:: f(u) = \max_\varepsilon \max\{0,\; 1-\delta-e^{\varepsilon}u,\; e^{-\varepsilon}(1-\delta-u)\}

    Every line bounds f from below. In each family, the highest line at u is found from its intersections with its
    neighbours. `epsilon` must increase from 0, and `delta` must not increase.

    Source: Dong, Roth and Su (2022), Proposition 2.12.
    """
    # Neighbouring lines of the first family meet at fpr = `meet`. The second family is its mirror image.
    with np.errstate(over="ignore", invalid="ignore"):
        meet = (delta[:-1] - delta[1:]) / (np.exp(epsilon[:-1]) * np.expm1(np.diff(epsilon)))
    meet = np.minimum.accumulate(np.nan_to_num(meet))
    steep = np.searchsorted(-meet, -fpr, side="left")
    fnr = 1 - delta[1:] - np.exp(np.minimum(epsilon[1:], 700.0)) * meet
    shallow = np.searchsorted(np.maximum.accumulate(fnr), fpr, side="left")
    with np.errstate(over="ignore"):
        falling = 1 - delta[steep] - np.exp(epsilon[steep] + np.log(np.maximum(fpr, 1e-300))) * (fpr > 0)
    flat = np.exp(-epsilon[shallow]) * (1 - delta[shallow] - fpr)
    return np.asarray(np.clip(np.maximum(falling, flat) - ROUNDING, 0.0, 1.0))


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

    def deltas(self, epsilons: Array) -> tuple[Array, Array]:
        return np.zeros_like(epsilons), np.array([self._delta(epsilon) for epsilon in epsilons.tolist()])

    def tradeoff(self, fpr: Array) -> tuple[Array, Array]:
        epsilon = np.linspace(0, self.epsilon(1e-12)[1], 1000)
        return tradeoff_of_curve(fpr, epsilon, np.array([self._delta(e) for e in epsilon])), np.ones_like(fpr)

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
