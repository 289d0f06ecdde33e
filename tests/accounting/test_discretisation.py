import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm

from dpsub.accounting import discretisation
from dpsub.accounting.composition import Composition
from dpsub.accounting.discretisation import deviations, merge_outcomes, split_outcomes, spread
from dpsub.accounting.dominating_pairs import Pair

DIRECTIONS = ("substitute", "remove", "add")


@given(
    direction=st.sampled_from(DIRECTIONS),
    sigma=st.floats(0.3, 50),
    q=st.floats(1e-3, 1.0),
    fineness=st.floats(0.01, 5),
)
@example(direction="substitute", sigma=3.0, q=0.5, fineness=0.01)  # so coarse that some cells have no neighbour
@settings(max_examples=40, deadline=None)
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
def test_what_lies_beyond_the_grid_is_kept_on_the_safe_side(direction):
    pair = Pair(direction, 0.5, 0.4)
    split, merged = (end(pair, 0.05, 1.5) for end in (split_outcomes, merge_outcomes))
    assert split.mass.sum() + split.infinite == pytest.approx(1, abs=1e-12)
    assert split.infinite == pytest.approx(1 - pair.cdf(pair.inverse_loss(split.losses[-1])), abs=1e-12)
    assert merged.infinite == 0.0
    assert merged.mass.sum() == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(
    ("sigma", "q", "epsilon"), [(1.0, 0.3, 0.5), pytest.param(0.4, 0.01, 2.0, marks=pytest.mark.slow), (5.0, 0.9, 0.1)]
)
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


@pytest.mark.parametrize("delta", [1e-3, 7e-4, 1e-6, 1e-20])
def test_a_bounded_loss_is_answered_up_to_its_bound(delta):
    # Where nothing is sampled the loss of adding a record is at most -log(1 - q), and that is ε for every small δ.
    pair = Pair("add", 0.7, 0.05)
    mesh = spread(Pair("remove", 0.7, 0.05)) / 30
    lower = Composition((merge_outcomes(pair, mesh), 1)).epsilon(delta, rounding=-1)
    upper = Composition((split_outcomes(pair, mesh), 1)).epsilon(delta, rounding=1)
    assert lower <= upper <= -math.log(0.95) + mesh
    if delta < 1e-4:
        assert lower >= -math.log(0.95) - mesh


@given(delta=st.floats(1e-12, 1e-2), steps=st.integers(1, 100_000))
def test_what_a_grid_leaves_out_is_negligible_and_no_less(delta, steps):
    assert steps * norm.sf(deviations(steps, delta)) == pytest.approx(1e-6 * delta, rel=1e-2)


@pytest.mark.parametrize("mesh", [0.5, 0.02])
@pytest.mark.parametrize("noise", [0.0, 0.1, 2.0])
def test_cells_are_raised_with_mass_of_the_cells_after_them(mesh, noise):
    rng = np.random.default_rng(0)
    index = np.arange(-60, 61)
    q = np.exp(-(index**2) / 500) * rng.random(len(index))
    p = q * np.exp(mesh * (index + noise * rng.normal(size=len(index))))
    q[40:60] *= 3  # cells that need all of the next ones
    ratio = np.exp(index * mesh)
    raised_p, raised_q = discretisation.borrow(p, q, ratio)
    for before, raised in ((p, raised_p), (q, raised_q)):
        assert raised.sum() == pytest.approx(before.sum())
        assert (np.cumsum(raised) >= np.cumsum(before) * (1 - 1e-12)).all()
    last = np.flatnonzero(raised_p)[-1]  # it may find too little
    assert (raised_p >= ratio * raised_q * (1 - 1e-12))[:last].all()
    untouched = (p >= ratio * q) & (raised_p == p)
    assert (raised_q == q)[untouched].all()
