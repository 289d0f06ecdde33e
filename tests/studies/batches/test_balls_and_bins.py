import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import binom, norm

from dpsub import accounting
from studies.batches import balls_and_bins


def two_bins(sigma, delta):
    """The ε of one epoch of two batches, by the densities on the plane."""
    x = np.linspace(-1 - 9 * sigma, 1 + 9 * sigma, 1_201)
    zero, one = norm.pdf(x, 0, sigma), norm.pdf(x, 1, sigma)
    p = (np.outer(one, zero) + np.outer(zero, one)) / 2
    return brentq(lambda e: np.maximum(p - np.exp(e) * p[::-1, ::-1], 0).sum() * (x[1] - x[0]) ** 2 - delta, 0, 20)


@pytest.mark.parametrize("sigma", [0.7, 2.0])
def test_the_pair_of_two_batches_has_the_epsilon_of_its_densities(sigma):
    low, estimate, high = balls_and_bins.epsilon_interval(
        noise_multiplier=sigma, sample_rate=0.5, steps=2, delta=1e-5, samples=50_000
    )
    truth = two_bins(sigma, 1e-5)
    assert estimate == pytest.approx(truth, rel=0.01)
    assert 0.97 * truth < low < truth < high
    assert high == pytest.approx(accounting.gdp_epsilon(2 / sigma, 1e-5))


@pytest.mark.slow
def test_the_lower_end_exceeds_the_truth_in_at_most_alpha_of_cases():
    asked = {"noise_multiplier": 6.0, "sample_rate": 0.5, "steps": 6, "delta": 1e-4, "samples": 2_000, "alpha": 0.2}
    truth = balls_and_bins.epsilon_interval(**{**asked, "samples": 400_000}, seed=99)[1]
    lower = np.array([balls_and_bins.epsilon_interval(**asked, seed=seed)[0] for seed in range(150)])
    assert (lower > truth).sum() <= binom.ppf(0.999, 150, 0.2)
    assert np.median(lower) > 0.9 * truth


def test_one_batch_an_epoch_is_a_gaussian_mechanism():
    low, estimate, high = balls_and_bins.epsilon_interval(noise_multiplier=20, sample_rate=1.0, steps=100, delta=1e-5)
    assert 0.98 * high < low < high
    assert estimate == pytest.approx(high, rel=0.01)
