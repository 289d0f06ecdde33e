r"""Privacy loss distributions from dp-accounting.

The upper end is dp-accounting's "connect the dots" discretisation. Its optimistic discretisation rounds every loss
down, which costs steps * mesh / 2. The lower end is therefore `merge_outcomes` of
`dpsub.accounting.discretisation`. Both ends are composed by dp-accounting.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from dp_accounting import privacy_accountant
from dp_accounting.pld import pld_pmf
from dp_accounting.pld import privacy_loss_distribution as plds

from dpsub.accounting.discretisation import merge_outcomes
from dpsub.accounting.dominating_pairs import Mechanisms, pairs

ROUNDING = 1e-11  # bounds the error of δ(ε) from floating-point FFTs of the sizes used here, with truncated tails


@dataclass(frozen=True)
class PLDCurve:
    """δ(ε) of one composition, between an optimistic and a pessimistic distribution of the privacy loss."""

    optimistic: plds.PrivacyLossDistribution
    pessimistic: plds.PrivacyLossDistribution
    mesh: float

    def epsilon(self, delta: float) -> tuple[float, float]:
        lower = float(self.optimistic.get_epsilon_for_delta(min(delta + ROUNDING, 1.0)))
        if lower > 700:  # exp(-loss) is 0 there, and dp-accounting returns the next multiple of the mesh
            lower -= self.mesh
        upper = float(self.pessimistic.get_epsilon_for_delta(delta - ROUNDING)) if delta > ROUNDING else math.inf
        return lower, max(lower, upper)

    def delta(self, epsilon: float) -> tuple[float, float]:
        lower = float(self.optimistic.get_delta_for_epsilon(epsilon)) - ROUNDING
        upper = float(self.pessimistic.get_delta_for_epsilon(epsilon)) + ROUNDING
        return max(lower, 0.0), min(max(lower, upper), 1.0)


def curves(worlds: str, mechanisms: Mechanisms, counts: Sequence[Sequence[int]], mesh: float) -> list[PLDCurve]:
    """One curve for each row of `counts`, which holds the steps of each phase; all share their discretisations."""
    relation = privacy_accountant.NeighboringRelation
    pessimistic = [
        plds.from_gaussian_mechanism(
            sigma,
            sampling_prob=q,
            value_discretization_interval=mesh,
            neighboring_relation=relation.REPLACE_ONE if worlds == "substitute" else relation.ADD_OR_REMOVE_ONE,
        )
        for sigma, q in mechanisms
    ]
    optimistic = [
        plds.PrivacyLossDistribution(
            *(
                pld_pmf.DensePLDPmf(mesh, step.low, step.mass, 0.0, pessimistic_estimate=False)
                for step in (merge_outcomes(pair, mesh) for pair in pairs(worlds, sigma, q))
            )
        )
        for sigma, q in mechanisms
    ]

    def composed(steps: list[plds.PrivacyLossDistribution], row: Sequence[int]) -> plds.PrivacyLossDistribution:
        phases = [step.self_compose(count) for step, count in zip(steps, row, strict=True)]
        return reduce(lambda one, other: one.compose(other), phases)

    return [PLDCurve(composed(optimistic, row), composed(pessimistic, row), mesh) for row in counts]
