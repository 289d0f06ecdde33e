import math
from itertools import pairwise

import numpy as np
import pytest
from dp_accounting import privacy_accountant
from dp_accounting.pld import privacy_loss_distribution as plds
from scipy.integrate import quad
from scipy.stats import norm

from dpsub import accounting
from dpsub.accounting import (
    delta,
    epsilon,
    epsilon_interval,
    gdp_epsilon,
    group_privacy_epsilon,
    noise_multiplier,
    worst_case_epsilon,
)

FIGURE_2 = {"steps": 500, "delta": 1e-5}
FULL = {"noise_multiplier": 48.4033203125, "sample_rate": 1.0}
QUARTER = {"noise_multiplier": 12.1148681640625, "sample_rate": 0.25}


# Made by an independent implementation, cross-checked against dp-accounting.
@pytest.mark.parametrize("engine", accounting.ENGINES)
@pytest.mark.parametrize(
    ("mechanism", "adjacency", "expected"),
    [
        (FULL, "substitute", 3.99502351),
        (FULL, "add_remove", 1.8247909),
        (QUARTER, "substitute", 3.98683393),
        (QUARTER, "add_remove", 1.83487194),
    ],
)
def test_epsilon_at_known_points(mechanism, adjacency, expected, engine):
    lower, estimate, upper = epsilon_interval(**mechanism, **FIGURE_2, adjacency=adjacency, engine=engine)
    assert lower - 1e-6 <= expected <= upper + 1e-6
    assert estimate == pytest.approx(expected, abs=5e-4)
    assert upper - estimate <= max(1e-3, 1e-3 * lower)
    assert epsilon(**mechanism, **FIGURE_2, adjacency=adjacency, engine=engine) == upper


@pytest.mark.parametrize(("mechanism", "expected"), [(FULL, 4.108), (QUARTER, 4.13576627)])
def test_group_privacy_at_known_points(mechanism, expected):
    assert group_privacy_epsilon(**mechanism, **FIGURE_2) == pytest.approx(expected, abs=1e-3)


def one_step_delta(sigma, q, eps, adjacency):
    """The hockey-stick divergence of one step, integrated directly: the worse of the directions."""

    def mixture(x, mean):
        return (1 - q) * norm.pdf(x, 0, sigma) + q * norm.pdf(x, mean, sigma)

    if adjacency == "substitute":
        directions = [(lambda x: mixture(x, 1), lambda x: mixture(x, -1))]
    else:
        directions = [
            (lambda x: mixture(x, 1), lambda x: norm.pdf(x, 0, sigma)),
            (lambda x: norm.pdf(x, 0, sigma), lambda x: mixture(x, 1)),
        ]
    grid = np.linspace(-9 * sigma - 1, 9 * sigma + 1, 61)
    return max(
        sum(quad(lambda x: max(p(x) - math.exp(eps) * other(x), 0), a, b, epsabs=1e-12)[0] for a, b in pairwise(grid))
        for p, other in directions
    )


@pytest.mark.parametrize("adjacency", ["substitute", "add_remove"])
@pytest.mark.parametrize("engine", accounting.ENGINES)
@pytest.mark.parametrize(("sigma", "q", "eps"), [(1.0, 0.3, 0.5), (0.7, 0.05, 1.0), (3.0, 0.9, 0.2)])
def test_one_step_is_the_hockey_stick_divergence(sigma, q, eps, adjacency, engine):
    mechanism = {"noise_multiplier": sigma, "sample_rate": q, "steps": 1, "adjacency": adjacency, "engine": engine}
    exact = one_step_delta(sigma, q, eps, adjacency)
    lower, _, upper = epsilon_interval(**mechanism, delta=exact)
    assert lower <= eps + 1e-6
    assert eps - 1e-6 <= upper
    assert exact <= delta(**mechanism, epsilon=eps) * (1 + 1e-6)


@pytest.mark.parametrize("adjacency", ["substitute", "add_remove"])
@pytest.mark.parametrize(("sigma", "q", "steps"), [(1.0, 0.2, 500), (0.8, 0.01, 2_000), (5.0, 0.5, 50)])
def test_interval_agrees_with_dp_accounting_alone(sigma, q, steps, adjacency):
    relation = privacy_accountant.NeighboringRelation
    pessimistic, optimistic = (
        plds.from_gaussian_mechanism(
            sigma,
            sampling_prob=q,
            value_discretization_interval=1e-4,
            use_connect_dots=end,
            pessimistic_estimate=end,
            neighboring_relation=relation.REPLACE_ONE if adjacency == "substitute" else relation.ADD_OR_REMOVE_ONE,
        )
        .self_compose(steps)
        .get_epsilon_for_delta(1e-6)
        for end in (True, False)
    )
    lower, _, upper = epsilon_interval(
        noise_multiplier=sigma, sample_rate=q, steps=steps, delta=1e-6, adjacency=adjacency
    )
    assert optimistic <= upper
    assert lower <= pessimistic <= optimistic + steps * 1e-4 + 1e-3


def test_inputs_on_which_prv_accountant_gives_up_are_answered():
    mechanism = {"noise_multiplier": 1.0, "sample_rate": 0.2, "steps": 500}
    by_prv = epsilon_interval(**mechanism, delta=1e-6, adjacency="add_remove", engine="prv")
    by_pld = epsilon_interval(**mechanism, delta=1e-6, adjacency="add_remove", engine="pld")
    assert max(by_prv.lower, by_pld.lower) <= min(by_prv.upper, by_pld.upper)
    assert epsilon(**mechanism, delta=1e-5, adjacency="substitute") == pytest.approx(72.45, abs=0.02)


def test_many_step_counts_are_those_of_single_calls():
    counts = [1, 10, 100, 500]
    together = epsilon_interval(**QUARTER, steps=counts, delta=1e-5, adjacency="substitute")
    for i, steps in enumerate(counts):
        alone = epsilon_interval(**QUARTER, steps=steps, delta=1e-5, adjacency="substitute")
        assert together.lower[i] <= alone.upper
        assert alone.lower <= together.upper[i]
    assert np.all(np.diff(together.upper) > 0)


def test_full_batch_is_a_gaussian_mechanism_of_twice_the_distance():
    for adjacency, distance in (("substitute", 2), ("add_remove", 1)):
        mu = distance * math.sqrt(500) / FULL["noise_multiplier"]
        assert epsilon(**FULL, **FIGURE_2, adjacency=adjacency) == gdp_epsilon(mu, 1e-5)


@pytest.mark.parametrize("q", [1.0, 0.25])
def test_substitute_lies_between_add_remove_and_group_privacy(q):
    mechanism = {"noise_multiplier": 40 * q, "sample_rate": q}
    add_remove, substitute = (epsilon(**mechanism, **FIGURE_2, adjacency=a) for a in ("add_remove", "substitute"))
    assert add_remove < substitute < group_privacy_epsilon(**mechanism, **FIGURE_2)
    assert epsilon(**mechanism, **FIGURE_2, adjacency="zero_out") == add_remove


def test_group_privacy_is_the_smallest_solution_although_the_left_side_is_not_monotone():
    noise, steps, target = 10.0, 25, 2e-3

    def left(eps):
        return (1 + math.exp(eps)) * accounting.gdp_delta(math.sqrt(steps) / noise, eps)

    found = group_privacy_epsilon(noise_multiplier=noise, sample_rate=1, steps=steps, delta=target) / 2
    assert left(found) == pytest.approx(target, rel=1e-6)
    assert all(left(eps) > target for eps in np.linspace(0, found - 1e-6, 2_000))
    # A mechanism for which the left side rises at first: starting at 0 it must still be the first crossing.
    rising = [accounting.gdp_delta(3.0, eps) * (1 + math.exp(eps)) for eps in (0.0, 1.0, 2.0)]
    assert rising[0] < rising[1] < rising[2]
    found = group_privacy_epsilon(noise_multiplier=1.0, sample_rate=1, steps=9, delta=0.01) / 2
    assert all(accounting.gdp_delta(3.0, e) * (1 + math.exp(e)) > 0.01 for e in np.linspace(0, found - 1e-6, 2_000))


@pytest.mark.parametrize("adjacency", ["substitute", "add_remove"])
@pytest.mark.parametrize("q", [1.0, 0.25, 0.02])
def test_noise_multiplier_is_the_smallest_that_meets_the_target(q, adjacency):
    setting = {"sample_rate": q, "steps": 300, "delta": 1e-5, "adjacency": adjacency}
    sigma = noise_multiplier(target_epsilon=4.0, **setting)
    assert epsilon(noise_multiplier=sigma, **setting) <= 4.0 + 1e-9
    assert epsilon_interval(noise_multiplier=0.999 * sigma, **setting).estimate > 4.0 - 2e-3


def test_epsilon_that_cannot_be_certified_is_infinite():
    assert epsilon(**QUARTER, steps=500, delta=1e-60, adjacency="substitute") == math.inf
    assert epsilon(noise_multiplier=0.02, sample_rate=0.01, steps=500, delta=1e-5, adjacency="substitute") == math.inf


def test_worst_case_epsilon_at_a_known_point():
    setting = {"noise_multiplier": 1.6772842407226562, "sample_rate": 0.0625, **FIGURE_2}
    assert worst_case_epsilon(**setting) == pytest.approx(7.92371045, abs=1e-5)


def test_worst_case_epsilon_is_the_accountants_where_the_sum_says_all():
    assert worst_case_epsilon(**FULL, **FIGURE_2) == pytest.approx(
        epsilon(**FULL, **FIGURE_2, adjacency="substitute"), abs=1e-6
    )
    one_step = {"noise_multiplier": 0.8, "sample_rate": 0.3, "steps": 1, "delta": 1e-4}
    low, _, high = epsilon_interval(**one_step, adjacency="substitute")
    assert low - 1e-6 <= worst_case_epsilon(**one_step) <= high + 1e-6


@pytest.mark.parametrize("sigma", [10.495, 1.677])
def test_worst_case_epsilon_is_at_most_the_accountants(sigma):
    setting = {"noise_multiplier": sigma, "sample_rate": 0.0625, **FIGURE_2}
    assert 0.9 < worst_case_epsilon(**setting) / epsilon(**setting, adjacency="substitute") <= 1


def test_worst_case_epsilon_is_zero_where_delta_alone_suffices():
    assert worst_case_epsilon(noise_multiplier=100.0, sample_rate=1e-4, steps=1, delta=0.1) == 0.0


def test_epsilon_is_zero_where_delta_alone_suffices():
    assert epsilon(noise_multiplier=100.0, sample_rate=1e-4, steps=1, delta=0.1, adjacency="substitute") == 0.0


GOOD = {"noise_multiplier": 1.0, "sample_rate": 0.5, "steps": 10, "delta": 1e-5, "adjacency": "substitute"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"noise_multiplier": 0}, "noise_multiplier must be > 0, got 0"),
        ({"noise_multiplier": float("nan")}, "noise_multiplier must be > 0, got nan"),
        ({"noise_multiplier": "1"}, "noise_multiplier must be a number, > 0, got '1'"),
        ({"noise_multiplier": math.inf}, "noise_multiplier must be > 0, got inf"),
        ({"sample_rate": 0}, "sample_rate must be > 0 and <= 1, got 0"),
        ({"sample_rate": 1.5}, "sample_rate must be > 0 and <= 1, got 1.5"),
        ({"steps": 0}, "steps must be >= 1, got 0"),
        ({"steps": 2.5}, "steps must be a whole number >= 1, got 2.5"),
        ({"steps": []}, "steps must be a whole number or a non-empty sequence"),
        ({"delta": 0}, "delta must be > 0 and < 1, got 0"),
        ({"delta": 1}, "delta must be > 0 and < 1, got 1"),
        ({"adjacency": "replace"}, "adjacency must be one of 'substitute', 'add_remove', 'zero_out', got 'replace'"),
        ({"engine": "rdp"}, "engine must be one of 'auto', 'prv', 'pld', got 'rdp'"),
    ],
)
def test_bad_input_is_named(change, message):
    with pytest.raises(ValueError, match=message):
        epsilon(**{**GOOD, **change})


def test_calibration_says_when_no_noise_is_needed():
    with pytest.raises(ValueError, match="delta must be smaller than the probability of ever being sampled"):
        noise_multiplier(target_epsilon=1, sample_rate=1e-8, steps=10, delta=1e-5, adjacency="substitute")
    with pytest.raises(ValueError, match="target_epsilon must be > 0, got 0"):
        noise_multiplier(target_epsilon=0, sample_rate=1, steps=10, delta=1e-5, adjacency="substitute")
