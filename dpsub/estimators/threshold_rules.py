"""Threshold rules: how the score that separates the worlds is chosen, and which claims it refutes.

A new rule is one class derived from `ThresholdRule`, here or elsewhere: `epsilon_lower_bound(rule=MyRule())` takes it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpsub.estimators.claims import Claim, Errors
from dpsub.estimators.numerics import Array
from dpsub.estimators.scores_and_marks import Marks, Of

MOST_ERRORS = 1000  # at a ceiling; with more, Katz's interval shows less at any alpha
DEPENDENT = "observations of one training depend on each other, which only rule 'bets' allows"
SAME_WORLD = "a training's steps share their world, so that no rule holds for them: audit with protocol 'coins'"
SEED_IGNORED = "all runs of a world have the same score, whatever their seed, as copies of one run have"
IN_SAMPLE = "the judged models were learned from, so this shows overfitting, too: judge others, protocol 'held_out'"
WATCHED = "a test of the scores decided how many runs there are, which only rule 'bets' allows"
OF_FOLDS = "each fold has a scorer of its own, so the scores are not alike: give rule 'folds'"


@dataclass(frozen=True)
class Decision:
    """What a rule refutes: the largest parameter, and what a bound by it says beside ε."""

    parameter: float
    details: Mapping[str, Any] = field(default_factory=dict)


class ThresholdRule(ABC):
    """Chooses a threshold and judges it.

    Attributes:
        name: the string that users pass.
        valid: whether P(parameter > truth) ≤ alpha, if the claim's test of one threshold is exact or is not used.
        one_threshold: whether the rule uses the claim's test of one threshold, which need not be exact. A rule that
            does not has an exact test of its own.
        for_past: whether it holds for observations that depend on earlier ones.
        for_folds: whether it holds if each fold has a scorer of its own, learned from earlier folds.
        costly: whether to compute its ceiling takes long.
        note: what a bound by it rests on.
        of: what a row of scores is if they do not say it.
    """

    name: ClassVar[str]
    valid: ClassVar[bool]
    one_threshold: ClassVar[bool] = False
    for_past: ClassVar[bool] = False
    for_folds: ClassVar[bool] = False
    costly: ClassVar[bool] = False
    note: ClassVar[str] = ""
    of: ClassVar[Of | None] = None

    @abstractmethod
    def decide(self, scores: Array, in_z: NDArray[np.bool_], claim: Claim, alpha: float) -> Decision:
        """The largest parameter refuted.

        Args:
            scores: (runs,) higher speaks for z.
            in_z: (runs,) which runs were trained with z.
            claim: the family of claims.
            alpha: the probability with which the parameter may exceed the truth.
        """

    @abstractmethod
    def ceiling(self, runs: int, claim: Claim, alpha: float) -> float:
        """The largest parameter that an attack can refute with this many runs, half of them in each world."""

    def too_few(self, positives: int, negatives: int) -> str:
        """Why this many runs of z and z′ cannot show anything; "" if they can."""
        return ""

    def fitted(self, marks: Marks) -> ThresholdRule:
        """The rule for scores with these marks. It refuses scores that it cannot be used for."""
        return self

    def against(self, marks: Marks) -> list[str]:
        """Why no bound by this rule is valid for scores with these marks."""
        reasons = [IN_SAMPLE] if "in_sample" in marks.said else []
        reasons += [SEED_IGNORED] if "seed_ignored" in marks.said else []
        reasons += [WATCHED] if "watched" in marks.said and not self.for_past else []
        if marks.folds is not None and len(np.unique(marks.folds)) > 1 and not self.for_folds:
            reasons.append(OF_FOLDS)
        if marks.of == "step" and not self.for_past:
            reasons.append(SAME_WORLD if "same_world" in marks.said else DEPENDENT)
        return reasons


class OneThreshold(ThresholdRule):
    """Rules that judge one threshold by its errors: how to choose it is what they differ in."""

    one_threshold: ClassVar[bool] = True
    parts: ClassVar[int] = 1  # into which the runs are split, one of them to judge by

    @abstractmethod
    def chosen(self, scores: Array, in_z: NDArray[np.bool_], claim: Claim, alpha: float) -> tuple[float, Array, Array]:
        """The threshold, and the scores of z and of z′ that it is judged by, sorted."""

    def decide(self, scores: Array, in_z: NDArray[np.bool_], claim: Claim, alpha: float) -> Decision:
        cut, positives, negatives = self.chosen(scores, in_z, claim, alpha)
        errors = _errors(positives, negatives, np.array([cut]))
        fpr, fnr = (float(rate[0]) for rate in errors.rates_upper(alpha))
        details = {"threshold": cut, "fpr_upper": fpr, "fnr_upper": fnr, **claim.details_of_errors(errors, alpha)}
        return Decision(claim.refuted_by_errors(errors, alpha), details)

    def ceiling(self, runs: int, claim: Claim, alpha: float) -> float:
        """The ceiling at the best threshold that could have been chosen: no errors, or errors of one kind only."""
        positives, negatives = halves(runs // self.parts)
        of_either = np.arange(1 if claim.monotone else min(negatives, MOST_ERRORS))
        none = np.zeros_like(of_either)
        errors = Errors(np.append(of_either[::-1], none), negatives, np.append(none, of_either), positives)
        most = 0 if claim.monotone else claim.strongest_errors(errors, alpha)
        return claim.refuted_by_errors(errors.at(most), alpha)


@dataclass(frozen=True)
class Fixed(OneThreshold):
    """A threshold fixed before looking at the scores."""

    threshold: float
    name: ClassVar[str] = "a number"
    valid: ClassVar[bool] = True

    def chosen(self, scores: Array, in_z: NDArray[np.bool_], claim: Claim, alpha: float) -> tuple[float, Array, Array]:
        return self.threshold, *sorted_worlds(scores, in_z)


@dataclass(frozen=True)
class Best(OneThreshold):
    """The papers' rule: the best of all thresholds on the runs it is judged on. Not valid: for comparison only."""

    name: ClassVar[str] = "best"
    valid: ClassVar[bool] = False

    def chosen(self, scores: Array, in_z: NDArray[np.bool_], claim: Claim, alpha: float) -> tuple[float, Array, Array]:
        positives, negatives = sorted_worlds(scores, in_z)
        return _best_threshold(positives, negatives, claim, alpha), positives, negatives


@dataclass(frozen=True)
class Split(OneThreshold):
    """The best threshold of the even runs, judged on the odd runs."""

    name: ClassVar[str] = "split"
    valid: ClassVar[bool] = True
    parts: ClassVar[int] = 2

    def chosen(self, scores: Array, in_z: NDArray[np.bool_], claim: Claim, alpha: float) -> tuple[float, Array, Array]:
        for start in (0, 1):
            if len(np.unique(in_z[start::2])) < 2:
                raise ValueError(
                    'rule "split" needs runs of both worlds among the even and among the odd runs, got '
                    f"{len(in_z[start::2])} runs in a half: run more, or give another rule"
                )
        even, odd = (sorted_worlds(scores[start::2], in_z[start::2]) for start in (0, 1))
        return _best_threshold(*even, claim, alpha), *odd


def sorted_worlds(scores: Array, in_z: NDArray[np.bool_]) -> tuple[Array, Array]:
    """The scores of z and of z′, sorted."""
    return np.sort(scores[in_z]), np.sort(scores[~in_z])


def halves(runs: int) -> tuple[int, int]:
    """The numbers of runs of z and of z′, if half of the runs are in each world."""
    return max(runs - runs // 2, 1), max(runs // 2, 1)


def _best_threshold(positives: Array, negatives: Array, claim: Claim, alpha: float) -> float:
    """The threshold with the largest parameter. Both samples must be sorted."""
    # Raising the threshold between two scores of the negative world adds only false negatives, so one of these scores
    # is best.
    cuts = np.unique(negatives if claim.monotone else np.concatenate((negatives, positives)))
    return float(cuts[claim.strongest_errors(_errors(positives, negatives, cuts), alpha)])


def _errors(positives: Array, negatives: Array, cuts: Array) -> Errors:
    false_positives = len(negatives) - np.searchsorted(negatives, cuts, side="right")
    return Errors(
        false_positives, len(negatives), np.searchsorted(positives, cuts, side="right").astype(np.int64), len(positives)
    )
