r"""The papers' claims whose tests are not exact, and are kept for comparison: Bayesian bounds and Katz's intervals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.special import ndtri

from dpsub.estimators.claims import GDP, ApproximateDP, Claim, Errors
from dpsub.estimators.numerics import Array, Counts, crossing, probability_above


class Posterior(Claim):
    r"""The α-quantile of the parameter's posterior, where the rates have independent Jeffreys priors, Beta(½, ½).

    The mass of the claim's region is an integral over one rate of the other rate's tail. Only one edge of the region is
    used, FNR ≥ f(FPR). Its mirror image, 1 − FNR ≥ f(1 − FPR), is refuted by scores that point the wrong way.

    Source: Zanella-Béguelin et al. (2023); *Tight Auditing*, section 4.2, where equation 14 exchanges FP and FN.
    """

    exact: ClassVar[bool] = False

    def refuted_by_errors(self, errors: Errors, alpha: float, start: float = 0.0) -> float:
        def excess(parameter: float) -> float:
            return float(self._inside(errors, parameter)[0]) - alpha

        return crossing(excess, start, self.most) if excess(start) < 0 else start

    def _inside(self, errors: Errors, parameter: float) -> Array:
        fp, n0 = errors.false_positives.astype(np.float64), errors.negatives
        fn, n1 = errors.false_negatives.astype(np.float64), errors.positives
        return probability_above(self, parameter, (fp + 0.5, n0 - fp + 0.5), (fn + 0.5, n1 - fn + 0.5))

    def strongest_errors(self, errors: Errors, alpha: float) -> int:
        # Fewer errors can only refute more. So no threshold in a stretch is better than the best so far if the least
        # false positives and the least false negatives of the stretch, taken together, are not. The other stretches are
        # divided until none is left.
        chosen = self.strongest(*errors.rates_upper(alpha))
        best = self.refuted_by_errors(errors.at(chosen), alpha)
        length = 512
        first = np.arange(0, len(errors.false_positives), length)
        while True:
            last = np.minimum(first + length, len(errors.false_positives)) - 1
            least = errors._replace(
                false_positives=errors.false_positives[last], false_negatives=errors.false_negatives[first]
            )
            inside = self._inside(least, best)
            better = inside < alpha * (1 - 1e-6)
            first, inside = first[better], inside[better]
            if not len(first):
                return chosen
            if length > 1:
                length //= 8
                first = (first[:, None] + np.arange(0, 8 * length, length)).ravel()
                first = first[first < len(errors.false_positives)]
                continue
            chosen = int(first[np.argmin(inside)])
            best = self.refuted_by_errors(errors.at(chosen), alpha, best)


@dataclass(frozen=True)
class BayesianGDP(Posterior, GDP):
    """μ-GDP, judged by the posterior."""

    name: ClassVar[str] = "bayes_gdp"


@dataclass(frozen=True)
class BayesianDP(Posterior, ApproximateDP):
    """(ε, δ)-DP, judged by the posterior."""

    name: ClassVar[str] = "bayes_dp"


@dataclass(frozen=True)
class Katz(ApproximateDP):
    r"""Katz's intervals for the logarithms of the ratios TPR/FPR and TNR/FNR, at alpha/2 each.

    They are asymptotic, and bound the ε of pure ε-DP (δ = 0). A ratio without errors in its denominator has no
    interval, and fewer errors widen it.

    Source: Lu et al. (2022); Katz et al. (1978); *Tight Auditing*, section 2.3.
    """

    name: ClassVar[str] = "katz"
    exact: ClassVar[bool] = False
    monotone: ClassVar[bool] = False
    silent: ClassVar[str] = "Katz's intervals include a ratio of 1, or do not exist because there are no errors"

    def refuted_by_errors(self, errors: Errors, alpha: float) -> float:
        return float(self._of_ratios(errors, alpha)[0])

    def strongest_errors(self, errors: Errors, alpha: float) -> int:
        return int(np.argmax(self._of_ratios(errors, alpha)))

    def _of_ratios(self, errors: Errors, alpha: float) -> Array:
        fp, n0, fn, n1 = errors
        z = -ndtri(alpha / 2)

        def lower(hits: Counts, of_hits: int, misses: Counts, of_misses: int) -> Array:
            with np.errstate(divide="ignore", invalid="ignore"):
                ratio = np.log(hits / of_hits) - np.log(misses / of_misses)
                error = np.sqrt(1 / hits - 1 / of_hits + 1 / misses - 1 / of_misses)
                return np.where((hits > 0) & (misses > 0), ratio - z * error, 0.0)

        return np.maximum(np.maximum(lower(n1 - fn, n1, fp, n0), lower(n0 - fp, n0, fn, n1)), 0.0)
