import math
from itertools import pairwise

import numpy as np
import pytest
from dp_accounting import privacy_accountant
from dp_accounting.pld import privacy_loss_distribution as plds
from scipy.integrate import quad
from scipy.stats import binom, norm

from dpsub import accounting
from dpsub.accounting import (
    delta,
    engines,
    epsilon,
    epsilon_interval,
    gdp_epsilon,
    group_privacy_epsilon,
    noise_multiplier,
    tradeoff,
    worst_case_epsilon,
)
from dpsub.accounting.revealed_batches import RevealedCurve

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
        assert epsilon(**FULL, **FIGURE_2, adjacency=adjacency) == pytest.approx(gdp_epsilon(mu, 1e-5), rel=1e-14)


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


@pytest.mark.parametrize(
    ("change", "most"), [({"delta": 1e-300}, 100), ({"noise_multiplier": 0.02, "sample_rate": 0.01}, 86_000)]
)
def test_where_no_grid_helps_the_bound_is_that_of_revealed_batches(change, most):
    interval = epsilon_interval(**{**QUARTER, **FIGURE_2, **change}, adjacency="substitute")
    assert interval.bound == "revealed batches"
    assert 0 < interval.lower < interval.upper < most


# Where the sample rate is tiny, or the phases are far apart, a grid fine enough for all would have no end.
@pytest.mark.parametrize(
    ("history", "delta"),
    [
        ([(1, 0.5, 100), (50, 1e-6, 1)], 1e-5),
        ([(0.5, 0.1, 100), (1, 1e-5, 1)], 1e-6),
        ([(1e-3, 1 - 1e-12, 10)], 1e-5),
        ([(0.24327817932, 4.557647886e-9, 1)], 2.13e-9),
        ([(300, 0.01, 10**9)], 1e-10),
    ],
)
def test_odd_histories_are_answered(history, delta):
    found = epsilon_interval(history=history, delta=delta, adjacency="add_remove")
    assert 0 <= found.lower <= found.upper < math.inf


def test_a_tilt_beyond_the_cliff_of_heavy_tails_is_taken_back():
    setting = {"noise_multiplier": 0.8317791385571947, "sample_rate": 0.0014581361402937194, "steps": 364}
    for adjacency in ("substitute", "add_remove"):
        found = epsilon_interval(**setting, delta=1.9559992739263536e-10, adjacency=adjacency)
        assert found.bound == "grid"
        assert found.upper - found.lower < 2e-3 * found.upper


def test_bounds_that_contradict_each_other_are_no_answer():
    with pytest.raises(ArithmeticError, match="two bounds contradict each other"):
        engines._narrowed((np.array([1.0]), np.array([2.0])), (np.array([2.1]), np.array([3.0])))


# From 60-digit quadrature.
@pytest.mark.parametrize(("q", "exact"), [(1e-9, 6.826894921371e-10), (1e-8, 6.8268949214e-9)])
def test_delta_of_rare_sampling_is_not_rounded_down(q, exact):
    found = delta(noise_multiplier=1, sample_rate=q, steps=1, epsilon=0.0, adjacency="substitute")
    assert exact * (1 - 1e-10) <= found <= exact * (1 + 1e-3)


def test_tradeoff_is_not_rounded_up_near_one():
    setting = {"noise_multiplier": 9.756111552011856, "sample_rate": 0.0007213055140683113, "steps": 1}
    assert tradeoff(0.9999999999985324, **setting, adjacency="substitute") <= 1.465928e-12


def test_revealed_batches_bound_is_the_closed_form_averaged_over_the_batches():
    curve = RevealedCurve(2.0, 1.5, 0.3, 4)
    law = binom(4, 0.3)
    for eps in (0.0, 1.0, 3.0):
        averaged = sum(law.pmf(k) * accounting.gdp_delta(2 * math.sqrt(k) / 1.5, eps) for k in range(5))
        assert curve.delta(eps)[1] == pytest.approx(averaged, rel=1e-9)
        assert curve.epsilon(averaged * (1 + 1e-12))[1] == pytest.approx(eps, abs=1e-6)
    rates = np.linspace(0, 1, 11)
    exact = tradeoff(rates, noise_multiplier=1.5, sample_rate=0.3, steps=4, adjacency="substitute")
    assert (curve.tradeoff(rates)[0] <= exact + 1e-4).all()


def test_bounds_say_what_they_come_from():
    asked = {"delta": 1e-5, "adjacency": "substitute"}
    assert epsilon_interval(**FULL, steps=500, **asked).bound == "closed form"
    assert epsilon_interval(**QUARTER, steps=500, **asked).bound == "grid"
    assert epsilon_interval(**QUARTER, steps=500, **asked, engine="pld").bound == "dp-accounting"
    assert epsilon_interval(**QUARTER, steps=5, **asked, engine="prv").bound == "prv-accountant"
    coarse = epsilon_interval(**QUARTER, steps=500, **asked, eps_error=1e-9)
    assert coarse.bound == "coarse grid"
    assert 0 < coarse.upper - coarse.lower < 1e-4


@pytest.mark.parametrize("eps_error", [1e-1, 1e-3, 1e-5])
def test_the_error_asked_for_is_kept(eps_error):
    interval = epsilon_interval(**QUARTER, **FIGURE_2, adjacency="add_remove", eps_error=eps_error)
    assert interval.upper - interval.estimate <= eps_error * max(1, interval.lower)
    assert interval.lower <= 1.83487194 + 1e-8 <= interval.upper + 2e-8


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


HISTORY = [(1.0, 0.01, 300), (2.0, 0.02, 100), (0.8, 0.005, 50)]


@pytest.mark.parametrize("adjacency", ["substitute", "add_remove"])
def test_all_engines_agree_on_a_history(adjacency):
    intervals = [
        epsilon_interval(history=HISTORY, delta=1e-5, adjacency=adjacency, engine=e) for e in accounting.ENGINES
    ]
    assert max(i.lower for i in intervals) <= min(i.upper for i in intervals)
    assert all(i.upper - i.estimate <= 1.1e-3 * i.upper for i in intervals)


def test_a_history_of_one_mechanism_is_its_steps():
    for question in ({"delta": 1e-5, "adjacency": "substitute"}, {"delta": 1e-5, "adjacency": "add_remove"}):
        one = epsilon(noise_multiplier=1.0, sample_rate=0.01, steps=300, **question)
        assert epsilon(history=[(1.0, 0.01, 100), (1, 0.01, 200)], **question) == one
        assert epsilon(history=[[1.0, 0.01, 300.0]], **question) == one
    assert group_privacy_epsilon(history=[(1.0, 0.01, 300)], delta=1e-5) == group_privacy_epsilon(
        noise_multiplier=1.0, sample_rate=0.01, steps=300, delta=1e-5
    )


def test_full_batch_phases_are_one_gaussian_mechanism():
    mu = 2 * math.sqrt(250 / 40**2 + 250 / 60**2)
    found = epsilon_interval(history=[(40, 1, 250), (60, 1, 250)], delta=1e-5, adjacency="substitute")
    assert found.upper == pytest.approx(gdp_epsilon(mu, 1e-5))
    assert found.bound == "closed form"
    # With a phase that hardly matters the grid has to come to the same.
    nearly = epsilon_interval(history=[(40, 1, 250), (60, 1, 250), (50, 1e-4, 1)], delta=1e-5, adjacency="substitute")
    assert nearly.bound == "grid"
    assert nearly.lower - 1e-4 <= found.upper <= nearly.upper + 1e-4


def test_order_and_splitting_of_phases_do_not_matter():
    asked = {"delta": 1e-6, "adjacency": "add_remove"}
    one = epsilon_interval(history=HISTORY, **asked)
    other = epsilon_interval(history=[*reversed(HISTORY[1:]), (1.0, 0.01, 100), (1.0, 0.01, 200)], **asked)
    assert max(one.lower, other.lower) <= min(one.upper, other.upper)


def test_delta_of_several_epsilons_is_that_of_each():
    wanted = [0.0, 1.0, 4.0, 12.0]
    together = delta(**QUARTER, steps=500, epsilon=wanted, adjacency="substitute")
    alone = [delta(**QUARTER, steps=500, epsilon=eps, adjacency="substitute") for eps in wanted]
    assert together == pytest.approx(alone, rel=2e-3)
    assert delta(**QUARTER, steps=500, epsilon=np.array(wanted), adjacency="substitute").shape == (4,)
    back = epsilon(**QUARTER, steps=500, delta=together[2], adjacency="substitute")
    assert back == pytest.approx(4.0, abs=2e-3)


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


def test_tradeoff_under_add_remove_is_below_both_directions_and_symmetric():
    sigma, q = 0.6, 0.3
    x = np.linspace(-3, 3, 61)
    with_record, without = (1 - q) * norm.sf(x, 0, sigma) + q * norm.sf(x, 1, sigma), norm.sf(x, 0, sigma)
    asked = {"noise_multiplier": sigma, "sample_rate": q, "steps": 1, "adjacency": "add_remove"}
    assert (tradeoff(without, **asked) <= 1 - with_record + 1e-9).all()
    assert (tradeoff(1 - with_record, **asked) <= without + 1e-9).all()
    rates = np.linspace(0, 1, 21)
    twice = tradeoff(tradeoff(rates, **asked), **asked)
    assert twice == pytest.approx(rates, abs=2e-3)
    assert (np.diff(tradeoff(rates, **asked), 2) >= -1e-4).all()


def test_tradeoff_keeps_shape_and_is_exact_at_full_batch():
    rates = np.array([[0.0, 0.2], [0.7, 1.0]])
    for adjacency, distance in (("substitute", 2), ("zero_out", 1)):
        mu = distance * math.sqrt(500) / FULL["noise_multiplier"]
        found = tradeoff(rates, **FULL, steps=500, adjacency=adjacency)
        assert found == pytest.approx(norm.sf(norm.ppf(rates) + mu), abs=1e-15)
    assert isinstance(tradeoff(0.1, **QUARTER, steps=20, adjacency="substitute"), float)


@pytest.mark.parametrize(("values", "named"), [(1.5, "1.5"), ([0.1, float("nan")], "nan"), ("half", "'half'")])
def test_rates_that_are_none_are_refused(values, named):
    with pytest.raises(ValueError, match=f"fpr must be .*from 0 to 1, got {named}"):
        tradeoff(values, **QUARTER, steps=20, adjacency="substitute")


NO_MECHANISM = dict.fromkeys(("noise_multiplier", "sample_rate", "steps"))
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
        ({"eps_error": 0}, "eps_error must be > 0, got 0"),
        ({"steps": None}, "noise_multiplier, sample_rate and steps must all be given, or else a history"),
        ({"history": HISTORY}, "history must be given alone"),
        ({**NO_MECHANISM, "history": []}, "history must be a sequence of .*, got none: no step has been taken yet"),
        ({**NO_MECHANISM, "history": 3}, "history must be a sequence of .*, got 3"),
        ({**NO_MECHANISM, "history": [(1, 0.1)]}, r"history must be a sequence of .*, got \(1, 0.1\) at place 0"),
        ({**NO_MECHANISM, "history": [(1, 0.1, 0)]}, r"history\[0\]: steps must be >= 1, got 0"),
        ({**NO_MECHANISM, "history": [(1, 0.1, 2), (0, 0.1, 2)]}, r"history\[1\]: noise_multiplier must be > 0, got 0"),
        (
            {"engine": "pld", "delta": 1e-12},
            "delta must be larger for engine='pld' .*, got 1e-12; engine='auto' takes any",
        ),
        ({"engine": "prv", "delta": 1e-16}, "delta must be larger for engine='prv' .*, got 1e-16"),
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
