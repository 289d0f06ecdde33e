import numpy as np
import pytest
from scipy.stats import binom, norm

from dpsub.accounting import epsilon, epsilon_interval, gdp_epsilon, worst_case_epsilon
from dpsub.accounting.worst_case_law import IndependentBatches


@pytest.fixture(scope="module")
def sixteenth():
    return {"noise_multiplier": 1.6772842407226562, "sample_rate": 0.0625, "steps": 500}


def law_of(noise_multiplier, sample_rate, steps, mirrored=True):
    return IndependentBatches(noise_multiplier, sample_rate, steps, mirrored)


def mixture_pdf(x, sign, *, noise_multiplier, sample_rate, steps):
    k = np.arange(steps + 1)
    weights = binom.pmf(k, steps, sample_rate)
    return norm.pdf(x[:, None], sign * k, np.sqrt(steps) * noise_multiplier) @ weights


def test_log_likelihood_ratio_at_known_points(sixteenth):
    ratio = law_of(**sixteenth).ratios_of_sums(np.array([0.0, 10.0, 60.0, 400.0]))
    np.testing.assert_allclose(ratio, [0.0, 0.43522009, 2.61191753, 17.5907543], atol=1e-6)


@pytest.mark.parametrize("adjacency", ["substitute", "add_remove"])
@pytest.mark.parametrize(
    ("sigma", "q", "steps"), [(3.0, 0.0625, 200), (1.0, 1.0, 4), (20.0, 0.5, 50), (0.4, 0.3, 10), (0.05, 0.5, 100)]
)
def test_log_likelihood_ratio_is_that_of_the_mixtures(sigma, q, steps, adjacency):
    mechanism = {"noise_multiplier": sigma, "sample_rate": q, "steps": steps}
    x = np.linspace(-3, 3, 31) * np.sqrt(steps) * sigma
    other = -1 if adjacency == "substitute" else 0
    naive = np.log(mixture_pdf(x, 1, **mechanism)) - np.log(mixture_pdf(x, other, **mechanism))
    ratio = law_of(**mechanism, mirrored=adjacency == "substitute").ratios_of_sums(x)
    np.testing.assert_allclose(ratio, naive, rtol=1e-9, atol=1e-9)
    assert np.all(np.diff(ratio) > 0)


def test_error_rates_of_a_threshold_at_known_points(sixteenth):
    assert law_of(**sixteenth).log_above(50.0, -1) == pytest.approx(-4.13522257, abs=1e-6)
    assert np.log1p(-np.exp(law_of(**sixteenth).log_above(50.0, 1))) == pytest.approx(-0.37156823, abs=1e-6)


def test_full_batch_ratio_is_linear_in_the_sum():
    x = np.array([-1e6, 3.0, 1e6])
    ratio = IndependentBatches(2.0, 1.0, 10, mirrored=True).ratios_of_sums(x)
    np.testing.assert_allclose(ratio, 2 * x / 4, rtol=1e-12)


def test_worst_case_epsilon_at_a_known_point(sixteenth):
    assert worst_case_epsilon(**sixteenth, delta=1e-5) == pytest.approx(7.92371045, abs=1e-5)


def test_worst_case_epsilon_is_the_accountants_where_the_sum_says_all():
    one_step = {"noise_multiplier": 0.8, "sample_rate": 0.3, "steps": 1, "delta": 1e-4}
    low, _, high = epsilon_interval(**one_step, adjacency="substitute")
    assert low - 1e-6 <= worst_case_epsilon(**one_step) <= high + 1e-6


@pytest.mark.parametrize("sigma", [10.495, 1.677])
def test_worst_case_epsilon_is_at_most_the_accountants(sigma):
    setting = {"noise_multiplier": sigma, "sample_rate": 0.0625, "steps": 500, "delta": 1e-5}
    assert 0.9 < worst_case_epsilon(**setting) / epsilon(**setting, adjacency="substitute") <= 1


def test_worst_case_epsilon_is_zero_where_delta_alone_suffices():
    assert worst_case_epsilon(noise_multiplier=100.0, sample_rate=1e-4, steps=1, delta=0.1) == 0.0


@pytest.mark.parametrize("delta", [5e-324, 1e-300, 1e-5, 1 - 2**-53])
def test_worst_case_epsilon_at_any_delta_is_that_of_the_full_batch(delta):
    found = worst_case_epsilon(noise_multiplier=1.0, sample_rate=1.0, steps=100, delta=delta)
    assert found == pytest.approx(gdp_epsilon(20.0, delta), rel=1e-9)
