import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr, ndtri

from dpsub.accounting.delta_to_tradeoff import tradeoff
from dpsub.accounting.gaussian import GaussianCurve, gdp_delta

RATES = np.concatenate(([0.0], np.logspace(-12, -1, 12), np.linspace(0.1, 1, 10)))


def naive(fpr, epsilon, delta):
    """The best of all lines, one by one."""
    best = np.zeros_like(fpr)
    for e, d in zip(epsilon, delta, strict=True):
        best = np.maximum(best, np.maximum(1 - d - np.exp(e) * fpr, np.exp(-e) * (1 - d - fpr)))
    return best


@given(mu=st.floats(0.01, 8), points=st.integers(2, 60))
@settings(max_examples=50, deadline=None)
def test_it_is_the_best_of_all_lines(mu, points):
    epsilon = np.linspace(0, mu**2 / 2 + 9 * mu, points)
    delta = np.array([gdp_delta(mu, e) for e in epsilon])
    assert tradeoff(RATES, epsilon, delta) == pytest.approx(naive(RATES, epsilon, delta), abs=1e-12)


@pytest.mark.parametrize("mu", [0.01, 1.0, 5.0])
def test_it_recovers_gaussian_privacy_from_below(mu):
    epsilon = np.linspace(0, mu**2 / 2 + 9 * mu, 10_001)
    found = tradeoff(RATES, epsilon, np.array([gdp_delta(mu, e) for e in epsilon]))
    exact = ndtr(-ndtri(RATES) - mu)
    assert found == pytest.approx(exact, abs=1e-6)
    assert (found <= exact + 1e-12).all()
    assert (GaussianCurve(mu).tradeoff(RATES)[0] == exact).all()


def test_no_privacy_allows_no_errors():
    assert tradeoff(RATES[1:], np.array([0.0, 1.0]), np.array([1.0, 1.0])) == pytest.approx(0, abs=1e-15)


def test_perfect_privacy_is_guessing():
    assert tradeoff(RATES, np.array([0.0, 1.0]), np.array([0.0, 0.0])) == pytest.approx(1 - RATES)
