import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm

from dpsub.accounting import composition as _grid
from dpsub.accounting.composition import Composition
from dpsub.accounting.dominating_pairs import Pair
from dpsub.accounting.gaussian import gdp_delta, gdp_epsilon
from dpsub.accounting.grid_engine import scale
from dpsub.accounting.one_step import REACH, Step, deviations, merge_outcomes, split_outcomes, spread

DIRECTIONS = ("substitute", "remove", "add")


def curve_of(adjacency, sigma, q, steps, mesh, reach=REACH):
    (curve,) = _grid.curves(adjacency, [(sigma, q)], [[steps]], mesh, reach)
    return curve


def convolved(step, times):
    """The composition by direct convolution."""
    mass = step.mass
    for _ in range(times - 1):
        mass = np.convolve(mass, step.mass)
    return (times * step.low + np.arange(len(mass))) * step.mesh, mass


@pytest.mark.parametrize("split", [merge_outcomes, split_outcomes])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("times", [1, 2, 5])
def test_composition_is_convolution(direction, times, split):
    step = split(Pair(direction, 1.0, 0.3), 0.02)
    losses, mass = convolved(step, times)
    composition = Composition((step, times))
    for epsilon in (0.0, 0.4, 1.1, 2.5):
        direct = float(mass @ np.maximum(-np.expm1(np.minimum(epsilon - losses, 0)), 0))
        direct += -math.expm1(times * math.log1p(-step.infinite))
        lower, upper = (composition.delta(epsilon, rounding=sign) for sign in (-1, 1))
        assert lower <= direct * (1 + 1e-12)
        assert upper >= direct * (1 - 1e-12)
        assert upper - lower <= 1e-9 * direct + 1e-20


@given(
    direction=st.sampled_from(DIRECTIONS),
    sigma=st.floats(0.3, 50),
    q=st.floats(1e-3, 1.0),
    fineness=st.floats(0.3, 5),
)
@settings(max_examples=60, deadline=None)
def test_both_ends_keep_probabilities_and_bracket_one_step(direction, sigma, q, fineness):
    pair = Pair(direction, sigma, q)
    mesh = spread(pair) / 30 / fineness
    merged, split = merge_outcomes(pair, mesh), split_outcomes(pair, mesh)
    assert split.mass.sum() + split.infinite == pytest.approx(1, abs=1e-12)
    assert merged.mass.sum() <= 1 + 1e-12
    x, log_p = pair.nodes(reach=14 * sigma + 1)
    p, loss = np.exp(log_p), pair.loss(x)
    scale = float(np.sqrt(p @ (loss - p @ loss) ** 2))
    for epsilon in (0.0, scale, 4 * scale):
        exact = float(p @ np.maximum(-np.expm1(np.minimum(epsilon - loss, 0)), 0))  # a kink: good to about 1e-4
        below, above = (
            float(s.mass @ np.maximum(-np.expm1(np.minimum(epsilon - s.losses, 0)), 0)) for s in (merged, split)
        )
        assert below <= exact * (1 + 2e-3) + 1e-12
        assert above + split.infinite >= exact * (1 - 2e-3) - 1e-12


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("sigma", "q", "epsilon"), [(1.0, 0.3, 0.5), (0.4, 0.01, 2.0), (5.0, 0.9, 0.1)])
def test_both_ends_bracket_the_exact_divergence_closely(direction, sigma, q, epsilon):
    pair = Pair(direction, sigma, q)

    def p(x):
        mean = 0 if direction == "add" else 1
        return (1 - q) * norm.pdf(x, 0, sigma) + q * norm.pdf(x, mean, sigma)

    kink = float(pair.inverse_loss(np.array(epsilon)))
    assert math.isfinite(kink) or epsilon > 0
    exact = 0.0
    if math.isfinite(kink):
        pieces = np.linspace(kink, kink + 14 * sigma + 1, 30)
        exact = sum(
            quad(lambda x: p(x) * -math.expm1(epsilon - float(pair.loss(np.array(x)))), a, b, epsabs=1e-16)[0]
            for a, b in pairwise(pieces)
        )
    mesh = spread(pair) / 600
    lower, upper = Composition((merge_outcomes(pair, mesh), 1)), Composition((split_outcomes(pair, mesh), 1))
    assert lower.delta(epsilon, rounding=-1) <= exact * (1 + 1e-10) + 1e-15
    assert upper.delta(epsilon, rounding=1) >= exact * (1 - 1e-10) - 1e-15
    assert upper.delta(epsilon, rounding=1) - lower.delta(epsilon, rounding=-1) <= 2e-3 * exact + 1e-12


@settings(max_examples=40, deadline=None)
@given(sigma=st.floats(1, 200), steps=st.integers(1, 20_000), log_delta=st.floats(-70, -1))
def test_full_batch_brackets_the_closed_form_at_any_delta(sigma, steps, log_delta):
    mesh = scale("substitute", [(sigma, 1.0)], [steps]) / 30
    (curve,) = _grid.curves("substitute", [(sigma, 1.0)], [[steps]], mesh, REACH)
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


def test_the_same_composition_answers_at_every_tilt():
    step = split_outcomes(Pair("substitute", 3.0, 0.1), 0.001)
    composition = Composition((step, 200))
    for delta in np.logspace(-40, -2, 20):
        epsilon = composition.epsilon(delta, rounding=1)
        assert composition.delta(epsilon, rounding=1) == pytest.approx(delta, rel=1e-6)


def test_mass_at_infinity_is_never_explained_away():
    certain = Step(0.1, 0, np.array([0.5]), 0.5)
    assert Composition((certain, 2)).infinite == pytest.approx(0.75)
    assert Composition((certain, 2)).epsilon(0.7, rounding=1) == math.inf
    assert Composition((certain, 2)).epsilon(0.8, rounding=1) == 0.0


def test_a_bounded_loss_is_answered_up_to_its_bound():
    # Where nothing is sampled the loss of adding a record is at most -log(1 - q), and that is ε for every small δ.
    pair = Pair("add", 0.7, 0.05)
    mesh = spread(Pair("remove", 0.7, 0.05)) / 30
    for delta in (1e-3, 7e-4, 1e-6, 1e-20):
        lower = Composition((merge_outcomes(pair, mesh), 1)).epsilon(delta, rounding=-1)
        upper = Composition((split_outcomes(pair, mesh), 1)).epsilon(delta, rounding=1)
        assert lower <= upper <= -math.log(0.95) + mesh


def test_phases_compose_as_their_convolution():
    steps = [split_outcomes(Pair("remove", sigma, q), 0.05) for sigma, q in ((1.0, 0.3), (2.0, 0.1))]
    losses, mass = convolved(steps[0], 2)
    others = convolved(steps[1], 3)
    mass = np.convolve(mass, others[1])
    losses = losses[0] + others[0][0] + np.arange(len(mass)) * 0.05
    composition = Composition((steps[0], 2), (steps[1], 3))
    for epsilon in (0.0, 0.5, 2.0):
        direct = float(mass @ np.maximum(-np.expm1(np.minimum(epsilon - losses, 0)), 0))
        assert composition.delta(epsilon, rounding=-1) <= direct * (1 + 1e-11)
        assert direct * (1 - 1e-11) <= composition.delta(epsilon, rounding=1)
        assert composition.delta(epsilon, rounding=1) == pytest.approx(direct, rel=1e-8)


# At a small sample rate the loss has a tail heavier than any exponential, and no tilt makes rounding small beside δ.
@pytest.mark.parametrize("split", [merge_outcomes, split_outcomes])
@pytest.mark.parametrize("times", [1, 3])
def test_heavy_tails_are_composed_to_the_last_digits(split, times):
    step = split(Pair("substitute", 1.0, 1e-4), 2e-4, 9.0)
    composition = Composition((step, times))
    losses, mass = convolved(step, times)
    for delta in (1e-8, 1e-12, 1e-14):
        lower, upper = (composition.epsilon(delta, rounding=sign) for sign in (-1, 1))
        assert 0 < lower <= upper < 2
        for epsilon, sign in ((lower, 1), (upper, -1)):
            direct = float(mass @ np.maximum(-np.expm1(np.minimum(epsilon - losses, 0)), 0))
            direct += -math.expm1(times * math.log1p(-step.infinite))
            assert sign * direct >= sign * delta * (1 - sign * 1e-9)
        assert upper - lower < 1e-3 * upper


@given(sigma=st.floats(0.5, 20), q=st.floats(1e-3, 0.9), steps=st.integers(2, 3_000), log_tilt=st.floats(-8, 3))
@settings(max_examples=30, deadline=None)
def test_rounding_is_within_its_bound(sigma, q, steps, log_tilt):
    pair = Pair("substitute", sigma, q)
    composition = Composition((split_outcomes(pair, spread(pair) / 5), steps))
    tilt = math.exp(log_tilt)
    losses, rough, log_error = composition._compose(tilt, "double")
    _, exact, _ = composition._compose(tilt, "longdouble")
    away = np.abs(np.cumsum((rough - exact)[::-1])[::-1]).astype(float)
    relative = composition.relative * np.cumsum(exact[::-1])[::-1].astype(float)
    bound = np.exp(np.minimum(log_error - tilt * losses, 300)) + relative
    assert (away <= bound + 1e-300).all()


@pytest.mark.parametrize("direction", ["remove", "add"])
@pytest.mark.parametrize("fraction", [0.001, 0.1, 0.3, 0.9])
def test_a_bounded_end_is_not_rounded_away(direction, fraction):
    # Nearly all of the mass lies at -log(1 - q); wherever the grid falls beside it, the two ends have to agree.
    pair = Pair(direction, 0.5, 1e-3)
    mesh = -math.log1p(-1e-3) / (4 + fraction)
    low, high = (Composition((end(pair, mesh), 10_000)) for end in (merge_outcomes, split_outcomes))
    lower, upper = low.epsilon(1e-6, rounding=-1), high.epsilon(1e-6, rounding=1)
    assert lower <= upper <= lower + 1e-2 * upper


def test_no_epsilon_is_needed_where_the_record_is_hardly_ever_sampled():
    # The loss of adding a record is bounded, and the tilt of Chernoff's bound is far too steep.
    assert -math.expm1(100 * math.log1p(-1e-4)) < 1e-2
    assert curve_of("add_remove", 0.3, 1e-4, 100, 8e-5, deviations(100, 1e-2)).epsilon(1e-2) == (0.0, 0.0)


@given(delta=st.floats(1e-12, 1e-2), steps=st.integers(1, 100_000))
def test_what_a_grid_leaves_out_is_negligible(delta, steps):
    assert steps * norm.sf(deviations(steps, delta)) <= 1.01e-6 * delta


def test_deltas_at_every_multiple_are_those_asked_one_by_one():
    step = split_outcomes(Pair("substitute", 0.7, 0.4), 0.01)
    for steps in (3, 60):  # in the second the window begins above 0
        composition = Composition((step, steps))
        deltas = composition.deltas(rounding=1)
        for k in (0, 50, 400, 1_000):
            one = composition.delta(k * 0.01, rounding=1)
            assert one <= deltas[k] + 1e-12
            assert deltas[k] == pytest.approx(one, rel=1e-6, abs=1e-11)
