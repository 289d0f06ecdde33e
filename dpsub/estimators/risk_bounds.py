"""Lower bounds on what an attacker learns, from an audit, without assuming anything of the mechanism."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from dpsub._core import checks
from dpsub.accounting.risks import MEASURES, ppv, without_model
from dpsub.accounting.statements import rounded
from dpsub.estimators.claims import ApproximateDP
from dpsub.estimators.numerics import Array, Tested
from dpsub.estimators.rank_tests import MIDDLING, ByFolds, ByRanks, at_shares, in_folds, near_ends, refuted_by_folds
from dpsub.estimators.scores_and_marks import Of, scores_bits_and_marks

EVEN = 1.0  # with a prior whose log odds are less than this, middle ranks show the accuracy best


@dataclass(frozen=True)
class RiskBound:
    """A lower bound on what an attacker learns, and how it was obtained. `str` says it in one line.

    Attributes:
        risk: the bound.
        measure: of which risk, as in `Risk`.
        valid: True if P(risk > truth) ≤ alpha. False if the scores' marks speak against it: `note` says which.
        prior, fpr, delta: of the risk.
        without_model: the same risk for an attacker who has not seen the model. The bound is never below it.
        alpha: one minus the confidence.
        note: why the bound shows nothing or should be doubted; otherwise "".
        of: what has this risk: "step", "training", or None, as in `LowerBound`.
        rule: "ranks" or "folds".
    """

    risk: float
    measure: str
    valid: bool
    prior: float
    fpr: float
    delta: float
    without_model: float
    alpha: float
    note: str = ""
    of: Of | None = None
    rule: str = ""

    def __str__(self) -> str:
        at = {"tpr": f" at FPR {self.fpr:g}", "ppv": f" at FPR {self.fpr:g}", "posterior": f" at δ = {self.delta:g}"}
        held = "valid" if self.valid else "not valid"
        doubt = f": {self.note}" if self.note else ""
        least = f"{self.measure} ≥ {rounded(self.risk, up=False)}{at.get(self.measure, '')}"
        return (
            f"{least}, {100 * (1 - self.alpha):.4g} % confidence "
            f"(prior {self.prior:g}: {self.without_model:.3g} without the model; by {self.rule}; assumes nothing; "
            f"{held}{doubt})"
        )


class RiskClaim(Tested, ABC):
    """A family of claims that a risk is at most so much. Its parameter is 0 if nothing is learnt, and at most 1."""

    most = 1.0

    @abstractmethod
    def ranks(self, negatives: int) -> dict[int, float]:
        """Ranks among the negative world's scores, counted from the largest, and each one's share of alpha."""


@dataclass(frozen=True)
class DeltaAt(RiskClaim):
    """(ε, d)-DP at this ε; the parameter is d."""

    epsilon: float

    def tradeoff(self, fpr: Array, parameter: float) -> Array:
        return ApproximateDP(parameter).tradeoff(fpr, self.epsilon)

    def kinks(self, parameter: float) -> tuple[float, ...]:
        return ApproximateDP(parameter).kinks(self.epsilon)

    def ranks(self, negatives: int) -> dict[int, float]:
        return at_shares(MIDDLING, negatives) if self.epsilon < EVEN else near_ends(negatives)


class AtOnePoint(RiskClaim):
    """True-positive rates of at most t at the false-positive rate a, in either direction."""

    @abstractmethod
    def point(self, parameter: float) -> tuple[float, float]:
        """a and t."""

    def tradeoff(self, fpr: Array, parameter: float) -> Array:
        a, t = self.point(parameter)
        if not a:
            return np.where(fpr <= 0, max(1 - t, 0.0), 0.0)
        inverse = np.where(fpr < 1 - t, a * (1 - fpr) / t, 0.0)
        return np.asarray(np.maximum(np.maximum(1 - t * np.maximum(fpr / a, 1.0), inverse), 0.0))

    def kinks(self, parameter: float) -> tuple[float, ...]:
        a, t = self.point(parameter)
        return a, max(1 - t, 0.0), min(a / t, 1.0)

    def ranks(self, negatives: int) -> dict[int, float]:
        # Weak attacks show most at the claim's own false-positive rate, strong ones at a smaller one.
        share, _ = self.point(0.0)
        return at_shares({share: 0.5, share / 2: 0.5}, negatives)


@dataclass(frozen=True)
class RateAt(AtOnePoint):
    """The true-positive rate at a false-positive rate."""

    fpr: float

    def point(self, parameter: float) -> tuple[float, float]:
        return self.fpr, self.fpr + (1 - self.fpr) * parameter


@dataclass(frozen=True)
class BeliefAt(AtOnePoint):
    """The average belief in z over the event of probability δ in which it is largest."""

    prior: float
    delta: float

    def point(self, parameter: float) -> tuple[float, float]:
        level = self.prior + (1 - self.prior) * parameter
        return (1 - level) * self.delta / (1 - self.prior), level * self.delta / self.prior


@checks.checked(
    "alpha",
    "delta",
    measure=partial(checks.choice, options=MEASURES),
    prior=checks.probability,
    fpr=checks.probability,
)
def risk_lower_bound(
    scores: ArrayLike,
    bits: ArrayLike,
    *,
    measure: str = "accuracy",
    prior: float = 0.5,
    fpr: float = 0.01,
    delta: float = 1e-5,
    alpha: float = 0.05,
    folds: ArrayLike | None = None,
) -> RiskBound | list[RiskBound]:
    r"""A lower bound on what an attacker with a prior learns, that an audit's scores support with confidence 1 − alpha.

    It bounds the risk that `dpsub.accounting.risk` bounds from above, by the exact rank test of
    `epsilon_lower_bound`, and assumes nothing of the mechanism. An attack that finds little bounds little. Of small
    probabilities, such as a posterior at δ = 1e-5, a few thousand runs show nothing without an assumption.

    That a risk is at most so much is a claim on the trade-off function of the worse direction:

    - That the accuracy is at most max(π, 1 − π) + min(π, 1 − π)·d says that (ε, d)-DP holds for
      :math:`\varepsilon = |\ln(\pi/(1-\pi))|`. The advantage is the case ε = 0.
    - That the true-positive rate at the false-positive rate a is at most t bounds those at all others: the curve of
      true-positive rates is concave, so that it is at most t before a, and at most t·u/a at u behind it.
    - That the posterior is at most p says this for a = (1 − p)·δ/(1 − π) and t = p·δ/π: an event of probability δ in
      which the attacker's average belief is p. This average is what the bound is of. `accounting.risk` bounds it from
      above, and with it the belief that is exceeded with a probability of at most δ, which may be smaller.

    Args:
        scores, bits, folds: as in `epsilon_lower_bound`: one row for each model, higher speaks for z, which is bit 0.
        measure: "accuracy", "advantage", "tpr", "ppv" or "posterior", as in `Risk`.
        prior: the probability, > 0 and < 1, that the attacker gives to z before seeing the model. It need not be the
            share of the runs with z.
        fpr: 0 < fpr < 1; the false-positive rate of "tpr" and "ppv".
        delta: 0 < δ < 1; the probability of the cases over which "posterior" is the average of the largest beliefs.
        alpha: 1e-12 < alpha < 0.5; the probability with which the bound may exceed the truth.

    Returns:
        A `RiskBound`; for scores (runs, steps) a list with one for each step, which do not hold together.

    Raises:
        ValueError: as `epsilon_lower_bound`.

    Source: the book explains the rank test.

    >>> rng = np.random.default_rng(0)
    >>> bits = rng.integers(0, 2, 2_500)
    >>> scores = rng.normal(size=2_500) + (bits == 0)  # an attacker is right with a probability of 0.69
    >>> print(risk_lower_bound(scores, bits))
    accuracy ≥ 0.656, 95 % confidence (prior 0.5: 0.5 without the model; by ranks; assumes nothing; valid)
    """
    columns, in_z, several, marks = scores_bits_and_marks(scores, bits, folds)
    by = ByRanks() if marks.folds is None else ByFolds().fitted(marks)
    claim: RiskClaim = {
        "accuracy": DeltaAt(abs(math.log(prior / (1 - prior)))),
        "advantage": DeltaAt(0.0),
        "posterior": BeliefAt(prior, delta),
    }.get(measure, RateAt(fpr))
    floor = without_model((prior, 1 - prior), fpr)[measure]
    reasons = by.against(marks)

    def bounded(column: Array) -> RiskBound:
        worlds = by.worlds(column, in_z)
        negatives = [len(of_z_prime) for _, of_z_prime in worlds]
        few, refuted = by.too_few(0, sum(negatives)), 0.0
        if not few:
            ranks = in_folds(claim.ranks(sum(negatives)), negatives)
            refuted = refuted_by_folds(claim, worlds, ranks, alpha).parameter
        shown = ppv(prior, fpr + (1 - fpr) * refuted, fpr) if measure == "ppv" else floor + (1 - floor) * refuted
        nothing = "" if refuted else "the scores show no more than the prior: the attack is too weak, or runs too few"
        return RiskBound(
            risk=shown if refuted else floor,
            measure=measure,
            valid=by.valid and not reasons,
            prior=prior,
            fpr=fpr,
            delta=delta,
            without_model=floor,
            alpha=alpha,
            note="; ".join(filter(None, (few or nothing, *reasons))),
            of=marks.of,
            rule=by.name,
        )

    bounds = [bounded(column) for column in columns.T]
    return bounds if several else bounds[0]
