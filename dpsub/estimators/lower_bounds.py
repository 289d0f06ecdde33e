"""Lower bounds on ε: the largest ε that an audit's scores refute."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpsub._core import checks
from dpsub.estimators.catalogue import ClaimLike, RuleLike, check_goes, claims_of, rule_of
from dpsub.estimators.claims import Assumption, Claim
from dpsub.estimators.dpsgd_claim import Sampling
from dpsub.estimators.numerics import Array
from dpsub.estimators.scores_and_marks import Marks, Of, marks_of, no_pairs, scores_and_bits
from dpsub.estimators.threshold_rules import ThresholdRule

MOST_RUNS = 10**18  # counts are 64-bit integers
ASSUMED = {
    "none": "nothing",
    "gdp": "a Gaussian mechanism's curve",
    "mechanism": "DP-SGD's curve",
    "product": "a Gaussian mechanism's curve and independent guesses",
    "proxy": "that labels follow the proxy",
}


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
        noise_multiplier: the largest noise multiplier that was not refuted, for claim "pld"; otherwise None.
        step: the bound of one step that a training's bound comes from; otherwise None.
        details: what else is known, by name:

            - `threshold`: the score that decided. Missing if the rank test refuted nothing, and for bets and several
              folds, which use many.
            - `fpr_upper`, `fnr_upper`: Clopper–Pearson bounds on the two error rates at that threshold, at alpha/2
              each. Missing for the rank test, which bounds them jointly, and for bets.
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
        return f"ε ≥ {self.epsilon:.3g}{delta}{confidence}{whose} ({how})"


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
    **mechanism: Unpack[Sampling],
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
            - "bayes_gdp", "bayes_dp": the alpha-quantile of the posterior under Jeffreys priors. Not valid: a credible
              bound does not limit how often it is wrong.
            - "katz": Katz's interval for the ratios of rates. Not valid: it is asymptotic, and it bounds the ε of pure
              ε-DP, without `delta`.
        rule: how the score that separates the worlds is chosen.

            - "auto": "bets" for the steps of a training, which are scores with the dimension `observation`, as
              `audit_steps` gives them, unless their coordinate `same_world` says that worlds are not tossed anew;
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
        mechanism: `sample_rate`, `steps`, `adjacency` and, if batches are not Poisson's, `sampling`, for "pld" only.
            `steps` is the number of steps taken when the scores were observed; for scores (runs, steps), a sequence
            with one entry for each column.

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
    no_pairs(scores, bits)
    columns, in_z, several = scores_and_bits(scores, bits)
    marks = marks_of(scores, bits, folds, len(columns))
    by = _chosen(rule, marks)
    if folds is not None and not by.takes_folds:
        raise ValueError(f"folds must be given for rule 'folds' only, got rule {by.name!r}: leave them out")
    by = by.fitted(marks)
    claims = claims_of(claim, delta, mechanism, columns.shape[1])
    check_goes(by, claims)
    level = alpha / columns.shape[1] if simultaneous else alpha
    bounds = [_bound(*each, in_z, by, marks, level) for each in zip(columns.T, claims, strict=True)]
    return bounds if several else bounds[0]


@checks.checked("delta", "alpha", "folds", runs=partial(checks.whole, at_least=4, at_most=MOST_RUNS))
def max_certifiable_epsilon(
    runs: int,
    *,
    delta: float,
    claim: ClaimLike = "gdp",
    rule: RuleLike = "ranks",
    alpha: float = 0.05,
    folds: int = 5,
    **mechanism: Unpack[Sampling],
) -> float:
    """The ceiling: the largest ε that this many runs, half in each world, can show, however good the attack.

    Args:
        runs: ≥ 4; the runs of both worlds together, at most 1e9 for rule "ranks" and 1e18 for the others.
            For "bets", at most 1e6; then it is what scores without an error show. Bets learn more from scores with a
            few errors, and can show more. For "folds", at most 200,000, in so many `folds` of one size.
        folds: ≥ 1; the number of folds that are judged, for rule "folds"; at most half of the runs.
        delta, claim, rule, alpha, mechanism: as in `epsilon_lower_bound`.

    >>> round(max_certifiable_epsilon(256, delta=1e-5, rule="best"), 3)  # 128 runs a world
    22.835
    """
    by = rule_of(rule)
    [of] = claims_of(claim, delta, mechanism)
    check_goes(by, [of])
    return of.epsilon(by.ceiling(runs, of, alpha, folds))


def _chosen(rule: RuleLike, marks: Marks) -> ThresholdRule:
    """The rule with this name; for "auto" the one for scores with these marks."""
    if not (isinstance(rule, str) and rule == "auto"):
        return rule_of(rule)
    if marks.folds is not None:
        return rule_of("folds")
    return rule_of("bets" if marks.of == "step" and not marks.same_world else "ranks")


def _bound(
    scores: Array, claim: Claim, in_z: NDArray[np.bool_], rule: ThresholdRule, marks: Marks, alpha: float
) -> LowerBound:
    found = rule.decide(scores, in_z, claim, alpha)
    epsilon = claim.epsilon(found.parameter)
    reasons = rule.against(marks)
    why = _note(scores, in_z, claim, rule, found.parameter, epsilon, alpha)
    return LowerBound(
        epsilon=epsilon,
        claim=claim.name,
        assumes=claim.assumes,
        valid=claim.exact and rule.valid and not reasons,
        note="; ".join(filter(None, (why, *reasons))),
        of=marks.of or rule.of,
        rule=rule.name,
        delta=claim.delta,
        alpha=alpha,
        **claim.says(found.parameter),
        details=found.details,
    )


def _note(
    scores: Array,
    in_z: NDArray[np.bool_],
    claim: Claim,
    rule: ThresholdRule,
    parameter: float,
    epsilon: float,
    alpha: float,
) -> str:
    """Why the bound is 0 or should be doubted."""
    if parameter >= claim.most:
        return claim.beyond
    if epsilon > 0:
        return rule.note
    if scores.min() == scores.max():
        return "all scores are equal: no threshold separates the worlds"
    if too_few := rule.too_few(int(in_z.sum()), int((~in_z).sum())):
        return too_few
    if parameter > 0:
        return f"the refuted claims have epsilon 0 at delta = {claim.delta:g}"
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
