"""Three accountants that share no discretisation of the pair, held against each other and against closed forms."""

import itertools
import math
import warnings

import pytest
from dp_accounting import privacy_accountant
from dp_accounting.pld import privacy_loss_distribution as plds
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dpsub.accounting import epsilon_interval, gdp_epsilon

ADJACENCIES = ("substitute", "add_remove")


def between(low, high):
    """Numbers spread evenly over their orders of magnitude."""
    return st.floats(math.log(low), math.log(high)).map(math.exp)


def by_dp_accounting(sigma, q, steps, delta, adjacency, mesh):
    """ε from dp-accounting alone: its optimistic and its pessimistic estimate."""
    relation = privacy_accountant.NeighboringRelation
    return tuple(
        plds.from_gaussian_mechanism(
            sigma,
            sampling_prob=q,
            value_discretization_interval=mesh,
            use_connect_dots=pessimistic,
            pessimistic_estimate=pessimistic,
            neighboring_relation=relation.REPLACE_ONE if adjacency == "substitute" else relation.ADD_OR_REMOVE_ONE,
        )
        .self_compose(steps)
        .get_epsilon_for_delta(delta)
        for pessimistic in (False, True)
    )


def agree(sigma, q, steps, delta, adjacency):
    asked = {"noise_multiplier": sigma, "sample_rate": q, "steps": steps, "delta": delta, "adjacency": adjacency}
    grid = epsilon_interval(**asked)
    assume(grid.upper < 100)  # beyond, the peers take minutes
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


SETTINGS = {
    "sigma": between(0.5, 50),
    "q": between(1e-3, 1),
    "steps": between(1, 2_000).map(round),
    "delta": between(1e-9, 1e-2),
    "adjacency": st.sampled_from(ADJACENCIES),
}


@given(**SETTINGS)
@settings(max_examples=10, deadline=None)
def test_the_engines_agree(sigma, q, steps, delta, adjacency):
    agree(sigma, q, steps, delta, adjacency)


@pytest.mark.slow
@given(**SETTINGS)
@settings(max_examples=400, deadline=None)
def test_the_engines_agree_at_many_settings(sigma, q, steps, delta, adjacency):
    agree(sigma, q, steps, delta, adjacency)


@given(
    sigma=between(0.3, 200),
    q=between(1e-4, 1),
    steps=between(1, 100_000).map(round),
    delta=between(1e-12, 1e-2),
    adjacency=st.sampled_from(ADJACENCIES),
)
@settings(max_examples=60, deadline=None)
def test_the_error_is_certified_everywhere(sigma, q, steps, delta, adjacency):
    found = epsilon_interval(noise_multiplier=sigma, sample_rate=q, steps=steps, delta=delta, adjacency=adjacency)
    assert 0 <= found.lower <= found.estimate <= found.upper < math.inf
    assert found.upper - found.estimate <= 1e-3 * max(1, found.lower)
    assert found.bound == ("closed form" if q == 1 else "grid")


@pytest.mark.parametrize(("sigma", "steps", "adjacency"), [(50.0, 500, "substitute"), (5.0, 20, "add_remove")])
@pytest.mark.parametrize("delta", [1e-8, 1e-5])
def test_engines_hold_the_closed_form_at_full_batch(sigma, steps, adjacency, delta):
    exact = gdp_epsilon((2 if adjacency == "substitute" else 1) * math.sqrt(steps) / sigma, delta)
    optimistic, pessimistic = by_dp_accounting(sigma, 1.0, steps, delta, adjacency, 1e-4)
    assert optimistic <= exact <= pessimistic
    for engine in ("prv", "pld"):
        found = epsilon_interval(
            noise_multiplier=sigma, sample_rate=1, steps=steps, delta=delta, adjacency=adjacency, engine=engine
        )
        assert found.lower <= exact <= found.upper
        assert found.upper - found.estimate <= 1e-3 * max(1, found.lower)


def test_dp_accountings_error_is_quadratic_in_the_mesh_above_and_linear_below():
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
