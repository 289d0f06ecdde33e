import math

import numpy as np
import pytest
from scipy.integrate import trapezoid
from scipy.stats import beta, norm

from dpsub.estimators import CLAIMS, max_certifiable_epsilon
from dpsub.estimators.claims import GDP, ApproximateDP
from dpsub.estimators.numerics import clopper_pearson_upper

DELTA = 1e-5


@pytest.mark.parametrize(("count", "trials", "expected"), [(3, 128, 0.0669663), (0, 1250, 0.00294675), (7, 7, 1.0)])
def test_clopper_pearson_at_known_points(count, trials, expected):
    assert clopper_pearson_upper(np.array([count]), trials, 0.025)[0] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("claim", CLAIMS)
def test_swapping_the_worlds_and_the_sign_changes_nothing_at_a_fixed_threshold(bounded, gaussian_scores, claim):
    scores, bits = gaussian_scores(6, 500, 1.0)
    here, mirrored = bounded(scores, bits, claim, 0.3), bounded(-scores, 1 - bits, claim, -0.3)
    assert here.epsilon == pytest.approx(mirrored.epsilon, rel=1e-4 if claim == "pld" else 1e-6)
    of_here, of_mirrored = ([bound.details[name] for name in ("fpr_upper", "fnr_upper")] for bound in (here, mirrored))
    assert of_here == pytest.approx(of_mirrored[::-1], rel=1e-12)
    assert here.epsilon > 0
    assert of_here[0] > of_here[1] + 0.01


@pytest.mark.parametrize("claim", ["bayes_gdp", "bayes_dp"])
@pytest.mark.parametrize("counts", [(3, 40, 4, 50), (0, 5, 90, 2_000), (0, 25_000, 10, 25_000)])
def test_the_posterior_of_the_rates_is_integrated_over_both(bounded, worlds, claim, counts):
    fp, n0, fn, n1 = counts
    bound = bounded(*worlds(*counts), claim, 0.5)
    tested, parameter = (GDP(DELTA), bound.mu) if claim == "bayes_gdp" else (ApproximateDP(DELTA), bound.epsilon)
    assert parameter > 0
    angle = np.linspace(0, np.pi / 2, 100_001)[1:-1]
    u = np.sin(angle) ** 2
    density = beta.pdf(u, fp + 0.5, n0 - fp + 0.5) * np.sin(2 * angle)
    tail = beta.sf(np.clip(tested.tradeoff(u, parameter), 0, 1), fn + 0.5, n1 - fn + 0.5)
    assert trapezoid(density * tail, angle) == pytest.approx(0.05, rel=1e-3)


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
