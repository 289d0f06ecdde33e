"""dpsub's own engine: the curves of a training, from compositions on grids of losses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpsub.accounting.composition import Composition, TooWide
from dpsub.accounting.delta_to_tradeoff import tradeoff
from dpsub.accounting.dominating_pairs import Array, Mechanisms, pairs
from dpsub.accounting.one_step_grid import LOSS_ROUNDING, Step, loss_range, merge_outcomes, split_outcomes, spread
from dpsub.accounting.phases import Training

ENDS = (merge_outcomes, split_outcomes)


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
        return tradeoff(fpr, epsilon, np.clip(np.minimum.accumulate(worst) + rounding * slack, 0.0, 1.0))


def scale(adjacency: str, mechanisms: Mechanisms, counts: Sequence[int]) -> float:
    """The standard deviation of one step's privacy loss in its worst direction: the root mean square over all steps."""
    of_phases = [max(spread(pair) for pair in pairs(adjacency, *mechanism)) for mechanism in mechanisms]
    total = sum(count * deviation**2 for count, deviation in zip(counts, of_phases, strict=True))
    return math.sqrt(total / sum(counts))


def widest(adjacency: str, mechanisms: Mechanisms, reach: float) -> float:
    """The widest range of one step's losses in any phase and direction."""
    every = (pair for mechanism in mechanisms for pair in pairs(adjacency, *mechanism))
    return max(float(np.ptp(loss_range(pair, reach))) for pair in every)


def curves(
    adjacency: str, mechanisms: Mechanisms, counts: Sequence[Sequence[int]], mesh: float, reach: float
) -> list[GridCurve]:
    """One curve for each row of `counts`, which holds the steps of each phase; all share their discretisations."""
    directions = list(zip(*(pairs(adjacency, *mechanism) for mechanism in mechanisms), strict=True))
    ends = [[[end(pair, mesh, reach) for pair in phases] for end in ENDS] for phases in directions]

    def composed(steps: Sequence[Step], row: Sequence[int]) -> Composition:
        return Composition(*zip(steps, row, strict=True))

    return [GridCurve(tuple((composed(low, row), composed(high, row)) for low, high in ends)) for row in counts]


def aligned(mesh: float, training: Training) -> float:
    """The mesh, changed under add/remove so that its outermost multiple lies 0.3 meshes inside -log(1 - q).

    The loss ends at -log(1 - q), and for a small q nearly all of its mass lies close to that end. Bounds are tightest
    with this distance. At least one multiple lies inside the end.
    """
    if training.adjacency == "substitute":
        return mesh
    phases = zip(training.mechanisms, training.most, strict=True)
    ends = [(-math.log1p(-q), count) for (_, q), count in phases if q < 1]
    most = max(end * count for end, count in ends)
    end = min(end for end, count in ends if end * count > 0.01 * most)  # the other phases hardly matter
    return end / (max(math.floor(end / mesh), 1) + 0.3)
