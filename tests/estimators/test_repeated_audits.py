import math

import numpy as np
import pytest
from scipy.stats import binom

from dpsub.accounting import gdp_epsilon
from dpsub.estimators import LowerBound, epsilon_lower_bound, over_repeats


def bound(epsilon):
    return LowerBound(epsilon, None, None, None, None, "dp", "none", True)


def test_repeats_become_a_mean_and_two_standard_errors():
    mean, error, repeats = over_repeats([bound(1.0), bound(2.0), bound(6.0)])
    assert (mean, repeats) == (3.0, 3)
    assert error == pytest.approx(2 * np.std([1, 2, 6], ddof=1) / math.sqrt(3))


def test_repeats_of_several_steps_are_averaged_step_by_step():
    curves = over_repeats([[bound(1.0), bound(2.0)], [bound(3.0), bound(2.0)]])
    np.testing.assert_allclose([curves.mean, curves.error], [[2, 2], [2, 0]])
    assert np.isnan(over_repeats([[bound(1.0), bound(2.0)]]).error).all()


@pytest.mark.parametrize(
    "bad",
    [
        [],
        [[1.0, 2.0], [1.0]],
        [[], []],
        [math.inf, -math.inf],
        [1e300, -1e300],
        [None, 3.0],
        "345",
        b"1",
        bytearray(b"12"),
        memoryview(b"1"),
        [b"1"],
        {1.0, 2.0},
        {1.0: 2},
        bound(1.0),
        [np.nan],
        ["3", "4"],
        [True, False],
        [1j],
        None,
    ],
)
def test_what_is_no_sequence_of_repeats_is_named(bad):
    with pytest.raises(ValueError, match="bounds must be a sequence of repeats"):
        over_repeats(bad)


def test_repeats_under_a_mask_are_refused():
    with pytest.raises(ValueError, match="bounds must not be masked"):
        over_repeats(np.ma.array([1.0, 2.0, 100.0], mask=[0, 0, 1]))


def test_many_scores_of_one_model_are_not_runs(gaussian_scores):
    """Ten scores a model that share its randomness break the promise that the models' own scores keep."""
    truth, exceeded, rng = gdp_epsilon(1.0, 1e-5), {"models": 0, "scores": 0}, np.random.default_rng(0)
    for _ in range(60):
        scores, bits = gaussian_scores(rng, 200, 1.0)
        many = np.repeat(scores, 10) + 0.01 * rng.normal(size=2_000)
        exceeded["models"] += epsilon_lower_bound(scores, bits, delta=1e-5).epsilon > truth
        exceeded["scores"] += epsilon_lower_bound(many, np.repeat(bits, 10), delta=1e-5).epsilon > truth
    assert exceeded["models"] <= binom.ppf(0.999, 60, 0.05) < exceeded["scores"]
    assert "independently" in epsilon_lower_bound.__doc__
