r"""dpsub's own engine: the curves of a training, from compositions on grids of losses.

`RevealedCurve` is for trainings that no grid can bound: an upper bound in closed form.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.optimize import brentq
from scipy.special import log_ndtr

from dpsub.accounting.composition import Composition, TooWide
from dpsub.accounting.discretisation import (
    LOSS_ROUNDING,
    Step,
    discretised,
    loss_range,
    merge_outcomes,
    split_outcomes,
    spread,
)
from dpsub.accounting.dominating_pairs import Array
from dpsub.accounting.gaussian import gdp_epsilon
from dpsub.accounting.phases import Training

ENDS = (merge_outcomes, split_outcomes)  # which bound every δ(ε) from below and from above
ROUNDING = 1e-15  # the error of a difference of two rates


@dataclass(frozen=True, eq=False)
class GridCurve:
    """δ(ε) of one adjacency: the largest of its directions.

    Attributes:
        low: for each direction, a composition that bounds its δ from below.
        high: for each direction, a composition that bounds its δ from above.
    """

    low: tuple[Composition, ...]
    high: tuple[Composition, ...]

    @property
    def _ends(self) -> tuple[tuple[int, tuple[Composition, ...]], ...]:
        """For either end, the sign with which rounding errors count, and its compositions."""
        return (-1, self.low), (1, self.high)

    @property
    def _slack(self) -> float:
        """How far the loss of all steps may be off by rounding."""
        return self.low[0].steps * LOSS_ROUNDING

    def epsilon(self, delta: float) -> tuple[float, float]:
        lower, upper = (
            max(composition.epsilon(delta, rounding=sign) for composition in end) for sign, end in self._ends
        )
        # An ε of exactly 0 is certified only if losses that are larger by the slack have it, too.
        return max(lower - self._slack, 0.0), 0.0 if upper == 0 and self.delta(0.0)[1] <= delta else upper + self._slack

    def delta(self, epsilon: float) -> tuple[float, float]:
        lower, upper = (
            max(composition.delta(epsilon - sign * self._slack, rounding=sign) for composition in end)
            for sign, end in self._ends
        )
        return lower, max(lower, upper)

    def tradeoff(self, fpr: Array) -> tuple[Array, Array]:
        return self._bracketed(lambda *end: self._tradeoff(fpr, *end), 1 - fpr)

    def _tradeoff(self, fpr: Array, rounding: int, compositions: tuple[Composition, ...]) -> Array:
        deltas = [composition.deltas(rounding=rounding) for composition in compositions]
        most = max(map(len, deltas))
        worst = np.max([np.pad(delta, (0, most - len(delta)), mode="edge") for delta in deltas], axis=0)
        epsilon = np.arange(float(most)) * compositions[0].mesh
        # The slack is an error of ε. It changes δ by at most as much, since |dδ/dε| = e^ε Q(loss > ε) ≤ 1.
        delta = np.clip(np.minimum.accumulate(worst) + rounding * self._slack, 0.0, 1.0)
        return tradeoff_of_curve(fpr, epsilon, delta)

    def deltas(self, epsilons: Array) -> tuple[Array, Array]:
        return self._bracketed(lambda *end: self._deltas(epsilons, *end), np.ones_like(epsilons))

    def _bracketed(self, bound: Callable[[int, tuple[Composition, ...]], Array], most: Array) -> tuple[Array, Array]:
        """`bound` at either end, or 0 and `most` if a composition is too wide."""
        try:
            bounds = [bound(*end) for end in self._ends]
        except TooWide:
            return np.zeros_like(most), most
        return np.minimum(*bounds), np.maximum(*bounds)

    def _deltas(self, epsilons: Array, rounding: int, compositions: tuple[Composition, ...]) -> Array:
        shifted = epsilons - rounding * self._slack
        mesh = compositions[0].mesh
        deltas = [between_multiples(shifted, mesh, composed.deltas(rounding=rounding)) for composed in compositions]
        return np.asarray(np.clip(np.max(deltas, axis=0) + self._slack * (shifted < 0), 0.0, 1.0))


def between_multiples(epsilons: Array, mesh: float, deltas: Array) -> Array:
    """δ at these ε, from δ at the multiples of the mesh from 0 on. In between it is linear in e^ε."""
    below = np.clip(np.floor(epsilons / mesh), 0.0, len(deltas) - 1.0)
    above = np.clip(epsilons - below * mesh, 0.0, mesh)
    part = np.exp(above - mesh) * np.expm1(-above) / np.expm1(-mesh)
    place = below.astype(np.int64)
    return np.asarray((1 - part) * deltas[place] + part * deltas[np.minimum(place + 1, len(deltas) - 1)])


def extent(training: Training, reach: float) -> tuple[float, float, float]:
    """The scale of a step's losses, the width of their range, and the width of all steps' losses together.

    The scale is the standard deviation of one step's loss in its worst direction: the root mean square over all steps.
    """
    of_phases = [max(map(spread, directions)) for directions in training.pairs]
    total = sum(count * deviation**2 for count, deviation in zip(training.longest, of_phases, strict=True))
    scale = math.sqrt(total / sum(training.longest))
    widest = max(float(np.ptp(loss_range(pair, reach))) for directions in training.pairs for pair in directions)
    return scale, widest, widest + 20 * math.sqrt(sum(training.longest)) * scale


def curves(training: Training, mesh: float, reach: float) -> list[GridCurve]:
    """One curve for each row of the training's counts; all share their discretisations."""
    directions = list(zip(*training.pairs, strict=True))
    low, high = ([[discretised(pair, end, mesh, reach) for pair in phases] for phases in directions] for end in ENDS)

    def composed(directions: list[list[Step]], row: Sequence[int]) -> tuple[Composition, ...]:
        return tuple(Composition(*zip(steps, row, strict=True)) for steps in directions)

    return [GridCurve(composed(low, row), composed(high, row)) for row in training.counts]


def aligned(mesh: float, training: Training) -> float:
    """The mesh, changed under add/remove so that its outermost multiple lies 0.3 meshes inside -log(1 - q).

    The loss ends at -log(1 - q), and for a small q nearly all of its mass lies close to that end. Bounds are tightest
    with this distance. At least one multiple lies inside the end.
    """
    if len(training.pairs[0]) == 1:  # its own mirror image, whose loss has no such end
        return mesh
    phases = zip(training.mechanisms, training.longest, strict=True)
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
