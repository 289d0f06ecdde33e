import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsub.accounting import gdp_delta, gdp_epsilon
from dpsub.accounting.grid_engine import curves, scale
from dpsub.accounting.one_step_grid import REACH, deviations


def curve_of(adjacency, sigma, q, steps, mesh, reach=REACH):
    (curve,) = curves(adjacency, [(sigma, q)], [[steps]], mesh, reach)
    return curve


@settings(max_examples=25, deadline=None)
@given(sigma=st.floats(1, 200), steps=st.integers(1, 20_000), log_delta=st.floats(-70, -1))
def test_full_batch_brackets_the_closed_form_at_any_delta(sigma, steps, log_delta):
    curve = curve_of("substitute", sigma, 1.0, steps, scale("substitute", [(sigma, 1.0)], [steps]) / 30)
    delta = math.exp(log_delta)
    mu = 2 * math.sqrt(steps) / sigma
    lower, upper = curve.epsilon(delta)
    assert lower <= gdp_epsilon(mu, delta) * (1 + 1e-9) + 1e-9
    assert gdp_epsilon(mu, delta) <= upper * (1 + 1e-9) + 1e-9
    assert upper - lower <= 2e-3 * (upper + 0.05)
    epsilon = 0.7 * upper
    low, high = curve.delta(epsilon)
    assert low <= gdp_delta(mu, epsilon) * (1 + 1e-9) + 1e-300
    assert gdp_delta(mu, epsilon) <= high * (1 + 1e-9) + 1e-300


@settings(max_examples=25, deadline=None)
@given(
    sigma=st.floats(0.4, 50),
    q=st.floats(1e-3, 0.99),
    steps=st.integers(1, 3_000),
    adjacency=st.sampled_from(["substitute", "add_remove"]),
)
def test_finer_grids_stay_within_coarser_intervals(sigma, q, steps, adjacency):
    mesh, reach = scale(adjacency, [(sigma, q)], [steps]) / 10, deviations(steps, 1e-7)
    coarse, fine = (curve_of(adjacency, sigma, q, steps, mesh / f, reach).epsilon(1e-7) for f in (1, 2))
    assert coarse[0] <= coarse[1]
    assert fine[0] <= fine[1]
    assert max(coarse[0], fine[0]) <= min(coarse[1], fine[1]) + 1e-9


def test_no_epsilon_is_needed_where_the_record_is_hardly_ever_sampled():
    # The loss of adding a record is bounded, and the tilt of Chernoff's bound is far too steep.
    assert -math.expm1(100 * math.log1p(-1e-4)) < 1e-2
    assert curve_of("add_remove", 0.3, 1e-4, 100, 8e-5, deviations(100, 1e-2)).epsilon(1e-2) == (0.0, 0.0)


@pytest.mark.parametrize("counts", [[[2, 5], [9, 1]]])
def test_every_row_of_counts_is_a_curve_of_its_own(counts):
    mechanisms = [(2.0, 0.5), (4.0, 0.9)]
    both = curves("substitute", mechanisms, counts, 0.01, REACH)
    alone = [curves("substitute", mechanisms, [row], 0.01, REACH)[0] for row in counts]
    assert [curve.epsilon(1e-5) for curve in both] == [curve.epsilon(1e-5) for curve in alone]
    assert both[0].epsilon(1e-5) != both[1].epsilon(1e-5)
