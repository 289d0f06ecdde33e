"""The threshold rules by name: how the score that separates the worlds is chosen.

A new rule is a class that implements `ThresholdRule`, here or elsewhere: `epsilon_lower_bound(threshold=MyRule())`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dpsub.estimators import betting
from dpsub.estimators.claims import Array, Claim
from dpsub.estimators.one_threshold import Errors, ThresholdTest, rates_upper
from dpsub.estimators.rank_tests import LEAST_RUNS, fixed_ranks, largest_refuted, smallest_parameter

MOST_RUNS = 10**9  # of the rank test: with more, its integral loses digits
MOST_OBSERVATIONS = 10**6  # of a ceiling of bets, which follows each of them
UNFAIR = 1e-9  # a fair coin is taken for an unfair one with this probability
MOST_ERRORS = 1000  # at a ceiling; with more, Katz's interval shows less at any alpha


class Decision(NamedTuple):
    """What a rule refutes: the largest parameter, the score that decided, and bounds on the two rates there.

    `reached` is the number of observations after which bets had refuted as much.
    """

    parameter: float
    threshold: float | None
    fpr_upper: float | None = None
    fnr_upper: float | None = None
    reached: int | None = None


@runtime_checkable
class ThresholdRule(Protocol):
    """Chooses a threshold and judges it.

    `name` is the string that users pass. `valid` says whether P(parameter > truth) ≤ alpha if the test of one threshold
    is exact. `one_threshold` says whether the rule uses that test; a rule that does not has an exact test of its own.
    """

    name: ClassVar[str]
    valid: ClassVar[bool]
    one_threshold: ClassVar[bool]

    def decide(
        self, scores: Array, in_z: NDArray[np.bool_], claim: Claim, test: ThresholdTest, alpha: float
    ) -> Decision:
        """The largest parameter refuted.

        Args:
            scores: (runs,) higher speaks for z.
            in_z: (runs,) which runs were trained with z.
            claim: the family of claims.
            test: the test of a claim from the errors at one threshold.
            alpha: the probability with which the parameter may exceed the truth.
        """
        ...

    def ceiling(self, runs: int, claim: Claim, test: ThresholdTest, alpha: float) -> float:
        """The largest parameter that an attack can refute with this many runs, half of them in each world."""
        ...

    def too_few(self, negatives: int) -> str:
        """Why this many runs of z′ cannot show anything; "" if they can."""
        ...


@dataclass(frozen=True)
class Ranks:
    """The exact rank test at ranks fixed in advance: see `dpsub.estimators.rank_tests`."""

    name: ClassVar[str] = "ranks"
    valid: ClassVar[bool] = True
    one_threshold: ClassVar[bool] = False

    def decide(
        self, scores: Array, in_z: NDArray[np.bool_], claim: Claim, test: ThresholdTest, alpha: float
    ) -> Decision:
        positives, negatives = _sorted_worlds(scores, in_z)
        if self.too_few(len(negatives)):
            return Decision(0.0, None)
        ranks = fixed_ranks(claim, len(negatives))
        return Decision(*smallest_parameter(claim, positives, negatives, ranks, alpha))

    def ceiling(self, runs: int, claim: Claim, test: ThresholdTest, alpha: float) -> float:
        if runs > MOST_RUNS:
            raise ValueError(f"runs must be at most {MOST_RUNS:g} for threshold 'ranks', got {runs}: give 'split'")
        negatives, positives = _worlds(runs)
        if self.too_few(negatives):
            return 0.0
        ranks = fixed_ranks(claim, negatives)
        return largest_refuted(claim, dict.fromkeys(ranks, 0), negatives, positives, ranks, alpha)[0]

    def too_few(self, negatives: int) -> str:
        return "" if negatives >= LEAST_RUNS else f"the rank test needs {LEAST_RUNS} runs with z_prime, got {negatives}"


@dataclass(frozen=True)
class Bets:
    """Bets against each claim, in the order of the observations: see `dpsub.estimators.betting`."""

    name: ClassVar[str] = "bets"
    valid: ClassVar[bool] = True
    one_threshold: ClassVar[bool] = False
    note: ClassVar[str] = (
        "holds though observations depend on the past, and whenever one stops, if each row is one observation with a "
        "fair coin of its own, and the rows are in the order in which they were made"
    )

    def decide(
        self, scores: Array, in_z: NDArray[np.bool_], claim: Claim, test: ThresholdTest, alpha: float
    ) -> Decision:
        of_z, count = int(in_z.sum()), len(scores)
        if abs(of_z - count / 2) > math.sqrt(count * math.log(2 / UNFAIR) / 2):  # Hoeffding's inequality
            raise ValueError(
                f"bits must be those of a fair coin for threshold 'bets', got {of_z:,} of {count:,} observations with "
                "bit 0: toss a fair coin for each, or give 'ranks' if the observations are independent"
            )
        parameter, reached = betting.largest_refuted(scores, in_z, claim, alpha)
        return Decision(parameter, None, reached=reached)

    def ceiling(self, runs: int, claim: Claim, test: ThresholdTest, alpha: float) -> float:
        """What bets make of scores without errors, if the coin falls on z, z, z′, z′, and so on."""
        if runs > MOST_OBSERVATIONS:
            raise ValueError(
                f"runs must be at most {MOST_OBSERVATIONS:g} for threshold 'bets', got {runs}: give 'ranks'"
            )
        in_z = np.arange(runs) // 2 % 2 == 0
        return self.decide(in_z.astype(np.float64), in_z, claim, test, alpha).parameter

    def too_few(self, negatives: int) -> str:
        return ""


class OneThreshold(ABC):
    """Rules that judge one threshold by its errors: how to choose it is what they differ in."""

    one_threshold: ClassVar[bool] = True
    parts: ClassVar[int] = 1  # into which the runs are split, one of them to judge by

    @abstractmethod
    def chosen(
        self, scores: Array, in_z: NDArray[np.bool_], test: ThresholdTest, alpha: float
    ) -> tuple[float, Array, Array]:
        """The threshold, and the scores of z and of z′ that it is judged by, sorted."""

    def decide(
        self, scores: Array, in_z: NDArray[np.bool_], claim: Claim, test: ThresholdTest, alpha: float
    ) -> Decision:
        cut, positives, negatives = self.chosen(scores, in_z, test, alpha)
        errors = _errors(positives, negatives, np.array([cut]))
        fpr, fnr = (float(rate[0]) for rate in rates_upper(errors, alpha))
        return Decision(test.parameter(errors, alpha), cut, fpr, fnr)

    def ceiling(self, runs: int, claim: Claim, test: ThresholdTest, alpha: float) -> float:
        """The ceiling at the best threshold that could have been chosen: no errors, or errors of one kind only."""
        negatives, positives = _worlds(runs // self.parts)
        of_either = np.arange(1 if test.monotone else min(negatives, MOST_ERRORS))
        none = np.zeros_like(of_either)
        errors = Errors(np.append(of_either, none), negatives, np.append(none, of_either), positives)
        most = 0 if test.monotone else test.strongest(errors, alpha)
        return test.parameter(errors.at(most), alpha)

    def too_few(self, negatives: int) -> str:
        return ""


@dataclass(frozen=True)
class Fixed(OneThreshold):
    """A threshold fixed before looking at the scores."""

    threshold: float
    name: ClassVar[str] = "a number"
    valid: ClassVar[bool] = True

    def chosen(
        self, scores: Array, in_z: NDArray[np.bool_], test: ThresholdTest, alpha: float
    ) -> tuple[float, Array, Array]:
        return self.threshold, *_sorted_worlds(scores, in_z)


@dataclass(frozen=True)
class Best(OneThreshold):
    """The papers' rule: the best of all thresholds on the runs it is judged on. Not valid: for comparison only."""

    name: ClassVar[str] = "best"
    valid: ClassVar[bool] = False

    def chosen(
        self, scores: Array, in_z: NDArray[np.bool_], test: ThresholdTest, alpha: float
    ) -> tuple[float, Array, Array]:
        positives, negatives = _sorted_worlds(scores, in_z)
        return best_threshold(positives, negatives, test, alpha), positives, negatives


@dataclass(frozen=True)
class Split(OneThreshold):
    """The best threshold of the even runs, judged on the odd runs."""

    name: ClassVar[str] = "split"
    valid: ClassVar[bool] = True
    parts: ClassVar[int] = 2

    def chosen(
        self, scores: Array, in_z: NDArray[np.bool_], test: ThresholdTest, alpha: float
    ) -> tuple[float, Array, Array]:
        even, odd = (_half(scores[start::2], in_z[start::2]) for start in (0, 1))
        return best_threshold(*even, test, alpha), *odd


RULES: dict[str, ThresholdRule] = {rule.name: rule for rule in (Ranks(), Bets(), Split(), Best())}


def best_threshold(positives: Array, negatives: Array, test: ThresholdTest, alpha: float) -> float:
    """The threshold with the largest parameter. Both samples must be sorted."""
    # Raising the threshold between two scores of the negative world adds only false negatives, so one of these scores
    # is best.
    cuts = np.unique(negatives if test.monotone else np.concatenate((negatives, positives)))
    return float(cuts[test.strongest(_errors(positives, negatives, cuts), alpha)])


def _errors(positives: Array, negatives: Array, cuts: Array) -> Errors:
    false_positives = len(negatives) - np.searchsorted(negatives, cuts, side="right")
    return Errors(
        false_positives, len(negatives), np.searchsorted(positives, cuts, side="right").astype(np.int64), len(positives)
    )


def _sorted_worlds(scores: Array, in_z: NDArray[np.bool_]) -> tuple[Array, Array]:
    return np.sort(scores[in_z]), np.sort(scores[~in_z])


def _half(scores: Array, in_z: NDArray[np.bool_]) -> tuple[Array, Array]:
    if len(np.unique(in_z)) < 2:
        raise ValueError(
            'threshold "split" needs runs of both worlds among the even and among the odd runs, got '
            f"{len(scores)} runs in a half: run more, or give another threshold"
        )
    return _sorted_worlds(scores, in_z)


def _worlds(runs: int) -> tuple[int, int]:
    """The numbers of runs of z′ and of z, if half of the runs are in each world."""
    return max(runs // 2, 1), max(runs - runs // 2, 1)
