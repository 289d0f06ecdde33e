import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr, ndtri

from dpsub.accounting import Poisson, epsilon_interval, gdp_delta, gdp_epsilon, tradeoff
from dpsub.accounting.discretisation import REACH, deviations
from dpsub.accounting.gaussian import GaussianCurve, gdp_deltas
from dpsub.accounting.grid_engine import RevealedCurve, curves, extent, tradeoff_of_curve
from dpsub.accounting.phases import Training


def curve_of(adjacency, sigma, q, steps, mesh, reach=REACH):
    (curve,) = curves(training_of(adjacency, sigma, q, steps), mesh, reach)
    return curve


def training_of(adjacency, sigma, q, steps):
    return Training(((sigma, q),), ((steps,),), Poisson(), adjacency)


@settings(max_examples=25, deadline=None)
@given(sigma=st.floats(1, 200), steps=st.integers(1, 20_000), log_delta=st.floats(-70, -1))
def test_full_batch_brackets_the_closed_form_at_any_delta(sigma, steps, log_delta):
    scale, _, _ = extent(training_of("substitute", sigma, 1.0, steps), REACH)
    curve = curve_of("substitute", sigma, 1.0, steps, scale / 30)
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


@settings(max_examples=8, deadline=None)
@given(
    sigma=st.floats(0.4, 50),
    q=st.floats(1e-3, 0.99),
    steps=st.integers(1, 3_000),
    adjacency=st.sampled_from(["substitute", "add_remove"]),
)
def test_finer_grids_stay_within_coarser_intervals(sigma, q, steps, adjacency):
    reach = deviations(steps, 1e-7)
    mesh = extent(training_of(adjacency, sigma, q, steps), reach)[0] / 10
    coarse, fine = (curve_of(adjacency, sigma, q, steps, mesh / f, reach).epsilon(1e-7) for f in (1, 2))
    assert coarse[0] <= coarse[1]
    assert fine[0] <= fine[1]
    assert max(coarse[0], fine[0]) <= min(coarse[1], fine[1]) + 1e-9


@pytest.mark.parametrize("adjacency", ["substitute", "add_remove"])
def test_an_epsilon_of_0_allows_for_the_rounding_of_losses(adjacency):
    curve = curve_of(adjacency, 2.0, 0.05, 10_000, 1e-3)
    delta = max(composed.delta(0.0, rounding=1) for composed in curve.high)
    assert curve.delta(0.0)[1] > delta
    between = (delta + curve.delta(0.0)[1]) / 2
    lower, upper = curve.epsilon(between)
    assert 0 == lower < upper <= 2 * 10_000 * 1e-12


def test_no_epsilon_is_needed_where_the_record_is_hardly_ever_sampled():
    # The loss of adding a record is bounded, and the tilt of Chernoff's bound is far too steep.
    assert -math.expm1(100 * math.log1p(-1e-4)) < 1e-2
    assert curve_of("add_remove", 0.3, 1e-4, 100, 8e-5, deviations(100, 1e-2)).epsilon(1e-2) == (0.0, 0.0)


@pytest.mark.parametrize("counts", [[[2, 5], [9, 1]]])
def test_every_row_of_counts_is_a_curve_of_its_own(counts):
    mechanisms = [(2.0, 0.5), (4.0, 0.9)]
    both = curves(Training(mechanisms, counts, Poisson(), "substitute"), 0.01, REACH)
    alone = [curves(Training(mechanisms, [row], Poisson(), "substitute"), 0.01, REACH)[0] for row in counts]
    assert [curve.epsilon(1e-5) for curve in both] == [curve.epsilon(1e-5) for curve in alone]
    assert both[0].epsilon(1e-5) != both[1].epsilon(1e-5)


def averaged(epsilon):
    """δ of σ = 1.5, q = 0.3 and four steps under substitution, if it is known which batches held the record."""
    return sum(math.comb(4, k) * 0.3**k * 0.7 ** (4 - k) * gdp_delta(2 * np.sqrt(k) / 1.5, epsilon) for k in range(5))


@pytest.fixture(scope="module")
def curve():
    return RevealedCurve(2.0, 1.5, 0.3, 4)


@pytest.mark.parametrize("epsilon", [0.0, 1.0, 3.0])
def test_it_is_the_closed_form_averaged_over_the_batches(curve, epsilon):
    assert curve.delta(epsilon)[1] == pytest.approx(averaged(epsilon), rel=1e-9)
    assert curve.epsilon(averaged(epsilon) * (1 + 1e-12))[1] == pytest.approx(epsilon, abs=1e-6)


def test_its_tradeoff_lies_below_the_exact_one_and_is_that_of_its_deltas(curve):
    rates = np.linspace(0, 1, 11)
    lower, _ = curve.tradeoff(rates)
    exact = tradeoff(rates, noise_multiplier=1.5, sample_rate=0.3, steps=4, adjacency="substitute")
    assert (lower <= exact + 1e-4).all()
    epsilon = np.linspace(0, 25, 501)
    assert lower == pytest.approx(tradeoff_of_curve(rates, epsilon, np.array([averaged(e) for e in epsilon])), abs=1e-4)


@pytest.mark.parametrize(("sigma", "q", "delta"), [(12.1148681640625, 0.25, 1e-300), (0.02, 0.01, 1e-5)])
def test_where_no_grid_helps_the_bound_is_that_of_revealed_batches(sigma, q, delta):
    setting = {"noise_multiplier": sigma, "sample_rate": q, "steps": 500}
    interval = epsilon_interval(**setting, delta=delta, adjacency="substitute")
    assert interval.upper == RevealedCurve(2.0, **setting).epsilon(delta)[1]
    assert 0 < interval.lower < interval.upper


RATES = np.concatenate(([0.0], np.logspace(-12, -1, 12), np.linspace(0.1, 1, 10)))


def naive(fpr, epsilon, delta):
    """The best of all lines, one by one."""
    best = np.zeros_like(fpr)
    for e, d in zip(epsilon, delta, strict=True):
        best = np.maximum(best, np.maximum(1 - d - np.exp(e) * fpr, np.exp(-e) * (1 - d - fpr)))
    return best


@given(mu=st.floats(0.01, 8), points=st.integers(2, 60))
@settings(max_examples=50, deadline=None)
def test_it_is_the_best_of_all_lines(mu, points):
    epsilon = np.linspace(0, mu**2 / 2 + 9 * mu, points)
    delta = np.array([gdp_delta(mu, e) for e in epsilon])
    assert tradeoff_of_curve(RATES, epsilon, delta) == pytest.approx(naive(RATES, epsilon, delta), abs=1e-12)


@pytest.mark.parametrize("mu", [0.01, 1.0, 5.0])
def test_it_recovers_gaussian_privacy_from_below(mu):
    epsilon = np.linspace(0, mu**2 / 2 + 9 * mu, 10_001)
    found = tradeoff_of_curve(RATES, epsilon, gdp_deltas(epsilon, mu))
    exact = ndtr(-ndtri(RATES) - mu)
    assert found == pytest.approx(exact, abs=1e-6)
    assert (found <= exact + 1e-12).all()
    assert (GaussianCurve(mu).tradeoff(RATES)[0] == exact).all()


def test_no_privacy_allows_no_errors():
    assert tradeoff_of_curve(RATES[1:], np.array([0.0, 1.0]), np.array([1.0, 1.0])) == pytest.approx(0, abs=1e-15)


def test_perfect_privacy_is_guessing():
    assert tradeoff_of_curve(RATES, np.array([0.0, 1.0]), np.array([0.0, 0.0])) == pytest.approx(1 - RATES)


@pytest.mark.parametrize("adjacency", ["substitute", "add_remove"])
@pytest.mark.parametrize("mesh", [0.3, 0.01])
def test_many_deltas_at_once_are_those_of_one_at_a_time(adjacency, mesh):
    curve = curve_of(adjacency, 1.2, 0.2, 20, mesh)
    epsilons = np.sort(np.append(np.random.default_rng(0).uniform(0, 12, 40), [0.0, mesh, 500.0]))
    low, high = curve.deltas(epsilons)
    each = np.array([curve.delta(epsilon) for epsilon in epsilons.tolist()])
    assert high == pytest.approx(each[:, 1], abs=1e-10, rel=1e-6)
    assert low == pytest.approx(each[:, 0], abs=1e-10, rel=1e-6)


def test_the_deltas_of_closed_forms_hold_the_exact_ones():
    epsilons = np.array([0.0, 0.5, 3.0, 40.0])
    for mu in (0.01, 1.0, 30.0):
        low, high = GaussianCurve(mu).deltas(epsilons)
        exact = np.array([gdp_delta(mu, epsilon) for epsilon in epsilons.tolist()])
        assert ((low <= exact) & (exact <= high)).all()
        assert high - low == pytest.approx(0, abs=3e-14)
    revealed = RevealedCurve(2.0, 1.0, 0.1, 5)
    assert revealed.deltas(epsilons)[1].tolist() == [revealed.delta(epsilon)[1] for epsilon in epsilons.tolist()]
