import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm

from dpsub._gaussian import gdp_delta, gdp_epsilon
from dpsub._grid import Composition, Step, coarsest_mesh, curves, merge_outcomes, split_outcomes
from dpsub._pairs import Pair

DIRECTIONS = ("substitute", "remove", "add")


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
    composition = Composition(step, times)
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
    mesh = coarsest_mesh("substitute" if direction == "substitute" else "add_remove", sigma, q) / fineness
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
    mesh = coarsest_mesh("add_remove", sigma, q) / 20
    lower, upper = Composition(merge_outcomes(pair, mesh), 1), Composition(split_outcomes(pair, mesh), 1)
    assert lower.delta(epsilon, rounding=-1) <= exact * (1 + 1e-10) + 1e-15
    assert upper.delta(epsilon, rounding=1) >= exact * (1 - 1e-10) - 1e-15
    assert upper.delta(epsilon, rounding=1) - lower.delta(epsilon, rounding=-1) <= 2e-3 * exact + 1e-12


@settings(max_examples=40, deadline=None)
@given(sigma=st.floats(1, 200), steps=st.integers(1, 20_000), log_delta=st.floats(-70, -1))
def test_full_batch_brackets_the_closed_form_at_any_delta(sigma, steps, log_delta):
    mesh = coarsest_mesh("substitute", sigma, 1.0)
    (curve,) = curves("substitute", sigma, 1.0, [steps], mesh)
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
    mesh = coarsest_mesh(adjacency, sigma, q)
    coarse, fine = (curves(adjacency, sigma, q, [steps], mesh / f)[0].epsilon(1e-7) for f in (1, 2))
    assert coarse[0] <= coarse[1]
    assert fine[0] <= fine[1]
    assert max(coarse[0], fine[0]) <= min(coarse[1], fine[1]) + 1e-9


def test_the_same_composition_answers_at_every_tilt():
    step = split_outcomes(Pair("substitute", 3.0, 0.1), 0.001)
    composition = Composition(step, 200)
    for delta in np.logspace(-40, -2, 20):
        epsilon = composition.epsilon(delta, rounding=1)
        assert composition.delta(epsilon, rounding=1) == pytest.approx(delta, rel=1e-6)


def test_mass_at_infinity_is_never_explained_away():
    certain = Step(0.1, 0, np.array([0.5]), 0.5)
    assert Composition(certain, 2).infinite == pytest.approx(0.75)
    assert Composition(certain, 2).epsilon(0.7, rounding=1) == math.inf
    assert Composition(certain, 2).epsilon(0.8, rounding=1) == 0.0


def test_a_bounded_loss_is_answered_up_to_its_bound():
    # Where nothing is sampled the loss of adding a record is at most -log(1 - q), and that is ε for every small δ.
    pair = Pair("add", 0.7, 0.05)
    mesh = coarsest_mesh("add_remove", 0.7, 0.05)
    for delta in (1e-3, 7e-4, 1e-6, 1e-20):
        lower = Composition(merge_outcomes(pair, mesh), 1).epsilon(delta, rounding=-1)
        upper = Composition(split_outcomes(pair, mesh), 1).epsilon(delta, rounding=1)
        assert lower <= upper <= -math.log(0.95) + mesh
