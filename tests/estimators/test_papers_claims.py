import math

import numpy as np
import pytest
from scipy.integrate import trapezoid
from scipy.stats import beta, norm

from dpsub import accounting
from dpsub.accounting import gdp_epsilon, gdp_mu
from dpsub.estimators import CLAIMS, epsilon_lower_bound, max_certifiable_epsilon
from dpsub.estimators.claims import GDP, ApproximateDP, Errors
from dpsub.estimators.numerics import clopper_pearson_upper

DELTA = 1e-5


@pytest.mark.parametrize(("count", "trials", "expected"), [(3, 128, 0.0669663), (0, 1250, 0.00294675), (7, 7, 1.0)])
def test_clopper_pearson_at_known_points(count, trials, expected):
    assert clopper_pearson_upper(np.array([count]), trials, 0.025)[0] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("claim", CLAIMS)
def test_swapping_the_worlds_and_the_sign_changes_nothing_at_a_fixed_threshold(bounded, gaussian_scores, claim):
    scores, bits = gaussian_scores(6, 500, 1.0)
    here, mirrored = bounded(scores, bits, claim, 0.3), bounded(-scores, 1 - bits, claim, -0.3)
    assert here.epsilon == pytest.approx(mirrored.epsilon, rel=1e-4 if "pld" in claim else 1e-6)
    of_here, of_mirrored = ([bound.details[name] for name in ("fpr_upper", "fnr_upper")] for bound in (here, mirrored))
    assert of_here == pytest.approx(of_mirrored[::-1], rel=1e-12)
    assert here.epsilon > 0
    assert of_here[0] > of_here[1] + 0.01


@pytest.mark.parametrize("claim", ["bayes_gdp", "bayes_dp"])
@pytest.mark.parametrize("counts", [(3, 40, 4, 50), (0, 5, 90, 2_000), (0, 25_000, 10, 25_000), (45, 90, 40, 90)])
def test_the_posterior_of_the_rates_is_integrated_over_both(bounded, worlds, claim, counts):
    fp, n0, fn, n1 = counts
    bound = bounded(*worlds(*counts), claim, 0.5)
    tested, parameter = (GDP(DELTA), bound.mu) if claim == "bayes_gdp" else (ApproximateDP(DELTA), bound.epsilon)
    assert parameter > 0
    most = np.arcsin(np.sqrt(beta.isf(1e-12, fp + 0.5, n0 - fp + 0.5)))
    angle = np.linspace(0, most, 100_001)[1:-1]
    u = np.sin(angle) ** 2
    density = beta.pdf(u, fp + 0.5, n0 - fp + 0.5) * np.sin(2 * angle)
    fnr = beta(fn + 0.5, n1 - fn + 0.5)
    low, high = tested.tradeoff(u, parameter), 1 - tested.tradeoff(1 - u, parameter)
    assert trapezoid(density * (fnr.sf(low) - fnr.sf(high)), angle) == pytest.approx(0.025, rel=1e-3)


@pytest.mark.parametrize("claim", ["bayes_gdp", "bayes_dp", "bayes_pld"])
@pytest.mark.parametrize("counts", [(12, 150, 40, 200), (0, 60, 9, 60), (80, 120, 70, 120)])
def test_both_ends_are_quantiles_over_rates_drawn_from_the_posterior(bounded, worlds, sampled, claim, counts):
    fp, n0, fn, n1 = counts
    bound, draws = bounded(*worlds(*counts), claim, 0.5), 200_000
    rng = np.random.default_rng(5)
    fpr, fnr = (rng.beta(wrong + 0.5, of - wrong + 0.5, draws) for wrong, of in ((fp, n0), (fn, n1)))

    def needed(at, other):  # the least parameter whose region holds these rates
        if claim == "bayes_gdp":
            return np.abs(norm.isf(at) - norm.ppf(other))
        pairs = ((at, other), (other, at), (1 - at, 1 - other), (1 - other, 1 - at))
        return np.max([np.log(np.maximum(1 - DELTA - b, 1e-300) / a) for a, b in pairs], axis=0)

    for share, epsilon in ((0.025, bound.epsilon), (0.975, bound.details["upper"])):
        if claim == "bayes_pld":
            sigma = accounting.noise_multiplier(target_epsilon=epsilon, delta=DELTA, **sampled)
            grid = norm.cdf(np.linspace(-8, 8, 4_001))
            f = accounting.tradeoff(grid, noise_multiplier=sigma, **sampled)
            held = (np.interp(fpr, grid, f) <= fnr) & (fnr <= 1 - np.interp(1 - fpr, grid, f))
        else:
            held = needed(fpr, fnr) <= (gdp_mu(epsilon, DELTA) if claim == "bayes_gdp" else epsilon)
        assert held.mean() == pytest.approx(share, abs=4 * np.sqrt(0.025 * 0.975 / draws))


def test_ends_have_a_closed_form_if_one_rate_is_as_good_as_known():
    known, (fp, n0) = 0.3, (7, 90)
    errors = Errors(np.array([fp]), n0, np.array([int(known * 10**11)]), 10**11)
    of_fpr = norm.isf(beta.ppf([0.975, 0.025], fp + 0.5, n0 - fp + 0.5)) - norm.ppf(known)
    tested = CLAIMS["bayes_gdp"](DELTA)
    assert tested.refuted_by_errors(errors, 0.05) == pytest.approx(of_fpr[0], rel=1e-4)
    assert tested.details_of_errors(errors, 0.05)["upper"] == pytest.approx(gdp_epsilon(of_fpr[1], DELTA), rel=1e-4)


def test_the_posterior_of_a_full_batchs_noise_is_that_of_mu(bounded, gaussian_scores):
    scores, bits = gaussian_scores(20, 600, 1.0)
    full = {"sample_rate": 1.0, "steps": 40, "adjacency": "substitute"}
    noise = epsilon_lower_bound(scores, bits, delta=DELTA, claim="bayes_pld", rule="best", **full)
    mu = bounded(scores, bits, "bayes_gdp", "best")
    assert noise.noise_multiplier == pytest.approx(2 * math.sqrt(40) / mu.mu)
    assert (noise.epsilon, noise.details) == (pytest.approx(mu.epsilon), pytest.approx(mu.details))
    assert (noise.valid, noise.assumes) == (False, "mechanism")


def test_a_credible_bound_is_above_a_confident_one_and_reaches_beyond_ten(bounded, gaussian_scores):
    scores, bits = gaussian_scores(21, 5_000, 4.0)
    confident, credible = bounded(scores, bits, "gdp", 2.0), bounded(scores, bits, "bayes_gdp", 2.0)
    assert 20 < confident.epsilon < credible.epsilon


def test_katz_needs_an_error_of_each_kind_it_takes_a_ratio_with(bounded, worlds):
    none = bounded(*worlds(0, 50, 0, 50), "katz", 0.5)
    assert none.epsilon == 0
    assert "no error" in none.note
    for errors in ((1, 50, 0, 50), (0, 50, 1, 50)):
        one = bounded(*worlds(*errors), "katz", 0.5)
        assert one.epsilon == pytest.approx(math.log(50) - norm.ppf(0.975) * math.sqrt(1 - 1 / 50))


def test_no_number_of_errors_beats_the_ceiling_of_katz(bounded, worlds):
    for runs in (10, 11, 40, 41):
        n0, n1 = runs // 2, runs - runs // 2
        most = max(
            bounded(*worlds(fp, n0, fn, n1), "katz", 0.5).epsilon for fp in range(n0 + 1) for fn in range(n1 + 1)
        )
        assert max_certifiable_epsilon(runs, delta=DELTA, claim="katz", rule="best") == pytest.approx(most)
