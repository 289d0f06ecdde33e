from itertools import pairwise

import numpy as np
import pytest
import xarray as xr
from scipy.special import betaincinv
from scipy.stats import binom, norm

from dpsub.accounting import risk
from dpsub.accounting.risks import MEASURES, accuracy, posterior, ppv, without_model
from dpsub.estimators import risk_lower_bound
from dpsub.estimators.numerics import probability_above
from dpsub.estimators.risk_bounds import BeliefAt, DeltaAt, RateAt

SETTINGS = {"prior": 0.3, "fpr": 0.05, "delta": 0.1}


class Gaussian:
    """Scores N(1, 1) of z and N(0, 1) of z′."""

    def risks(self):
        return risk(noise_multiplier=2, sample_rate=1, steps=1, adjacency="substitute", **SETTINGS)

    def scores(self, in_z, rng):
        return rng.normal(size=len(in_z)) + in_z


class Lottery:
    """In one of twenty trainings with z its score says so; otherwise both worlds look alike. Far from Gaussian."""

    share = 0.05

    def risks(self):
        prior, fpr, delta = SETTINGS.values()
        epsilons = np.linspace(0, 40, 4001)
        deltas = np.full_like(epsilons, self.share)
        tpr = self.share + (1 - self.share) * fpr
        found = {
            "accuracy": accuracy((prior, 1 - prior), epsilons, deltas), "advantage": self.share, "tpr": tpr,
            "ppv": ppv(prior, tpr, fpr), "posterior": posterior(prior, delta, epsilons, deltas),
        }  # fmt: skip
        return type("Risks", (), found)

    def scores(self, in_z, rng):
        return rng.random(len(in_z)) + (in_z & (rng.random(len(in_z)) < self.share))


@pytest.mark.parametrize(
    ("truth", "runs", "audits", "alpha"),
    [
        (Gaussian(), 300, 20, 0.25),
        *(
            pytest.param(truth, runs, 1_000, 0.05, marks=pytest.mark.slow)
            for truth in (Gaussian(), Lottery())
            for runs in (300, 3_000)
        ),
    ],
)
@pytest.mark.parametrize("measure", MEASURES)
def test_bounds_exceed_the_truth_in_at_most_alpha_of_audits(truth, runs, audits, alpha, measure):
    known, rng = getattr(truth.risks(), measure), np.random.default_rng(12)
    found = []
    for _ in range(audits):
        bits = rng.integers(0, 2, runs)
        scores = truth.scores(bits == 0, rng)
        found.append(risk_lower_bound(scores, bits, measure=measure, alpha=alpha, **SETTINGS))
    risks = np.array([bound.risk for bound in found])
    assert (risks > known).sum() <= binom.ppf(0.999, audits, alpha)
    floor = without_model((0.3, 0.7), 0.05)[measure]
    assert all(bound.valid and bound.without_model == floor <= bound.risk for bound in found)
    if isinstance(truth, Gaussian):
        assert np.mean(risks) > floor + (0.15 if runs < 1_000 else 0.4) * (known - floor)


def test_an_accuracy_is_bounded_near_what_the_attack_has():
    rng = np.random.default_rng(1)
    bits = rng.integers(0, 2, 20_000)
    found = risk_lower_bound(rng.normal(size=20_000) + (bits == 0), bits)
    assert norm.cdf(0.5) - 0.015 < found.risk < norm.cdf(0.5)
    of_advantage = risk_lower_bound(rng.normal(size=20_000) + (bits == 0), bits, measure="advantage")
    assert of_advantage.risk == pytest.approx(2 * found.risk - 1, abs=0.02)


@pytest.mark.parametrize(
    "claim", [DeltaAt(0.0), DeltaAt(2.0), RateAt(0.05), RateAt(0.5), BeliefAt(0.3, 0.1), BeliefAt(0.9, 0.01)]
)
def test_claims_are_weaker_for_larger_parameters_and_say_nothing_at_the_ends(claim):
    rates = np.linspace(0, 1, 301)
    curves = [claim.tradeoff(rates, parameter) for parameter in np.linspace(0, 1, 41)]
    for stronger, weaker in pairwise(curves):
        assert (weaker <= stronger + 1e-12).all()
    for curve in curves:
        assert (np.diff(curve) <= 1e-12).all()
        assert ((curve >= 0) & (curve <= 1 - rates + 1e-12)).all()
    if not isinstance(claim, DeltaAt):
        assert curves[0] == pytest.approx(1 - rates)
    assert curves[-1][1:] == pytest.approx(0) or isinstance(claim, RateAt)


def test_a_claim_of_one_point_is_what_the_point_says():
    """Of all concave curves through (0, 0) and (1, 1) that are not above the point, the highest."""
    claim, a = RateAt(0.1), 0.1
    parameter = 0.25
    t = a + (1 - a) * parameter
    assert claim.tradeoff(np.array([a]), parameter)[0] == pytest.approx(1 - t)
    rng = np.random.default_rng(3)
    for _ in range(200):
        # A random mechanism of five outcomes and its curve, scaled towards chance until it is not above the point.
        p, q = rng.dirichlet(np.ones(5), size=2)
        pairs = [(q, p), (p, q)]
        curves = []
        for under, over in pairs:
            order = np.argsort(over / under)[::-1]
            curves.append((np.append(0, np.cumsum(under[order])), np.append(0, np.cumsum(over[order]))))
        at_a = max(np.interp(a, *curve) for curve in curves)
        mixed = min((t - a) / max(at_a - a, 1e-9), 1.0)
        for fpr, tpr in curves:
            f = 1 - (mixed * tpr + (1 - mixed) * fpr)
            assert (f >= claim.tradeoff(fpr, parameter) - 1e-9).all()


def test_integrals_of_claims_with_jumps_are_exact():
    """The rank test's integral, against the mean over the quantiles of the false-positive rate."""
    rank, negatives, missed, positives = 30.0, 400, 150, 380
    for claim, parameter in ((RateAt(0.05), 0.5), (BeliefAt(0.3, 0.1), 0.6), (DeltaAt(1.0), 0.3)):
        rates = betaincinv(rank, negatives - rank + 1, (np.arange(20_000) + 0.5) / 20_000)
        mean = binom.cdf(missed, positives, claim.tradeoff(rates, parameter)).mean()
        law = (np.array([rank]), np.array([negatives - rank + 1.0]))
        count = (np.array([missed + 1.0]), np.array([float(positives - missed)]))
        assert probability_above(claim, parameter, law, count)[0] == pytest.approx(mean, abs=2e-5)


@pytest.mark.parametrize("measure", MEASURES)
class TestDegenerateScores:
    def test_a_perfect_attack_shows_nearly_all(self, measure):
        bits = np.arange(4_000) // 2 % 2
        found = risk_lower_bound(1.0 - bits, bits, measure=measure, fpr=0.05, delta=0.05)
        assert found.risk > 0.94
        assert found.note == ""

    def test_scores_that_say_nothing_show_the_prior_and_why(self, measure):
        bits = np.arange(400) // 2 % 2
        found = risk_lower_bound(np.zeros(400), bits, measure=measure, prior=0.2)
        assert found.risk == pytest.approx(without_model((0.2, 0.8), 0.01)[measure])
        assert found.note.startswith("the scores show no more than the prior")
        assert f"{measure} ≥ {found.risk:.3g}" in str(found)

    def test_exchanging_the_worlds_changes_only_the_prior_that_is_asked_about(self, measure, gaussian_scores):
        scores, bits = gaussian_scores(5, 2_000, 2.0)
        one = risk_lower_bound(scores, bits, measure=measure, delta=0.1)
        other = risk_lower_bound(-scores, 1 - bits, measure=measure, delta=0.1)
        assert other.risk == pytest.approx(one.risk, abs=0.1)


def test_steps_give_one_bound_each(gaussian_scores):
    scores, bits = gaussian_scores(6, 500, 2.0)
    both = risk_lower_bound(np.stack([scores, -scores], axis=1), bits)
    assert both[0] == risk_lower_bound(scores, bits)
    assert both[1].risk == 0.5


def test_marks_and_folds_are_heeded(gaussian_scores):
    scores, bits = gaussian_scores(7, 800, 2.0)
    folded = risk_lower_bound(scores, bits, folds=np.arange(800) // 200)
    assert (folded.rule, folded.valid) == ("folds", True)
    assert folded.risk == pytest.approx(risk_lower_bound(scores, bits).risk, abs=0.03)
    of_steps = risk_lower_bound(xr.DataArray(scores, dims="observation"), bits)
    assert (of_steps.valid, of_steps.of) == (False, "step")
    assert "depend on each other" in of_steps.note
    learned = xr.DataArray(scores, dims="run", coords={"in_sample": ("run", np.ones(800))})
    assert not risk_lower_bound(learned, bits).valid


def test_a_bound_prints_as_one_line(gaussian_scores):
    printed = str(risk_lower_bound(*gaussian_scores(8, 2_000, 2.0), measure="tpr", alpha=0.1))
    assert printed.startswith("tpr ≥ 0.")
    assert " at FPR 0.01, 90 % confidence (prior 0.5: 0.01 without the model; by ranks; assumes nothing; " in printed
