"""Three accountants that share no discretisation of the pair, held against each other and against closed forms."""

import itertools
import math
import warnings

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from prv_accountant import PoissonSubsampledGaussianMechanism, PRVAccountant

from dpsub.accounting import Poisson, epsilon, epsilon_interval, gdp_epsilon
from dpsub.accounting.engines import ENGINES, answers
from dpsub.accounting.phases import Training

ADJACENCIES = ("substitute", "add_remove")


def between(low, high):
    """Numbers spread evenly over their orders of magnitude."""
    return st.floats(math.log(low), math.log(high)).map(math.exp)


@pytest.mark.slow
@given(
    sigma=between(0.5, 50),
    q=between(1e-3, 1),
    steps=between(1, 2_000).map(round),
    delta=between(1e-9, 1e-2),
    adjacency=st.sampled_from(ADJACENCIES),
)
@settings(max_examples=400, deadline=None)
def test_the_engines_agree_at_many_settings(sigma, q, steps, delta, adjacency, by_dp_accounting):
    asked = {"noise_multiplier": sigma, "sample_rate": q, "steps": steps, "delta": delta, "adjacency": adjacency}
    assume(epsilon(**asked) < 100)  # beyond, the peers take minutes
    grid = epsilon_interval(**asked)
    assert grid.upper - grid.estimate <= 1e-3 * max(1, grid.lower)
    optimistic, pessimistic = by_dp_accounting(sigma, q, steps, delta, adjacency, min(max(q / sigma / 20, 1e-5), 1e-3))
    assert grid.lower <= pessimistic + 1e-9
    assert optimistic <= grid.upper + 1e-9
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        prv = epsilon_interval(**asked, engine="prv", eps_error=0.01)
    assert prv.lower <= grid.upper + 1e-9
    assert grid.lower <= prv.upper + 1e-9
    assert prv.lower <= pessimistic + 1e-9
    assert optimistic <= prv.upper + 1e-9


@pytest.mark.parametrize(
    ("sigma", "q", "steps", "adjacency"),
    [
        pytest.param(1.0, 0.2, 500, "substitute", marks=pytest.mark.slow),
        (0.8, 0.01, 2_000, "add_remove"),
        (5.0, 0.5, 50, "substitute"),
    ],
)
def test_interval_agrees_with_dp_accounting_alone(sigma, q, steps, adjacency, by_dp_accounting):
    mesh = 2e-4
    optimistic, pessimistic = by_dp_accounting(sigma, q, steps, 1e-6, adjacency, mesh)
    lower, estimate, upper = epsilon_interval(
        noise_multiplier=sigma, sample_rate=q, steps=steps, delta=1e-6, adjacency=adjacency
    )
    assert optimistic <= upper
    assert lower <= pessimistic <= optimistic + steps * mesh + 1e-3
    assert estimate == pytest.approx(pessimistic, rel=1e-3, abs=1e-3)


@pytest.mark.parametrize("adjacency", ["substitute", pytest.param("add_remove", marks=pytest.mark.slow)])
def test_all_engines_agree_on_a_history(adjacency, history):
    # prv-accountant takes long for each phase and direction.
    engines = [engine for engine in ENGINES if engine != "prv" or adjacency == "substitute"]
    intervals = [
        epsilon_interval(history=history[:2], delta=1e-5, adjacency=adjacency, engine=engine, eps_error=error)
        for engine, error in ((engine, 1e-2 if engine == "prv" else 1e-3) for engine in engines)
    ]
    assert max(i.lower for i in intervals) <= min(i.upper for i in intervals)
    assert [i.estimate for i in intervals] == pytest.approx([intervals[0].estimate] * len(engines), rel=1e-3)


@pytest.mark.slow
def test_inputs_on_which_prv_accountant_gives_up_are_answered(by_dp_accounting):
    theirs = PoissonSubsampledGaussianMechanism(sampling_probability=0.2, noise_multiplier=1.0)
    with pytest.raises(RuntimeError, match="Discrete mean differs"):
        PRVAccountant(prvs=[theirs], max_self_compositions=[500], eps_error=0.05, delta_error=1e-9)
    asked = {"noise_multiplier": 1.0, "sample_rate": 0.2, "steps": 500, "delta": 1e-6, "adjacency": "add_remove"}
    by_prv = epsilon_interval(**asked, engine="prv", eps_error=0.05)
    optimistic, pessimistic = by_dp_accounting(1.0, 0.2, 500, 1e-6, "add_remove", 1e-3)
    assert max(by_prv.lower, optimistic) <= min(by_prv.upper, pessimistic)
    assert by_prv.upper - by_prv.lower < 0.3
    assert epsilon(**{**asked, "delta": 1e-5, "adjacency": "substitute"}) == pytest.approx(72.45, abs=0.02)


@given(
    sigma=between(0.3, 200),
    q=between(1e-4, 1),
    steps=between(1, 100_000).map(round),
    delta=between(1e-12, 1e-2),
    adjacency=st.sampled_from(ADJACENCIES),
)
@settings(max_examples=30, deadline=None)
def test_the_error_is_certified_everywhere(sigma, q, steps, delta, adjacency):
    found = epsilon_interval(noise_multiplier=sigma, sample_rate=q, steps=steps, delta=delta, adjacency=adjacency)
    assert 0 <= found.lower <= found.estimate <= found.upper < math.inf
    assert found.upper - found.estimate <= 1e-3 * max(1, found.lower)


@pytest.mark.parametrize(
    ("sigma", "steps", "adjacency", "delta"),
    [
        (50.0, 500, "substitute", 1e-8),
        (5.0, 20, "add_remove", 1e-5),
        (5.0, 20, "add_remove", 1e-8),
    ],
)
@pytest.mark.slow
def test_engines_hold_the_closed_form_at_full_batch(sigma, steps, adjacency, delta, by_dp_accounting):
    exact = gdp_epsilon((2 if adjacency == "substitute" else 1) * math.sqrt(steps) / sigma, delta)
    optimistic, pessimistic = by_dp_accounting(sigma, 1.0, steps, delta, adjacency, 1e-4)
    assert optimistic <= exact <= pessimistic
    found = epsilon_interval(
        noise_multiplier=sigma, sample_rate=1, steps=steps, delta=delta, adjacency=adjacency, engine="prv",
        eps_error=1e-2,
    )  # fmt: skip
    assert found.lower <= exact <= found.upper
    assert found.upper - found.estimate <= 1e-2 * max(1, found.lower)


def asked_in_turn(*intervals, relative_width):
    """What `answers` makes of one curve that gives these intervals one after the other, ever finer."""
    training = Training(((1.0, 0.5),), ((3,),), Poisson(), "substitute")
    turn = iter(intervals)
    return answers(
        training,
        "auto",
        lambda _: tuple(np.array([end]) for end in next(turn)),
        relative_width=relative_width,
        delta=1e-5,
    )


def test_intervals_of_ever_finer_grids_are_intersected():
    def too_wide(low, high):
        return float(np.max(high - low)) / 0.3

    found = asked_in_turn((1.0, 2.0), (0.5, 1.6), (1.4, 3.0), relative_width=too_wide)
    assert np.ravel(found).tolist() == [1.4, 1.6]


def test_bounds_that_contradict_each_other_are_no_answer():
    with pytest.raises(ArithmeticError, match="two bounds contradict each other"):
        asked_in_turn((1.0, 2.0), (2.1, 3.0), relative_width=lambda low, high: 2.0)


def test_dp_accountings_error_is_quadratic_in_the_mesh_above_and_linear_below(by_dp_accounting):
    sigma, steps, delta = 25.0, 400, 1e-5
    exact = gdp_epsilon(2 * math.sqrt(steps) / sigma, delta)
    meshes = (4e-2, 2e-2, 1e-2)
    ends = [by_dp_accounting(sigma, 1.0, steps, delta, "substitute", mesh) for mesh in meshes]
    above = [pessimistic - exact for _, pessimistic in ends]
    below = [exact - optimistic for optimistic, _ in ends]
    assert all(3.5 < coarse / fine < 4.5 for coarse, fine in itertools.pairwise(above))
    assert all(0.2 < error / (steps * mesh**2) < 0.5 for error, mesh in zip(above, meshes, strict=True))
    assert all(1.7 < coarse / fine < 2.3 for coarse, fine in itertools.pairwise(below))
    assert all(0.3 < error / (steps * mesh / 2) < 1.5 for error, mesh in zip(below, meshes, strict=True))
