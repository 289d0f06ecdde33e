import numpy as np
import pytest
from scipy.stats import binom

from dpsub.accounting import epsilon_interval, gdp_delta, tradeoff
from dpsub.accounting.delta_to_tradeoff import tradeoff as of_deltas
from dpsub.accounting.revealed_batches import RevealedCurve


def averaged(epsilon):
    """δ of σ = 1.5, q = 0.3 and four steps under substitution, if it is known which batches held the record."""
    law = binom(4, 0.3)
    return sum(law.pmf(k) * gdp_delta(2 * np.sqrt(k) / 1.5, epsilon) for k in range(5))


@pytest.fixture(scope="module")
def curve():
    return RevealedCurve(2.0, 1.5, 0.3, 4)


@pytest.mark.parametrize("epsilon", [0.0, 1.0, 3.0])
def test_it_is_the_closed_form_averaged_over_the_batches(curve, epsilon):
    assert curve.delta(epsilon)[1] == pytest.approx(averaged(epsilon), rel=1e-9)
    assert curve.epsilon(averaged(epsilon) * (1 + 1e-12))[1] == pytest.approx(epsilon, abs=1e-6)


def test_its_tradeoff_lies_below_the_exact_one_and_is_that_of_its_deltas(curve):
    rates = np.linspace(0, 1, 11)
    lower, _ = curve.tradeoff(rates)
    exact = tradeoff(rates, noise_multiplier=1.5, sample_rate=0.3, steps=4, adjacency="substitute")
    assert (lower <= exact + 1e-4).all()
    epsilon = np.linspace(0, 25, 1_001)
    assert lower == pytest.approx(of_deltas(rates, epsilon, np.array([averaged(e) for e in epsilon])), abs=1e-4)


@pytest.mark.parametrize(("sigma", "q", "delta"), [(12.1148681640625, 0.25, 1e-300), (0.02, 0.01, 1e-5)])
def test_where_no_grid_helps_the_bound_is_that_of_revealed_batches(sigma, q, delta):
    setting = {"noise_multiplier": sigma, "sample_rate": q, "steps": 500}
    interval = epsilon_interval(**setting, delta=delta, adjacency="substitute")
    assert interval.bound == "revealed batches"
    assert interval.upper == RevealedCurve(2.0, **setting).epsilon(delta)[1]
    assert 0 < interval.lower < interval.upper
