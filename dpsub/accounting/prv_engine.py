r"""The privacy loss variable of one step on prv-accountant (Gopi, Lee and Wutschitz, 2021), with its error bounds.

prv-accountant's own classes are used, except for two steps that fail on ordinary inputs. It integrates the mean of the
truncated variable on fixed points and refuses the mean when it disagrees with the grid. It needs Rényi divergences for
the size of the domain, and has them for add/remove only. Both are computed here as expectations over the Gaussian
output, where the integrand is smooth. Its error bounds leave out floating-point errors: `ROUNDING` adds them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import cast

import numpy as np
from prv_accountant.accountant import PrivacyRandomVariableTruncated, compute_safe_domain_size
from prv_accountant.composers import Heterogeneous
from prv_accountant.discrete_privacy_random_variable import DiscretePrivacyRandomVariable
from prv_accountant.discretisers import CellCentred
from prv_accountant.domain import Domain
from prv_accountant.privacy_random_variables import PrivacyRandomVariable
from scipy.special import logsumexp
from tqdm.auto import tqdm

from dpsub.accounting.dominating_pairs import Array, Pair
from dpsub.accounting.phases import Training

MOST_POINTS = 2**22  # prv-accountant works in long double: about 5 s and 600 MB
MANY_POINTS = 2**20  # from here on a bar shows that it works
SLOWER = "prv-accountant (engine='auto' is faster)"
# For each step: bounds the floating-point error of δ(ε), which was at longest 2e-16 a step in 30 measurements.
ROUNDING = 1e-15


class PairPRV(PrivacyRandomVariable):  # type: ignore[misc]
    """The privacy loss of a `Pair` in the form that prv-accountant takes: its distribution function under P."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair

    def cdf(self, t: Array) -> Array:
        return self.pair.cdf(self.pair.inverse_loss(np.asarray(t, dtype=np.float64)))

    def rdp(self, alpha: float) -> float:
        """Rényi divergence of order `alpha` of P from Q."""
        return renyi_divergence(self.pair, alpha)


@lru_cache(maxsize=2**12)  # prv-accountant asks twice, and for each of two precisions
def renyi_divergence(pair: Pair, alpha: float) -> float:
    """Of P from Q. The integrand is a sum of Gaussians of this width with means from 0 to 2·alpha − 1."""
    edge = 40 * pair.sigma
    x, log_p = pair.nodes_between(-edge, 2 * alpha + edge, panels=math.ceil(2 * (alpha + edge) / pair.sigma))
    return float(logsumexp(log_p + (alpha - 1) * pair.loss(x)) / (alpha - 1))


class Truncated(PrivacyRandomVariableTruncated):  # type: ignore[misc]
    def mean(self) -> float:
        pair: Pair = self.prv.pair
        edge = 40 * pair.sigma + 1
        low, high = (float(np.clip(pair.inverse_loss(np.array(t)), -edge, edge)) for t in (self.t_min, self.t_max))
        x, log_p = pair.nodes_between(low, high, panels=max(1, math.ceil(4 * (high - low) / pair.sigma)))
        return float(np.exp(log_p) @ pair.loss(x) / self.remaining_mass)


@dataclass(frozen=True)
class PRVCurve:
    """δ(ε) of one composition within prv-accountant's error bounds: the largest of its directions."""

    variables: tuple[DiscretePrivacyRandomVariable, ...]
    eps_error: float
    delta_error: float

    def epsilon(self, delta: float) -> tuple[float, float]:
        lower, upper = 0.0, 0.0
        for variable in self.variables:
            try:
                with np.errstate(all="ignore"):
                    low, _, high = variable.compute_epsilon(delta, self.delta_error, self.eps_error)
            except (ValueError, RuntimeError):  # it refuses a delta that floating-point errors would dominate
                return 0.0, math.inf
            if not (math.isfinite(low) and math.isfinite(high)):
                return 0.0, math.inf
            lower, upper = max(lower, low), max(upper, high)
        return lower, upper

    def delta(self, epsilon: float) -> tuple[float, float]:
        lower = max(_delta(v, epsilon + self.eps_error) for v in self.variables) - self.delta_error
        upper = max(_delta(v, epsilon - self.eps_error) for v in self.variables) + self.delta_error
        return (max(lower, 0.0), min(upper, 1.0)) if math.isfinite(lower) and math.isfinite(upper) else (0.0, 1.0)


def _delta(variable: DiscretePrivacyRandomVariable, epsilon: float) -> float:
    with np.errstate(all="ignore"):
        return float(variable.compute_delta_estimate(min(epsilon, float(variable.domain.t_max()) + 1)))


def curves(training: Training, eps_error: float, delta_error: float) -> list[PRVCurve]:
    """One curve for each row of the training's counts.

    All share the discretisations for the longest training. If `eps_error` would need more than `MOST_POINTS` points,
    the grid has `MOST_POINTS`, and the error is larger.
    """
    longest = training.longest
    composed: list[list[DiscretePrivacyRandomVariable]] = []
    errors = []
    for direction in zip(*training.pairs, strict=True):
        prvs = [PairPRV(cast(Pair, pair)) for pair in direction]
        reach = compute_safe_domain_size(prvs, list(longest), eps_error=eps_error, delta_error=delta_error)
        mesh_for_error = 1 / math.sqrt(sum(longest) / 2 * math.log(12 / delta_error))  # Gopi et al., Theorem 5.5
        mesh = max(eps_error * mesh_for_error, 2 * reach / MOST_POINTS)
        errors.append(mesh / mesh_for_error)
        domain = Domain.create_aligned(-reach, reach, mesh)
        rows = tqdm(training.counts, desc=SLOWER, disable=len(domain) < MANY_POINTS, leave=False)
        truncated = [Truncated(prv, domain.t_min(), domain.t_max()) for prv in prvs]
        composer = Heterogeneous([CellCentred().discretise(prv, domain) for prv in truncated])
        composed.append([composer.compute_composition(list(row)) for row in rows])
    return [
        PRVCurve(tuple(variables), max(errors), delta_error + ROUNDING * sum(row))
        for variables, row in zip(zip(*composed, strict=True), training.counts, strict=True)
    ]
