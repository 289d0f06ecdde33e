"""Lower bounds on ε: the largest ε that an audit's scores, or guesses of its coins, refute."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpsub._core import checks
from dpsub.accounting.statements import rounded
from dpsub.estimators.betting import Bets
from dpsub.estimators.claims import GDP, ApproximateDP, Assumption, Claim, Product
from dpsub.estimators.dpsgd_claim import Known, MechanismDP
from dpsub.estimators.guess_tests import Seen
from dpsub.estimators.numerics import Array
from dpsub.estimators.papers_claims import BayesianDP, BayesianGDP, BayesianMechanismDP, Katz
from dpsub.estimators.rank_tests import ByFolds, ByRanks
from dpsub.estimators.scores_and_marks import Of, scores_bits_and_marks
from dpsub.estimators.threshold_rules import Best, Fixed, Split, ThresholdRule

ASSUMED = {
    "none": "nothing",
    "gdp": "a Gaussian mechanism's curve",
    "mechanism": "DP-SGD's curve",
    "product": "a Gaussian mechanism's curve and independent guesses",
    "proxy": "that labels follow the proxy",
}
MOST_PAIRS = 10**6  # the recursion takes more steps, the more pairs there are

CLAIMS: dict[str, type[Claim]] = {
    claim.name: claim for claim in (GDP, ApproximateDP, MechanismDP, BayesianGDP, BayesianDP, BayesianMechanismDP, Katz)
}
"""The families of claims, as `epsilon_lower_bound` takes them. Bounds by one that is not `exact` are not valid."""
OF_GUESSES: dict[str, type[Claim]] = {claim.name: claim for claim in (GDP, MechanismDP, ApproximateDP, Product)}
RULES: dict[str, ThresholdRule] = {rule.name: rule for rule in (ByRanks(), Bets(), Split(), Best(), ByFolds())}

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
        which = known[checks.choice("claim", claim, tuple(known))]
        return list(which.of_columns(delta, options, columns))
    claims = [claim] * columns if isinstance(claim, Claim) else checks.several("claim must be a Claim", claim)
    if len(claims) != columns or not all(isinstance(tested, Claim) for tested in claims):
        raise ValueError(
            f"claim must be one of {', '.join(map(repr, known))}, a Claim, or one for each of the {columns} columns of "
            f"scores, got {claim!r}"
        )
    for tested in claims:
        if tested.delta != delta:
            raise ValueError(f"claim must be at delta = {delta:g}, got one at {tested.delta:g}")
    if options:
        raise ValueError(f"{', '.join(options)} must be left out beside a claim that is an object: it holds them")
    return claims


def rule_of(rule: RuleLike) -> ThresholdRule:
    """The threshold rule with this name; a number is a threshold that is fixed in advance."""
    if isinstance(rule, ThresholdRule):
        return rule
    if not isinstance(rule, str):
        return Fixed(checks.real("rule", rule))
    if rule not in RULES:
        meant = checks.did_you_mean(rule, tuple(RULES))
        raise ValueError(f"rule must be one of {', '.join(map(repr, RULES))} or a number, got {rule!r}{meant}")
    return RULES[rule]


def check_goes(rule: ThresholdRule, claim: Claim) -> None:
    """Refuse a rule with a test of its own beside a claim whose test is another."""
    if not (rule.one_threshold or claim.exact):
        raise ValueError(
            f"rule {rule.name!r} needs an exact claim, got {claim.name!r}: give 'split', 'best' or a number"
        )


@dataclass(frozen=True)
class LowerBound:
    """A lower bound on ε, and how it was obtained. `str` says it in one line.

    Attributes:
        epsilon: the bound, at least 0.
        claim: the name of the family of claims that was tested.
        assumes: what must hold for the bound to have a meaning: "none", "gdp" (the privacy curve is a Gaussian
            mechanism's), "mechanism" (it is DP-SGD's at the given sample rate and steps), "product" (many pairs'
            guesses are independent, and "gdp") or "proxy" (labels were drawn as the proxy draws them, and what the
            claim assumes).
        valid: True if P(epsilon > truth) ≤ alpha whenever the assumption holds. False, too, if the scores' marks speak
            against it: `note` says which.
        note: why epsilon is 0 or should be doubted; for bets, what it rests on; otherwise "".
        of: what has this ε: "step", one step of a training, or "training", a whole training. None if the scores did
            not say it, as arrays without names.
        rule: how the threshold was chosen: the rule's name, or "guesses" for a bound from one run.
        delta: the δ at which ε is stated.
        alpha: one minus the confidence.
        mu: the bound on μ that gives epsilon, if the claims are of μ-GDP; otherwise None.
        noise_multiplier: the largest noise multiplier that was not refuted, for claims "pld" and "bayes_pld"; otherwise
            None.
        step: the bound of one step that a training's bound comes from; otherwise None.
        details: what else is known, by name:

            - `threshold`: the score that decided. Missing if the rank test refuted nothing, and for bets and several
              folds, which use many.
            - `fpr_upper`, `fnr_upper`: Clopper–Pearson bounds on the two error rates at that threshold, at alpha/2
              each. Missing for the rank test, which bounds them jointly, and for bets.
            - `upper`: the upper end of the credible interval, an ε, for Bayesian claims. Missing for a training's bound
              from one of a step.
            - `observations`: how many rows there were, for bets.
            - `reached`: after how many of them the bound was reached, for bets that refuted a claim.
            - `guesses`, `correct`, `pairs`: how many guesses decided, how many of them are right, and how many pairs
              there were, for a bound from one run. `candidates`: of how many each secret was, if of more than two.
            - `centre`, `scored`: what the scores were compared with, as in `one_run_guesses`, and which scores these
              are, for a bound from one run that `bound` made.
            - `proxy`, `tolerance`, `allowed`: the proxy that drew labels, how far it may be from the truth, and how
              many right guesses were not counted for that, for a bound of a finished model.
    """

    epsilon: float
    claim: str
    assumes: Assumption
    valid: bool
    note: str = ""
    of: Of | None = None
    rule: str = ""
    delta: float | None = None
    alpha: float | None = None
    mu: float | None = None
    noise_multiplier: float | None = None
    step: LowerBound | None = None
    details: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        delta = "" if self.delta is None else f" at δ = {self.delta:g}"
        confidence = "" if self.alpha is None else f", {100 * (1 - self.alpha):.4g} % confidence"
        whose = {"step": ", of one step", "training": ", of a training", None: ""}[self.of]
        by, known = f" by {self.rule}" if self.rule else "", self.details
        if "guesses" in known:
            by += f", {known['correct']} of {known['guesses']} right, of {known['pairs']} "
            by += f"secrets of {known['candidates']} candidates" if "candidates" in known else "pairs"
        if "scored" in known:
            centre = "the median" if known["centre"] == "median" else f"{known['centre']:g}"
            by += f", by the {known['scored']} around {centre}"
        held = "valid" if self.valid else "not valid"
        doubt = f": {self.note}" if self.note and not (self.valid and self.epsilon) else ""
        assumed = ASSUMED[self.assumes]
        if "proxy" in known:
            within = f" to within {known['tolerance']:.3g}" if known["tolerance"] else ""
            assumed += f" {known['proxy']!r}{within}, beside what {self.claim!r} assumes"
        how = f"{self.claim}{by}; assumes {assumed}; {held}{doubt}"
        return f"ε ≥ {rounded(self.epsilon, up=False)}{delta}{confidence}{whose} ({how})"


@checks.checked("delta", "alpha", simultaneous=checks.flag)
def epsilon_lower_bound(
    scores: ArrayLike,
    bits: ArrayLike,
    *,
    delta: float,
    claim: ClaimLike = "gdp",
    rule: RuleLike = "auto",
    alpha: float = 0.05,
    simultaneous: bool = False,
    folds: ArrayLike | None = None,
    **mechanism: Unpack[Known],
) -> LowerBound | list[LowerBound]:
    r"""A lower bound on ε that an audit's scores support with confidence 1 − alpha.

    One run is one model, trained independently of all others: with its own coin for z or z′ and its own randomness
    (start, batches, noise). Many scores from one model are not runs, nor are the steps of one training: they share its
    randomness, so a bound from them is too large and not valid, whatever `valid` says. This cannot be seen from the
    scores. Give one score for each model. The scores of dpsub's audits have the coordinates `seed` and `number`: a run
    that is there twice is refused, as after `xr.concat` of two audits with one seed. Bare arrays cannot tell. Only
    rule "bets" takes observations that depend on each other, such as the steps of one training with a fair coin
    for each step.

    Args:
        scores: (runs,) or (runs, steps), one row for each model; higher speaks for z. The direction is fixed by theory,
            never by the scores. For "bets", one row for each observation, in the order in which they were made.
        bits: (runs,) of 0 (trained with z) and 1 (trained with z′); both must occur.
        delta: 0 < δ < 1; the δ at which ε is stated.
        claim: which claims are tested, and how. A name, or a `Claim` at this delta, such as `CLAIMS["gdp"](1e-5)` or
            one of your own; for scores (runs, steps) it may be a sequence of claims, with one for each column.

            - "gdp": claims of μ-GDP, with μ converted to ε. It assumes that the mechanism's privacy curve is a Gaussian
              mechanism's. That is exact at q = 1 and close after some tens of steps, unless q and σ are small.
              Elsewhere the bound can exceed the truth: for one step of S1 (σ = 1, q = 0.9) it did in 400 of 400 audits,
              by 23 % on average.
            - "dp": claims of (ε, δ)-DP. It assumes nothing, and its bounds are smaller.
            - "pld": claims about the noise of DP-SGD itself, at the given `sample_rate`, `steps` and `adjacency`. It
              assumes that the training ran with these, and is correct where "gdp" is not.
            - "bayes_gdp", "bayes_dp", "bayes_pld": the same claims, by a credible interval of 1 − alpha under Jeffreys
              priors: epsilon is its lower end, at alpha/2, and `details["upper"]` its upper end. Not valid: a credible
              bound does not limit how often it is wrong. A region has two edges, so scores that point the wrong way
              count as much as others.
            - "katz": Katz's interval for the ratios of rates. Not valid: it is asymptotic, and it bounds the ε of pure
              ε-DP, without `delta`.
        rule: how the score that separates the worlds is chosen.

            - "auto": "bets" for the steps of a training, which are scores with the dimension `observation`, as
              `audit_steps` gives them, unless their coordinate `same_world` says that worlds are not tossed anew, and
              for audits that a test could stop (`audit(refute=…)`, coordinate `watched`);
              "folds" for scores with the coordinate `fold`, as `distinguish` gives them, or if `folds` are given; else
              "ranks".
            - "ranks": the exact rank test on ranks fixed in advance; for "gdp", "dp" and "pld". Valid, but not for
              scores with the dimension `observation`, which depend on each other. Several ranks
              are tested, each at its share of alpha, and the bound is the smallest claim that none of them refutes. For
              "gdp" and "pld", 96 % of alpha go to the ranks at 12 % and 35 % of the n0 scores with z′, and the rest to
              3 % and 60 %: if trade-off curves are shaped like a Gaussian mechanism's, all middle ranks refute about
              equally much. For "dp", where pairs of rates refute most if one of the two is small, alpha is shared
              equally among eight ranks, from the third score to 30 % of n0 from either end.
            - "folds": the rank test of each fold, pooled. Valid though each fold has a scorer of its own, if that was
              learned from earlier folds alone. Not valid for folds that are scored by what was learned from all others.
            - "bets": bets against each claim, one observation after the other. Valid though observations depend on
              earlier ones, and whenever one stops, if every bit is a fair coin tossed anew. The bound is then on the
              ε of one observation. It takes more than 64 of them.
            - "split": the best threshold of the even runs, judged on the odd runs. Valid if the claim's test is.
            - a number: fixed before looking at the scores, both rates at alpha/2. Valid if the claim's test
              is.
            - "best": the papers' rule, the best of all thresholds on the runs it is judged on. Not valid: for
              comparison only.
            - a `ThresholdRule` of your own.
        alpha: 1e-12 < alpha < 0.5; the probability with which the bound may exceed the truth.
        simultaneous: for scores of several steps, divide alpha among the steps, so that all bounds hold together and
            their maximum may be reported.
        folds: (runs,) each run's fold, a whole number, for rule "folds"; by default the coordinate `fold` of
            scores.
        mechanism: `sample_rate`, `steps`, `adjacency` and, if batches are not Poisson's, `sampling`, for "pld" and
            "bayes_pld" only. `steps` is the number of steps taken when the scores were observed; for scores (runs,
            steps), a sequence with one entry for each column.

    Returns:
        One `LowerBound` for scores (runs,); a list with one for each step for scores (runs, steps).

    Raises:
        ValueError: if scores are empty, NaN or not as many as bits, if bits are not 0 and 1 or only one of the two
            occurs, if for "bets" they cannot be a fair coin's, if claim and rule cannot be combined, or if an
            argument is out of range.

    Source: *Beyond Membership*, section 5, equations 5–6 ("gdp"); *Tight Auditing*, section 2.3 ("dp", "katz"), 4.1 and
    appendix A ("pld"), 4.2 (the Bayesian ones). The book explains the rank test and compares the rules. For
    bets: Waudby-Smith and Ramdas (2024).

    >>> rng = np.random.default_rng(0)
    >>> bits = rng.integers(0, 2, 2_500)
    >>> scores = rng.normal(size=2_500) + (bits == 0)  # μ = 1, so ε = 4.38 at δ = 1e-5
    >>> bound = epsilon_lower_bound(scores, bits, delta=1e-5)
    >>> bound.valid, 3.0 < bound.epsilon < 4.38
    (True, True)
    """
    columns, in_z, several, marks = scores_bits_and_marks(scores, bits, folds)
    if isinstance(rule, str) and rule == "auto":
        tossed = marks.of == "step" and "same_world" not in marks.said
        rule = "folds" if marks.folds is not None else "bets" if tossed or "watched" in marks.said else "ranks"
    by = rule_of(rule)
    if folds is not None and not isinstance(by, ByFolds):
        raise ValueError(f"folds must be given for rule 'folds' only, got rule {by.name!r}: leave them out")
    by = by.fitted(marks)
    claims = claims_of(claim, delta, mechanism, columns.shape[1])
    for tested in claims:
        check_goes(by, tested)
    level = alpha / columns.shape[1] if simultaneous else alpha
    reasons = by.against(marks)

    def bounded(column: Array, tested: Claim) -> LowerBound:
        decision = by.decide(column, in_z, tested, level)
        return _stated(
            tested,
            decision.parameter,
            partial(_why_no_scores, column, in_z, tested, by, level),
            reasons,
            shown=by.note,
            valid=tested.exact and by.valid and not reasons,
            of=marks.of or by.of,
            rule=by.name,
            alpha=level,
            details=decision.details,
        )

    bounds = [bounded(column, tested) for column, tested in zip(columns.T, claims, strict=True)]
    return bounds if several else bounds[0]


@checks.checked("delta", "alpha", runs=partial(checks.whole, at_least=4))
def max_certifiable_epsilon(
    runs: int,
    *,
    delta: float,
    claim: ClaimLike = "gdp",
    rule: RuleLike = "ranks",
    alpha: float = 0.05,
    **mechanism: Unpack[Known],
) -> float:
    """The ceiling: the largest ε that this many runs, half in each world, can show, however good the attack.

    Args:
        runs: ≥ 4; the runs of both worlds together, at most 1e9 for rule "ranks". For "bets", at most
            1e6; then it is what scores without an error show. Bets learn more from scores with a
            few errors, and can show more. For "folds", in five folds of one size.
        delta, claim, rule, alpha, mechanism: as in `epsilon_lower_bound`.

    >>> round(max_certifiable_epsilon(256, delta=1e-5, rule="best"), 3)  # 128 runs a world
    22.835
    """
    by = rule_of(rule)
    [tested] = claims_of(claim, delta, mechanism)
    check_goes(by, tested)
    return tested.epsilon(by.ceiling(runs, tested, alpha))


@checks.checked(
    "delta",
    "alpha",
    pairs=partial(checks.whole, at_most=MOST_PAIRS),
    candidates=partial(checks.whole, at_least=2),
)
def one_run_epsilon_lower_bound(
    correct: ArrayLike,
    guesses: ArrayLike,
    pairs: int,
    *,
    delta: float,
    claim: ClaimLike = "gdp",
    alpha: float = 0.05,
    candidates: int = 2,
    **mechanism: Unpack[Known],
) -> LowerBound:
    r"""A lower bound on ε from a single run, with confidence 1 − alpha, from guesses of many pairs' coins.

    For each pair a fair coin of its own puts one of two records into the data, and the run's output is used to guess
    the coins. Flipping a coin substitutes one record, so the bound is on the ε of that, whatever the number of pairs.
    The number of guesses must be fixed before looking at the scores, as `one_run_guesses` does it; which pairs are
    guessed may depend on the output. Claims "gdp", "pld" and "dp" hold however the pairs disturb each other.

    What all guesses being right would show is the ceiling: give `guesses` for `correct`; `pairs_needed` plans how many
    pairs an audit takes. Few guesses of many pairs show more of a Gaussian mechanism than one guess for every pair,
    since the scores far from 0 are more often right.

    Args:
        correct: how many guesses are right.
        guesses: how many guesses were made, at most one for each pair.
        pairs: the number of pairs, at most 1e6.
        delta: 0 < δ < 1; the δ at which ε is stated.
        claim: which claims are tested, and how: a name, or a `Claim` at this delta.

            - "gdp": claims of μ-GDP, with μ converted to ε. It assumes that the mechanism's privacy curve is a Gaussian
              mechanism's.
            - "pld": claims about the noise of DP-SGD itself, at the given `sample_rate`, `steps` and `adjacency`. It
              assumes that the run trained with these.
            - "dp": claims of (ε, δ)-DP. It assumes nothing, and its bounds are smaller. The more so, the larger
              2·pairs·delta is beside guesses·alpha.
            - "product": claims of μ-GDP, as if guesses were independent of each other. They are if each pair's score
              depends on its own coin and on noise of its own alone. Otherwise the bound can be wrong often: in every
              second audit, if a public coin decides whether all pairs are answered or none. It takes one guess for
              every pair.
        alpha: 1e-12 < alpha < 0.5; the probability with which the bound may exceed the truth.
        candidates: how many records each slot is filled from, each with the same probability and independently of the
            other slots: 2 for pairs. Of a secret that was drawn from more of them a guess is right more rarely by
            chance, so that as many right guesses show more.
        mechanism: `sample_rate`, `steps`, `adjacency` and, if batches are not Poisson's, `sampling`, for "pld" only.

    `correct` and `guesses` may be sequences of one length, for several numbers of guesses in the same run. Each is
    tested at alpha divided by their number, and the largest bound is returned, so it may be reported.

    Returns:
        A `LowerBound`; `guesses` says which number of guesses decided, `correct` how many of them are right.

    Raises:
        ValueError: if there are more right guesses than guesses, or more guesses than pairs; if an argument is out of
            range.

    Source: Mahloujifar et al. (2025) for "gdp" and "pld"; Steinke et al. (2023), section 5 and appendix D, for "dp"
    with two candidates; Xiang et al. (2025) for "product"; Keinan et al. (2025) for pairs.

    >>> round(one_run_epsilon_lower_bound(95, 100, 1_000, delta=1e-5).epsilon, 3)
    3.323
    >>> round(one_run_epsilon_lower_bound(75, 100, 1_000, delta=1e-4, claim="dp").epsilon, 3)
    0.673
    >>> round(one_run_epsilon_lower_bound(100, 100, 1_000, delta=1e-5).epsilon, 3)  # the ceiling
    5.549
    >>> round(one_run_epsilon_lower_bound(50, 100, 100, delta=1e-5, claim="dp", candidates=10).epsilon, 3)
    1.848
    """
    made = np.atleast_1d(checks.array("guesses", guesses, kind=np.int64, at_least=1, at_most=pairs))
    right = np.atleast_1d(checks.array("correct", correct, kind=np.int64, at_least=0))
    if right.shape != made.shape or (right > made).any():
        raise ValueError(f"correct must be at most as many as guesses, for each number of them, got {right} of {made}")
    seen = [Seen(*counts, pairs, candidates) for counts in zip(right.tolist(), made.tolist(), strict=True)]
    level = alpha / len(seen)
    [tested] = claims_of(claim, delta, mechanism, known=OF_GUESSES)
    if not tested.exact:
        raise ValueError(f"claim must have an exact test of guesses, got {tested.name!r}")
    if refused := tested.cannot_judge(seen):
        raise ValueError(refused)
    parameters = [tested.refuted_by_guesses(counts, level) for counts in seen]
    best = int(np.argmax(parameters))
    decided = seen[best]
    return _stated(
        tested,
        parameters[best],
        partial(_why_no_guesses, tested, decided, level),
        [tested.note_of_guesses(decided, level)],
        valid=True,
        of="training",
        rule="guesses",
        alpha=alpha,
        details={name: count for name, count in decided._asdict().items() if name != "candidates" or count > 2},
    )


def _stated(
    claim: Claim, parameter: float, why: Callable[[], str], notes: Sequence[str], *, shown: str = "", **others: Any
) -> LowerBound:
    """The bound at a parameter. `why` says why nothing was refuted; `shown` is a note on a bound above 0."""
    epsilon = claim.epsilon(parameter)
    if parameter >= claim.most:
        first = claim.beyond
    elif epsilon > 0:
        first = shown
    else:
        first = f"the refuted claims have epsilon 0 at delta = {claim.delta:g}" if parameter > 0 else why()
    note = "; ".join(filter(None, (first, *notes)))
    said = {"claim": claim.name, "assumes": claim.assumes, "delta": claim.delta, **claim.says(parameter)}
    return LowerBound(epsilon=epsilon, note=note, **said, **others)


def _why_no_scores(scores: Array, in_z: NDArray[np.bool_], claim: Claim, rule: ThresholdRule, alpha: float) -> str:
    """Why scores refute nothing."""
    if scores.min() == scores.max():
        return "all scores are equal: no threshold separates the worlds"
    if too_few := rule.too_few(int(in_z.sum()), int((~in_z).sum())):
        return too_few
    if rule.decide(scores, ~in_z, claim, alpha).parameter > 0:
        return (
            "the scores seem to speak the other way round: bit 0 is z, and higher scores must speak for z; if theory "
            "says that yours do not, negate them"
        )
    if claim.silent:
        return claim.silent
    costly = claim.costly or rule.costly
    if not costly and claim.epsilon(rule.ceiling(len(scores), claim, alpha)) == 0:
        return f"{len(scores)} runs cannot show an epsilon at delta = {claim.delta:g}, however good the attack"
    return "the scores refute no claim: the attack is too weak, or the runs are too few"


def _why_no_guesses(claim: Claim, seen: Seen, alpha: float) -> str:
    """Why guesses refute nothing."""
    if claim.epsilon(claim.refuted_by_guesses(seen._replace(correct=seen.guesses), alpha)) == 0:
        return f"{seen.guesses} guesses cannot show an epsilon at delta = {claim.delta:g}, however many are right"
    turned = seen._replace(correct=seen.guesses - seen.correct)
    if seen.candidates == 2 and claim.refuted_by_guesses(turned, alpha) > 0:
        return (
            "fewer guesses are right than chance allows: bit 0 is z, and scores above 0 must speak for z; if theory "
            "says that yours do not, negate them"
        )
    return "the guesses refute no claim: the attack is too weak, or the guesses are too few"
