import math

import numpy as np
import pytest
from scipy.stats import norm

from dpsub.accounting import tradeoff


# Made by an independent implementation.
def test_tradeoff_at_a_known_point():
    setting = {"noise_multiplier": 1.6772842407226562, "sample_rate": 0.0625, "steps": 500}
    found = tradeoff(0.05, **setting, adjacency="substitute")
    assert found <= 0.49390191 + 1e-7
    assert found == pytest.approx(0.49390191, abs=2.1e-5)


def mixtures(sigma, q, x):
    """P(score > x) and Q(score > x) of one step of the substitute pair, whose likelihood ratio is monotone."""
    return tuple((1 - q) * norm.sf(x, 0, sigma) + q * norm.sf(x, mean, sigma) for mean in (1, -1))


@pytest.mark.parametrize(("sigma", "q"), [(0.7, 0.4), (2.0, 0.05), (0.5, 0.9)])
def test_tradeoff_of_one_step_is_that_of_thresholds(sigma, q):
    tpr, fpr = mixtures(sigma, q, np.linspace(-4 * sigma - 1, 4 * sigma + 1, 41))
    found = tradeoff(fpr, noise_multiplier=sigma, sample_rate=q, steps=1, adjacency="substitute")
    assert (found <= 1 - tpr + 1e-9).all()
    assert found == pytest.approx(1 - tpr, abs=2.1e-5)


def test_tradeoff_under_add_remove_is_the_lower_direction_made_symmetric_and_convex():
    sigma, q = 0.6, 0.3
    x = np.linspace(-3, 3, 241)
    with_record, without = (1 - q) * norm.sf(x, 0, sigma) + q * norm.sf(x, 1, sigma), norm.sf(x, 0, sigma)
    asked = {"noise_multiplier": sigma, "sample_rate": q, "steps": 1, "adjacency": "add_remove"}
    for fpr, fnr in ((without, 1 - with_record), (1 - with_record, without)):
        above = fnr - tradeoff(fpr, **asked)
        assert above.min() >= -1e-9
        assert above.min() <= 2.1e-5, "either direction decides somewhere"
    rates = np.linspace(0, 1, 21)
    twice = tradeoff(tradeoff(rates, **asked), **asked)
    assert twice == pytest.approx(rates, abs=2e-3)
    assert (np.diff(tradeoff(rates, **asked), 2) >= -1e-4).all()


def test_tradeoff_keeps_shape_and_is_exact_at_full_batch(full, quarter):
    rates = np.array([[0.0, 0.2], [0.7, 1.0]])
    for adjacency, distance in (("substitute", 2), ("zero_out", 1)):
        mu = distance * math.sqrt(500) / full["noise_multiplier"]
        found = tradeoff(rates, **full, steps=500, adjacency=adjacency)
        assert found == pytest.approx(norm.sf(norm.ppf(rates) + mu), abs=1e-15)
    assert isinstance(tradeoff(0.1, **quarter, steps=20, adjacency="substitute"), float)


def test_tradeoff_is_not_rounded_up_near_one():
    setting = {"noise_multiplier": 9.756111552011856, "sample_rate": 0.0007213055140683113, "steps": 1}
    assert 0 < tradeoff(0.9999999999985324, **setting, adjacency="substitute") <= 1.465928e-12


@pytest.mark.parametrize(("values", "named"), [(1.5, "1.5"), ([0.1, float("nan")], "nan"), ("half", "'half'")])
def test_rates_that_are_none_are_refused(quarter, values, named):
    with pytest.raises(ValueError, match=f"fpr must be .*from 0 to 1, got {named}"):
        tradeoff(values, **quarter, steps=20, adjacency="substitute")


@pytest.mark.parametrize(
    ("sigma", "q", "steps"),
    [(0.01, 0.5, 3), (0.0205, 0.999, 100), pytest.param(0.00637, 0.74, 1_600_000, marks=pytest.mark.slow)],
)
def test_tradeoff_under_add_remove_at_little_noise(sigma, q, steps):
    # With so little noise, only a record that was never sampled is hidden. Its curve is 1 - fpr with this probability,
    # made symmetric and convex.
    never = (1 - q) ** steps
    found = tradeoff(0.01, noise_multiplier=sigma, sample_rate=q, steps=steps, adjacency="add_remove")
    assert found == pytest.approx(max(never - 0.01, 0.0), abs=2.1e-5)
