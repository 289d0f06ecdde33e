import math
from functools import cache

import numpy as np
import pytest
from scipy.stats import norm

from dpsub.accounting import delta, epsilon, epsilon_interval, gdp_epsilon, group_privacy_epsilon, tradeoff
from dpsub.accounting.engines import ENGINES

# Made by an independent implementation, cross-checked against dp-accounting. prv-accountant is slow.
KNOWN = [
    pytest.param(*point, engine, marks=[pytest.mark.slow] * (engine == "prv"))
    for point in (
        ("full", "substitute", 3.99502351),
        ("full", "add_remove", 1.8247909),
        ("quarter", "substitute", 3.98683393),
        ("quarter", "add_remove", 1.83487194),
    )
    for engine in ENGINES
]


@pytest.mark.parametrize(("mechanism", "adjacency", "expected", "engine"), KNOWN)
def test_epsilon_at_known_points(mechanism, adjacency, expected, engine, request):
    eps_error = 1e-2 if engine == "prv" else 1e-3  # at 1e-3 prv-accountant takes ten times as long
    lower, estimate, upper = epsilon_interval(
        **request.getfixturevalue(mechanism),
        steps=500,
        delta=1e-5,
        adjacency=adjacency,
        engine=engine,
        eps_error=eps_error,
    )
    assert lower - 1e-6 <= expected <= upper + 1e-6
    assert estimate == pytest.approx(expected, abs=5e-4)
    assert upper - estimate <= eps_error * max(1, lower)


@pytest.mark.parametrize("adjacency", ["substitute", "add_remove"])
def test_epsilon_is_the_upper_end_of_the_interval(quarter, adjacency):
    asked = {**quarter, "steps": 500, "delta": 1e-5, "adjacency": adjacency}
    lower, estimate, upper = epsilon_interval(**asked)
    assert epsilon(**asked) == upper
    assert lower < upper
    assert estimate == (lower + upper) / 2


@cache
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
    x = np.linspace(-9 * sigma - 1, 9 * sigma + 1, 400_001)
    return max(np.trapezoid(np.maximum(p(x) - math.exp(eps) * other(x), 0), x) for p, other in directions)


# prv-accountant takes seconds for each of these settings.
ONE_STEP = [
    pytest.param(engine, adjacency, *setting, marks=[pytest.mark.slow] * (engine == "prv"))
    for engine in ENGINES
    for adjacency in ("substitute", "add_remove")
    for setting in ((1.0, 0.3, 0.5), (0.7, 0.05, 1.0), (3.0, 0.9, 0.2))
]


@pytest.mark.parametrize(("engine", "adjacency", "sigma", "q", "eps"), ONE_STEP)
def test_one_step_is_the_hockey_stick_divergence(engine, adjacency, sigma, q, eps):
    mechanism = {"noise_multiplier": sigma, "sample_rate": q, "steps": 1, "adjacency": adjacency, "engine": engine}
    exact = one_step_delta(sigma, q, eps, adjacency)
    lower, _, upper = epsilon_interval(**mechanism, delta=exact)
    assert lower <= eps + 1e-6
    assert eps - 1e-6 <= upper
    assert upper - lower <= (3e-3 if engine == "prv" else 2.001e-3) * max(1, eps)
    assert exact * (1 - 1e-6) <= delta(**mechanism, epsilon=eps) <= exact * 1.01


@pytest.mark.parametrize(
    ("engine", "counts", "eps_error"),
    [("auto", [1, 10, 100, 500], 1e-3), pytest.param("prv", [100, 20], 0.05, marks=pytest.mark.slow)],
)
def test_many_step_counts_are_those_of_single_calls(quarter, engine, counts, eps_error):
    asked = {**quarter, "delta": 1e-5, "adjacency": "substitute"}
    together = epsilon_interval(**asked, steps=counts, engine=engine, eps_error=eps_error)
    for i, steps in enumerate(counts):
        alone = epsilon_interval(**asked, steps=steps)
        assert together.lower[i] <= alone.upper
        assert alone.lower <= together.upper[i]
    assert (np.diff(together.upper) * np.sign(np.diff(counts)) > 0).all()


def test_full_batch_is_a_gaussian_mechanism_of_twice_the_distance(full):
    for adjacency, distance in (("substitute", 2), ("add_remove", 1)):
        mu = distance * math.sqrt(500) / full["noise_multiplier"]
        found = epsilon(**full, steps=500, delta=1e-5, adjacency=adjacency)
        assert found == pytest.approx(gdp_epsilon(mu, 1e-5), rel=1e-14)


@pytest.mark.parametrize("q", [1.0, 0.25])
def test_substitute_lies_between_add_remove_and_group_privacy(q):
    mechanism = {"noise_multiplier": 40 * q, "sample_rate": q, "steps": 500, "delta": 1e-5}
    add_remove, substitute = (epsilon(**mechanism, adjacency=a) for a in ("add_remove", "substitute"))
    assert add_remove < substitute < group_privacy_epsilon(**mechanism)
    assert epsilon(**mechanism, adjacency="zero_out") == add_remove


# Where the sample rate is tiny, or the phases are far apart, a grid fine enough for all would have no end.
@pytest.mark.parametrize(
    ("history", "delta", "about"),
    [
        ([(1, 0.5, 100), (50, 1e-6, 1)], 1e-5, 39.9752),  # dp-accounting's for the first phase alone
        pytest.param([(0.5, 0.1, 100), (1, 1e-5, 1)], 1e-6, 35.3269, marks=pytest.mark.slow),
        ([(1e-3, 1 - 1e-12, 10)], 1e-5, gdp_epsilon(math.sqrt(10) / 1e-3, 1e-5)),  # nearly full batch
        pytest.param(  # below the sample rate's own size
            [(0.24327817932, 4.557647886e-9, 1)], 2.13e-9, 5e-9, marks=pytest.mark.slow
        ),
        ([(300, 0.01, 10**9)], 1e-10, gdp_epsilon(0.01 * math.sqrt(1e9 * math.expm1(1 / 300**2)), 1e-10)),
    ],
)
def test_odd_histories_are_answered(history, delta, about):
    found = epsilon_interval(history=history, delta=delta, adjacency="add_remove")
    assert 0 <= found.lower <= about <= found.upper * (1 + 1e-9)
    assert found.upper <= 1.05 * about + 1e-3


def test_a_tilt_beyond_the_cliff_of_heavy_tails_is_taken_back():
    setting = {"noise_multiplier": 0.8317791385571947, "sample_rate": 0.0014581361402937194, "steps": 364}
    for adjacency in ("substitute", "add_remove"):
        found = epsilon_interval(**setting, delta=1.9559992739263536e-10, adjacency=adjacency)
        assert found.upper - found.lower < 2e-3 * found.upper


@pytest.mark.parametrize("q", [1e-3, pytest.param(1e-9, marks=pytest.mark.slow)])
def test_delta_of_rare_sampling_is_not_rounded_down(q):
    exact = q * math.erf(math.sqrt(0.5))  # the total variation of N(1, 1) and N(-1, 1), with probability q
    found = delta(noise_multiplier=1, sample_rate=q, steps=1, epsilon=0.0, adjacency="substitute")
    assert exact * (1 - 1e-10) <= found <= exact * (1 + 1e-3)


def test_an_error_that_no_grid_reaches_gives_a_wider_interval(quarter):
    coarse = epsilon_interval(**quarter, steps=500, delta=1e-5, adjacency="substitute", eps_error=1e-9)
    assert 0 < coarse.upper - coarse.lower < 1e-4


@pytest.mark.parametrize("eps_error", [1e-1, 1e-3, 1e-5])
def test_the_error_asked_for_is_kept(quarter, eps_error):
    interval = epsilon_interval(**quarter, steps=500, delta=1e-5, adjacency="add_remove", eps_error=eps_error)
    assert interval.upper - interval.estimate <= eps_error * max(1, interval.lower)
    assert interval.lower <= 1.83487194 + 1e-8 <= interval.upper + 2e-8


def test_epsilon_is_zero_where_delta_alone_suffices():
    assert epsilon(noise_multiplier=100.0, sample_rate=1e-4, steps=1, delta=0.1, adjacency="substitute") == 0.0


def test_delta_of_several_epsilons_is_that_of_each(quarter):
    wanted = [0.0, 1.0, 4.0, 12.0]
    together = delta(**quarter, steps=500, epsilon=wanted, adjacency="substitute")
    alone = [delta(**quarter, steps=500, epsilon=eps, adjacency="substitute") for eps in wanted]
    assert together == pytest.approx(alone, rel=2e-3)
    assert delta(**quarter, steps=500, epsilon=np.array(wanted), adjacency="substitute").shape == (4,)
    back = epsilon(**quarter, steps=500, delta=together[2], adjacency="substitute")
    assert back == pytest.approx(4.0, abs=2e-3)


GOOD = {"noise_multiplier": 1.0, "sample_rate": 0.5, "steps": 10, "delta": 1e-5, "adjacency": "substitute"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"noise_multiplier": 0}, "noise_multiplier must be > 0, got 0"),
        ({"sample_rate": 1.5}, "sample_rate must be > 0 and <= 1, got 1.5"),
        ({"delta": 1}, "delta must be > 0 and < 1, got 1"),
        ({"adjacency": "replace"}, "adjacency must be one of 'substitute', 'add_remove', 'zero_out', got 'replace'"),
    ],
)
def test_bad_input_is_named(change, message):
    with pytest.raises(ValueError, match=message):
        epsilon(**{**GOOD, **change})


@pytest.mark.slow
@pytest.mark.parametrize("wanted", [1e-15, 1e-13])
def test_prv_refuses_a_delta_that_rounding_would_decide(wanted):
    asked = {"noise_multiplier": 1.1, "sample_rate": 0.01, "steps": 100, "adjacency": "substitute"}
    with pytest.raises(ValueError, match=f"delta must be larger for engine='prv' .*, got {wanted:g}; engine='auto'"):
        epsilon(**asked, delta=wanted, engine="prv", eps_error=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("wanted", [1.1e-11, 3e-11, 1e-10])
def test_prv_is_right_next_to_the_smallest_delta_that_it_takes(wanted):
    asked = {"noise_multiplier": 1.1, "sample_rate": 0.01, "steps": 10_000, "adjacency": "substitute", "delta": wanted}
    exact, by_prv = epsilon_interval(**asked), epsilon_interval(**asked, engine="prv")
    assert by_prv.lower <= exact.upper
    assert exact.lower <= by_prv.upper


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


def test_tradeoff_under_add_remove_is_the_lower_direction_made_symmetric_and_convex():
    sigma, q = 0.6, 0.3
    x = np.linspace(-3, 3, 241)
    with_record, without = (1 - q) * norm.sf(x, 0, sigma) + q * norm.sf(x, 1, sigma), norm.sf(x, 0, sigma)
    asked = {"noise_multiplier": sigma, "sample_rate": q, "steps": 1, "adjacency": "add_remove"}
    for fpr, fnr in ((without, 1 - with_record), (1 - with_record, without)):
        above = fnr - tradeoff(fpr, **asked)
        assert above.min() >= -1e-9
        assert above.min() <= 2.1e-5, "either direction decides somewhere"
    rates = np.linspace(0, 1, 21)
    twice = tradeoff(tradeoff(rates, **asked), **asked)
    assert twice == pytest.approx(rates, abs=2e-3)
    assert (np.diff(tradeoff(rates, **asked), 2) >= -1e-4).all()


def test_tradeoff_keeps_shape_and_is_exact_at_full_batch(full, quarter):
    rates = np.array([[0.0, 0.2], [0.7, 1.0]])
    for adjacency, distance in (("substitute", 2), ("zero_out", 1)):
        mu = distance * math.sqrt(500) / full["noise_multiplier"]
        found = tradeoff(rates, **full, steps=500, adjacency=adjacency)
        assert found == pytest.approx(norm.sf(norm.ppf(rates) + mu), abs=1e-15)
    assert isinstance(tradeoff(0.1, **quarter, steps=20, adjacency="substitute"), float)


def test_tradeoff_is_not_rounded_up_near_one():
    setting = {"noise_multiplier": 9.756111552011856, "sample_rate": 0.0007213055140683113, "steps": 1}
    assert 0 < tradeoff(0.9999999999985324, **setting, adjacency="substitute") <= 1.465928e-12


@pytest.mark.parametrize(
    ("sigma", "q", "steps"),
    [(0.01, 0.5, 3), (0.0205, 0.999, 100), pytest.param(0.00637, 0.74, 1_600_000, marks=pytest.mark.slow)],
)
def test_tradeoff_under_add_remove_at_little_noise(sigma, q, steps):
    # With so little noise, only a record that was never sampled is hidden. Its curve is 1 - fpr with this probability,
    # made symmetric and convex.
    never = (1 - q) ** steps
    found = tradeoff(0.01, noise_multiplier=sigma, sample_rate=q, steps=steps, adjacency="add_remove")
    assert found == pytest.approx(max(never - 0.01, 0.0), abs=2.1e-5)
