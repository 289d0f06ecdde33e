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

CLAIMS: tuple[type[Claim], ...] = (GDP, ApproximateDP, MechanismDP, BayesianGDP, BayesianDP, Katz)
METHODS: dict[str, type[Claim]] = {claim.name: claim for claim in CLAIMS}
"""The methods of `epsilon_lower_bound` by name: the family of claims that each tests, which knows its tests."""
EXACT = tuple(name for name, claim in METHODS.items() if claim.exact)
"""The methods with exact tests. Bounds by the other methods are not valid, and are kept for comparison."""
OF_GUESSES: dict[str, type[Claim]] = {claim.name: claim for claim in (GDP, MechanismDP, ApproximateDP, Product)}
RULES: dict[str, ThresholdRule] = {rule.name: rule for rule in (ByRanks(), Bets(), Split(), Best(), ByFolds())}

ClaimLike = str | Claim | Sequence[Claim]
RuleLike = str | float | ThresholdRule


def claims_of(
    method: str,
    claim: ClaimLike | None,
    delta: float,
    options: Mapping[str, Any],
    columns: int = 1,
    known: Mapping[str, type[Claim]] = METHODS,
) -> list[Claim]:
    """The family of claims for each column of scores: by its name and options, or as objects."""
    if claim is not None and method != GDP.name:
        raise ValueError(f"claim must be given in place of method, got both: leave out method {method!r}")
    asked = method if claim is None else claim
    if isinstance(asked, str) or claim is None:
        which = known[checks.choice("method" if claim is None else "claim", asked, tuple(known))]
        return list(which.of_columns(delta, options, columns))
    found = [asked] * columns if isinstance(asked, Claim) else checks.several("claim must be a Claim", asked)
    if len(found) != columns or not all(isinstance(each, Claim) for each in found):
        raise ValueError(
            f"claim must be one of {', '.join(map(repr, known))}, a Claim, or one for each of the {columns} columns of "
            f"scores, got {asked!r}"
        )
    for each in found:
        if each.delta != delta:
            raise ValueError(f"claim must be at delta = {delta:g}, got one at {each.delta:g}")
    if options:
        raise ValueError(f"{', '.join(options)} must be left out beside a claim that is an object: it holds them")
    return found


def rule_of(threshold: RuleLike, rule: RuleLike | None = None, default: str = "auto") -> ThresholdRule:
    """The threshold rule that the arguments name. Either of them may be an object, a name or a number."""
    if rule is not None and not (isinstance(threshold, str) and threshold == default):
        raise ValueError(f"rule must be given in place of threshold, got both: leave out threshold {threshold!r}")
    name, asked = ("threshold", threshold) if rule is None else ("rule", rule)
    if isinstance(asked, ThresholdRule):
        return asked
    if not isinstance(asked, str):
        return Fixed(checks.real(name, asked))
    if asked not in RULES:
        meant = checks.did_you_mean(asked, tuple(RULES))
        raise ValueError(f"{name} must be one of {', '.join(map(repr, RULES))} or a number, got {asked!r}{meant}")
    return RULES[asked]


def check_goes(rule: ThresholdRule, claims: Sequence[Claim]) -> None:
    """Refuse a rule with a test of its own beside a claim whose test is another."""
    for claim in claims:
        if not (rule.one_threshold or claim.exact):
            raise ValueError(
                f"threshold {rule.name!r} goes with the methods {', '.join(map(repr, EXACT))}, got {claim.name!r}: "
                "give 'split', 'best' or a number"
            )
