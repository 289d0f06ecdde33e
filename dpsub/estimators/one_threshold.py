r"""Tests of a claim from the errors at one threshold that was fixed before looking at the scores.

`Errors` holds the counts at one threshold or at many. Thresholds increase, so false positives decrease and false
negatives increase along them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainccinv, ndtri

from dpsub.estimators.beta_tails import probability_above
from dpsub.estimators.claims import Array, Claim, crossing

ErrorCounts = NDArray[np.int64]


class Errors(NamedTuple):
    """False positives among the runs of z′, false negatives among those of z."""

    false_positives: ErrorCounts
    negatives: int
    false_negatives: ErrorCounts
    positives: int

    def at(self, place: int | ErrorCounts) -> Errors:
        places = np.atleast_1d(place)
        return self._replace(false_positives=self.false_positives[places], false_negatives=self.false_negatives[places])


class ThresholdTest(Protocol):
    monotone: ClassVar[bool]  # whether fewer errors always refute more

    def parameter(self, errors: Errors, alpha: float) -> float:
        """The largest parameter that the errors at one threshold refute, at least 0."""
        ...

    def strongest(self, errors: Errors, alpha: float) -> int:
        """The index of the threshold at which the parameter is largest: the papers' rule."""
        ...


def clopper_pearson_upper(counts: ErrorCounts, trials: int, alpha: float) -> Array:
    """The upper ends of one-sided exact intervals for a proportion, at confidence 1 − alpha."""
    if len(counts) > 100:
        return _of_every_count(trials, alpha)[counts]
    missed = np.maximum(trials - counts, 1)
    return np.where(counts < trials, betainccinv(counts + 1.0, missed, alpha), 1.0)


@lru_cache(maxsize=64)
def _of_every_count(trials: int, alpha: float) -> Array:
    """The upper ends for every count: one table serves all thresholds and steps of an audit."""
    counts = np.arange(trials)
    upper = np.append(betainccinv(counts + 1.0, trials - counts, alpha), 1.0)
    upper.setflags(write=False)
    return upper


def rates_upper(errors: Errors, alpha: float) -> tuple[Array, Array]:
    """Clopper–Pearson bounds on FPR and FNR, at alpha/2 each."""
    return (
        clopper_pearson_upper(errors.false_positives, errors.negatives, alpha / 2),
        clopper_pearson_upper(errors.false_negatives, errors.positives, alpha / 2),
    )


@dataclass(frozen=True)
class ClopperPearson:
    """Tests a claim at the upper ends of both rates' Clopper–Pearson intervals.

    Source: *Tight Auditing*, section 4.1; *Beyond Membership*, equation 5.
    """

    claim: Claim
    monotone: ClassVar[bool] = True

    def parameter(self, errors: Errors, alpha: float) -> float:
        fpr, fnr = rates_upper(errors, alpha)
        return self.claim.parameter(float(fpr[0]), float(fnr[0]))

    def strongest(self, errors: Errors, alpha: float) -> int:
        return self.claim.strongest(*rates_upper(errors, alpha))


@dataclass(frozen=True)
class Posterior:
    r"""The α-quantile of the parameter's posterior, where the rates have independent Jeffreys priors, Beta(½, ½).

    The mass of the claim's region is an integral over one rate of the other rate's tail. Only one edge of the region is
    used, FNR ≥ f(FPR). Its mirror image, 1 − FNR ≥ f(1 − FPR), is refuted by scores that point the wrong way.

    Source: Zanella-Béguelin et al. (2023); *Tight Auditing*, section 4.2, where equation 14 exchanges FP and FN.
    """

    claim: Claim
    monotone: ClassVar[bool] = True

    def parameter(self, errors: Errors, alpha: float) -> float:
        return self._parameter(errors, alpha, 0.0)

    def _parameter(self, errors: Errors, alpha: float, start: float) -> float:
        def excess(parameter: float) -> float:
            return float(self._inside(errors, parameter)[0]) - alpha

        return crossing(excess, start, self.claim.most) if excess(start) < 0 else start

    def _inside(self, errors: Errors, parameter: float) -> Array:
        fp, n0, fn, n1 = errors
        return probability_above(self.claim, parameter, (fp + 0.5, n0 - fp + 0.5), (fn + 0.5, n1 - fn + 0.5))

    def strongest(self, errors: Errors, alpha: float) -> int:
        # Fewer errors can only refute more. So no threshold in a stretch is better than the best so far if the least
        # false positives and the least false negatives of the stretch, taken together, are not. The other stretches are
        # divided until none is left.
        chosen = self.claim.strongest(*rates_upper(errors, alpha))
        best = self.parameter(errors.at(chosen), alpha)
        first = np.arange(0, len(errors.false_positives), 512)
        length = 512
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
            best = self._parameter(errors.at(chosen), alpha, best)


@dataclass(frozen=True)
class Katz:
    r"""Katz's intervals for the logarithms of the ratios TPR/FPR and TNR/FNR, at alpha/2 each.

    They are asymptotic, and bound the ε of pure ε-DP (δ = 0). A ratio without errors in its denominator has no
    interval.

    Source: Lu et al. (2022); Katz et al. (1978); *Tight Auditing*, section 2.3.
    """

    monotone: ClassVar[bool] = False  # fewer errors widen the interval

    def parameter(self, errors: Errors, alpha: float) -> float:
        return float(self._parameters(errors, alpha)[0])

    def strongest(self, errors: Errors, alpha: float) -> int:
        return int(np.argmax(self._parameters(errors, alpha)))

    def _parameters(self, errors: Errors, alpha: float) -> Array:
        fp, n0, fn, n1 = errors
        z = -ndtri(alpha / 2)

        def lower(hits: ErrorCounts, of_hits: int, misses: ErrorCounts, of_misses: int) -> Array:
            with np.errstate(divide="ignore", invalid="ignore"):
                ratio = np.log(hits / of_hits) - np.log(misses / of_misses)
                error = np.sqrt(1 / hits - 1 / of_hits + 1 / misses - 1 / of_misses)
                return np.where((hits > 0) & (misses > 0), ratio - z * error, 0.0)

        return np.maximum(np.maximum(lower(n1 - fn, n1, fp, n0), lower(n0 - fp, n0, fn, n1)), 0.0)
