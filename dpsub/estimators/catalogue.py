"""Claims and threshold rules by name: what strings stand for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dpsub._core import checks
from dpsub.estimators.betting import Bets
from dpsub.estimators.claims import GDP, ApproximateDP, Claim, Product
from dpsub.estimators.dpsgd_claim import MechanismDP
from dpsub.estimators.papers_claims import BayesianDP, BayesianGDP, Katz
from dpsub.estimators.rank_tests import ByFolds, ByRanks
from dpsub.estimators.threshold_rules import Best, Fixed, Split, ThresholdRule

CLAIMS: dict[str, type[Claim]] = {
    claim.name: claim for claim in (GDP, ApproximateDP, MechanismDP, BayesianGDP, BayesianDP, Katz)
}
"""The families of claims by name, as `epsilon_lower_bound` takes them. Each knows its tests."""
EXACT = tuple(name for name, claim in CLAIMS.items() if claim.exact)
"""The claims with exact tests. Bounds by the others are not valid, and are kept for comparison."""
OF_GUESSES: dict[str, type[Claim]] = {claim.name: claim for claim in (GDP, MechanismDP, ApproximateDP, Product)}
RULES: dict[str, ThresholdRule] = {rule.name: rule for rule in (ByRanks(), Bets(), Split(), Best(), ByFolds())}
OTHER_CLAIMS: checks.OtherNames = {
    "gdp": ("gauss", "_mu_", "fdp", "f_dp"),
    "pld": ("privacy_loss", "prv", "mechanism", "dpsgd", "dp_sgd", "accountant"),
    "dp": ("approx", "clopper", "_eps", "pure", "jagielski"),
    "bayes_gdp": ("zanella",),
}
OTHER_RULES: checks.OtherNames = {"bets": ("_bet", "wealth", "e_process"), "split": ("half", "hold")}

ClaimLike = str | Claim | Sequence[Claim]
RuleLike = str | float | ThresholdRule


def claims_of(
    claim: ClaimLike,
    delta: float,
    options: Mapping[str, Any],
    columns: int = 1,
    known: Mapping[str, type[Claim]] = CLAIMS,
) -> list[Claim]:
    """The family of claims for each column of scores: by its name and options, or as objects."""
    if isinstance(claim, str):
        which = known[checks.choice("claim", claim, tuple(known), OTHER_CLAIMS)]
        return list(which.of_columns(delta, options, columns))
    found = [claim] * columns if isinstance(claim, Claim) else checks.several("claim must be a Claim", claim)
    if len(found) != columns or not all(isinstance(each, Claim) for each in found):
        raise ValueError(
            f"claim must be one of {', '.join(map(repr, known))}, a Claim, or one for each of the {columns} columns of "
            f"scores, got {claim!r}"
        )
    for each in found:
        if each.delta != delta:
            raise ValueError(f"claim must be at delta = {delta:g}, got one at {each.delta:g}")
    if options:
        raise ValueError(f"{', '.join(options)} must be left out beside a claim that is an object: it holds them")
    return found


def rule_of(rule: RuleLike) -> ThresholdRule:
    """The threshold rule with this name; a number is a threshold that is fixed in advance."""
    if isinstance(rule, ThresholdRule):
        return rule
    if not isinstance(rule, str):
        return Fixed(checks.real("rule", rule))
    if rule not in RULES:
        meant = checks.did_you_mean(rule, tuple(RULES), OTHER_RULES)
        raise ValueError(f"rule must be one of {', '.join(map(repr, RULES))} or a number, got {rule!r}{meant}")
    return RULES[rule]


def check_goes(rule: ThresholdRule, claims: Sequence[Claim]) -> None:
    """Refuse a rule with a test of its own beside a claim whose test is another."""
    for claim in claims:
        if not (rule.one_threshold or claim.exact):
            raise ValueError(
                f"rule {rule.name!r} goes with the claims {', '.join(map(repr, EXACT))}, got {claim.name!r}: "
                "give 'split', 'best' or a number"
            )
