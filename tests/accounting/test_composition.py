import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsub.accounting.composition import Composition
from dpsub.accounting.discretisation import Step, merge_outcomes, split_outcomes, spread
from dpsub.accounting.dominating_pairs import Pair

DIRECTIONS = ("substitute", "remove", "add")


@pytest.mark.parametrize("split", [merge_outcomes, split_outcomes])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("times", [1, 2, 5])
def test_composition_is_convolution(direction, times, split, convolved):
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


def test_mass_at_infinity_is_part_of_every_delta(convolved):
    step = Step(0.1, 0, np.array([0.4, 0.4, 0.1]), 0.1)
    losses, mass = convolved(step, 2)
    composition = Composition((step, 2))
    deltas = composition.deltas(rounding=1)
    for place in range(5):
        direct = 0.19 + float(mass @ np.maximum(-np.expm1(np.minimum(0.1 * place - losses, 0)), 0))
        assert composition.delta(0.1 * place, rounding=1) == pytest.approx(direct, rel=1e-9)
        assert deltas[place] == pytest.approx(direct, rel=1e-9)
        assert composition.epsilon(direct * (1 + 1e-9), rounding=1) == pytest.approx(0.1 * place, abs=1e-6)


def test_phases_compose_as_their_convolution(convolved):
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
def test_heavy_tails_are_composed_to_the_last_digits(split, times, convolved):
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
@pytest.mark.parametrize("fraction", [0.001, 0.3, *(pytest.param(part, marks=pytest.mark.slow) for part in (0.1, 0.9))])
def test_a_bounded_end_is_not_rounded_away(direction, fraction):
    # Nearly all of the mass lies at -log(1 - q); wherever the grid falls beside it, the two ends have to agree.
    pair = Pair(direction, 0.5, 1e-3)
    mesh = -math.log1p(-1e-3) / (4 + fraction)
    low, high = (Composition((end(pair, mesh), 10_000)) for end in (merge_outcomes, split_outcomes))
    lower, upper = low.epsilon(1e-6, rounding=-1), high.epsilon(1e-6, rounding=1)
    assert lower <= upper <= lower + 1e-2 * upper


def test_deltas_at_every_multiple_are_those_asked_one_by_one():
    step = split_outcomes(Pair("substitute", 0.7, 0.4), 0.01)
    for steps in (3, 60):  # in the second the window begins above 0
        composition = Composition((step, steps))
        deltas = composition.deltas(rounding=1)
        for k in (0, 50, 400, 1_000):
            one = composition.delta(k * 0.01, rounding=1)
            assert one <= deltas[k] + 1e-12
            assert deltas[k] == pytest.approx(one, rel=1e-6, abs=1e-11)
