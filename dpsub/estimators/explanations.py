"""Why a bound is 0, or should be doubted."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpsub.estimators.claims import Array, Claim
from dpsub.estimators.dpsgd_claim import LEAST_NOISE, MechanismDP
from dpsub.estimators.fold_rule import Folds
from dpsub.estimators.lessons import FIRST
from dpsub.estimators.marks import Marks
from dpsub.estimators.methods import Method
from dpsub.estimators.one_threshold import Katz
from dpsub.estimators.threshold_rules import Bets, ThresholdRule

DEPENDENT = "observations of one training depend on each other, which only threshold 'bets' allows"
SAME_WORLD = "a training's steps share their world, so that no rule holds for them: audit with protocol 'coins'"
IN_SAMPLE = "the judged models were learned from, so this shows overfitting, too: judge others, protocol 'held_out'"
OF_FOLDS = "each fold has a scorer of its own, so the scores are not alike: give threshold 'folds'"


def against(marks: Marks, rule: ThresholdRule) -> list[str]:
    """Why no bound by this rule is valid for scores with these marks."""
    found = []
    if marks.in_sample:
        found.append(IN_SAMPLE)
    if marks.folds is not None and len(np.unique(marks.folds)) > 1 and not isinstance(rule, Folds | Bets):
        found.append(OF_FOLDS)
    if marks.of == "step" and not isinstance(rule, Bets):
        found.append(SAME_WORLD if marks.same_world else DEPENDENT)
    return found


def note(
    scores: Array,
    in_z: NDArray[np.bool_],
    claim: Claim,
    method: Method,
    rule: ThresholdRule,
    parameter: float,
    epsilon: float,
    alpha: float,
) -> str:
    """Why the bound is 0 or should be doubted."""
    if parameter >= claim.most:
        return f"refuted at every noise_multiplier down to {LEAST_NOISE}: check sample_rate, steps and adjacency"
    if epsilon > 0:
        return rule.note if isinstance(rule, Bets) else ""
    if scores.min() == scores.max():
        return "all scores are equal: no threshold separates the worlds"
    if too_few := rule.too_few(int((~in_z).sum())):
        return too_few
    if isinstance(rule, Bets) and len(scores) <= FIRST:
        return f"bets need more than {FIRST} observations, which they learn from, got {len(scores)}"
    if parameter > 0:
        return f"the refuted claims have epsilon 0 at delta = {claim.delta:g}"
    test = method.test(claim)
    if rule.decide(scores, ~in_z, claim, test, alpha).parameter > 0:
        return (
            "the scores seem to speak the other way round: bit 0 is z, and higher scores must speak for z; if theory "
            "says that yours do not, negate them"
        )
    if isinstance(test, Katz):
        return "Katz's intervals include a ratio of 1, or do not exist because there are no errors"
    strict = not isinstance(claim, MechanismDP) and not isinstance(rule, Bets)
    if strict and claim.epsilon(rule.ceiling(len(scores), claim, test, alpha)) == 0:
        return f"{len(scores)} runs cannot show an epsilon at delta = {claim.delta:g}, however good the attack"
    return "the scores refute no claim: the attack is too weak, or the runs are too few"
