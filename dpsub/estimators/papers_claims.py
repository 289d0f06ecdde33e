r"""The papers' claims whose tests are not exact, and are kept for comparison: Bayesian bounds and Katz's intervals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.special import betainc, ndtri

from dpsub.estimators.claims import GDP, ApproximateDP, Claim, Errors
from dpsub.estimators.dpsgd_claim import MechanismDP
from dpsub.estimators.numerics import Array, Counts, crossing, probability_above


class Posterior(Claim):
    r"""The credible interval of 1 − α of the parameter, where the rates have independent Jeffreys priors, Beta(½, ½).

    The bound is the lower end: the largest parameter whose region holds at most α/2 of the posterior of the two rates.
    The upper end, the least whose region holds 1 − α/2, is in the details, as an ε. The region has two edges,
    f(FPR) ≤ FNR ≤ 1 − f(1 − FPR). So scores that point the wrong way refute claims, too, and scores without any
    information refute a few.

    Source: Zanella-Béguelin et al. (2023); *Tight Auditing*, equations 11 and 13. Equation 14 exchanges FP and FN.
    """

    exact: ClassVar[bool] = False
    monotone: ClassVar[bool] = False

    def refuted_by_errors(self, errors: Errors, alpha: float) -> float:
        return self._quantile(errors, alpha / 2)

    def details_of_errors(self, errors: Errors, alpha: float) -> dict[str, float]:
        return {"upper": self.epsilon(self._quantile(errors, 1 - alpha / 2))}

    def _quantile(self, errors: Errors, share: float) -> float:
        def excess(parameter: float) -> float:
            return float(self._inside(errors, errors, parameter)[0]) - share

        return crossing(excess, 0.0, self.most) if excess(0.0) < 0 else 0.0

    def _inside(self, lower: Errors, upper: Errors, parameter: float) -> Array:
        """The mass of the region, with the posterior of one number of errors at its lower edge, and another's above.

        Above the upper edge the mirrored rates, 1 − FPR and 1 − FNR, are below the lower one.
        """
        fp, n0, fn, n1 = (np.asarray(count, dtype=np.float64) for count in lower)
        above = probability_above(self, parameter, (fp + 0.5, n0 - fp + 0.5), (fn + 0.5, n1 - fn + 0.5))
        fp, n0, fn, n1 = (np.asarray(count, dtype=np.float64) for count in upper)
        mirrored = (n0 - fp + 0.5, fp + 0.5), (n1 - fn + 0.5, fn + 0.5)
        return above - probability_above(self, parameter, *mirrored, tail=betainc)

    def strongest_errors(self, errors: Errors, alpha: float) -> int:
        # More errors put more mass above either edge. So no threshold in a stretch is better than the best so far if
        # its least errors at the lower edge and its most at the upper one, taken together, are not. The other stretches
        # are divided until none is left.
        fp, n0, fn, n1 = errors
        chosen = self.strongest(*errors.rates_upper(alpha))
        best = self.refuted_by_errors(errors.at(chosen), alpha)
        length = 512
        first = np.arange(0, len(fp), length)
        while True:
            last = np.minimum(first + length, len(fp)) - 1
            inside = self._inside(Errors(fp[last], n0, fn[first], n1), Errors(fp[first], n0, fn[last], n1), best)
            better = inside < alpha / 2 * (1 - 1e-6)
            first, inside = first[better], inside[better]
            if not len(first):
                return chosen
            if length > 1:
                length //= 8
                first = (first[:, None] + np.arange(0, 8 * length, length)).ravel()
                first = first[first < len(fp)]
                continue
            chosen = int(first[np.argmin(inside)])
            best = self.refuted_by_errors(errors.at(chosen), alpha)


@dataclass(frozen=True)
class BayesianGDP(Posterior, GDP):
    """μ-GDP, judged by the posterior."""

    name: ClassVar[str] = "bayes_gdp"


@dataclass(frozen=True)
class BayesianDP(Posterior, ApproximateDP):
    """(ε, δ)-DP, judged by the posterior."""

    name: ClassVar[str] = "bayes_dp"


@dataclass(frozen=True)
class BayesianMechanismDP(Posterior, MechanismDP):
    """The noise of DP-SGD, judged by the posterior."""

    name: ClassVar[str] = "bayes_pld"


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
