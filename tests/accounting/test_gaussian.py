import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from dpsub.accounting import gdp_delta, gdp_epsilon, gdp_mu


# Made by an independent implementation.
@pytest.mark.parametrize(
    ("mu", "expected"), [(1.0, 4.3771781), (0.01, 0.02721942), (2e-5, 0.0), (10.0, 91.81728962), (0.0, 0.0)]
)
def test_gdp_epsilon_at_known_points(mu, expected):
    assert gdp_epsilon(mu, 1e-5) == pytest.approx(expected, abs=1e-6)


def test_gdp_mu_at_a_known_point():
    assert gdp_mu(4.0, 1e-5) == pytest.approx(0.9249309, abs=1e-6)


@pytest.mark.parametrize(("mu", "epsilon"), [(0.5, 0.3), (1.0, 2.0), (3.0, 4.0)])
def test_gdp_delta_is_the_formula(mu, epsilon):
    formula = norm.cdf(-epsilon / mu + mu / 2) - np.exp(epsilon) * norm.cdf(-epsilon / mu - mu / 2)
    assert gdp_delta(mu, epsilon) == pytest.approx(formula, rel=1e-10)


@given(mu=st.floats(1e-3, 60), log_delta=st.floats(-25, -0.5))
def test_epsilon_and_mu_invert_each_other(mu, log_delta):
    delta = np.exp(log_delta)
    epsilon = gdp_epsilon(mu, delta)
    if epsilon > 0:
        assert gdp_delta(mu, epsilon) == pytest.approx(delta, rel=1e-6)
        assert gdp_mu(epsilon, delta) == pytest.approx(mu, rel=1e-6)
    else:
        assert gdp_delta(mu, 0.0) <= delta


def test_delta_does_not_overflow_where_epsilon_is_large():
    assert 0 <= gdp_delta(50.0, 5_000.0) < 1e-100
    assert gdp_delta(200.0, 1_000.0) == pytest.approx(1.0)


# Made with mpmath, at 60 digits.
@pytest.mark.parametrize(
    ("mu", "epsilon", "expected"),
    [
        (1e-14, 1e-13, 7.474560254589678e-39),
        (5.0, 150.0, 1.3477133481956158e-167),
        (1e8, 4999999700000000.0, 0.9986501019240515),
    ],
)
def test_gdp_delta_far_out(mu, epsilon, expected):
    assert gdp_delta(mu, epsilon) == pytest.approx(expected, rel=1e-12, abs=0)


@pytest.mark.parametrize(
    ("mu", "delta", "expected"),
    [
        (1e-14, 1e-30, 7.965826309530426e-14),
        (1.0, 5e-324, 38.87183283249431),
        (20.0, 1 - 2**-53, 34.525037097434364),
    ],
)
def test_gdp_epsilon_far_out(mu, delta, expected):
    assert gdp_epsilon(mu, delta) == pytest.approx(expected, rel=1e-12, abs=0)


@pytest.mark.parametrize(
    ("epsilon", "delta", "expected"),
    [
        (0.0, 1e-100, 2.5066282746310004e-100),
        (1e-13, 1e-30, 1.2510821956107554e-14),
    ],
)
def test_gdp_mu_far_out(epsilon, delta, expected):
    assert gdp_mu(epsilon, delta) == pytest.approx(expected, rel=1e-12, abs=0)


@pytest.mark.parametrize("delta", [1e-300, 0.1, 0.5, 0.9])
def test_at_no_epsilon_mu_is_what_delta_allows(delta):
    assert gdp_delta(gdp_mu(0.0, delta), 0.0) == pytest.approx(delta, rel=1e-12)
