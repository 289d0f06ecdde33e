import itertools
import math
from statistics import NormalDist

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.sparse import csr_array
from scipy.stats import binom

from dpsub.estimators.claims import GDP, ApproximateDP, Product
from dpsub.estimators.guess_tests import Seen, of_odds, of_tradeoff, p_values

NORMAL = NormalDist()
SEEN = [
    Seen(int(of * guesses), guesses, guesses * fold)
    for guesses, fold in ((10, 3), (60, 1), (100, 10), (300, 4))
    for of in (0.5, 0.8, 0.97, 1)
]
OF_MANY = [Seen(2, 10, 30, 10), Seen(30, 60, 60, 3), Seen(60, 60, 60, 10), Seen(5, 100, 1_000, 100)]


def gdp_refuted(mu, seen, alpha):
    """The recursion as it is printed, without any shortcut."""
    v, r, m, k = seen
    right, wrong = alpha * v / m, alpha * (r - v) / m
    for i in range(v - 1, -1, -1):
        least = (k - 1) * (NORMAL.cdf(NORMAL.inv_cdf(right) - mu) if right < 1 else 1.0)
        right, wrong = right + i / (r - i) * max(least - wrong, 0), max(wrong, least)
    return right + wrong > r / m


def odds_p_value(epsilon, delta, seen):
    v, r, m, k = seen
    rate = 1 / (1 + (k - 1) * math.exp(-epsilon))
    means = np.cumsum(binom.pmf(v - np.arange(1, v + 1), r, rate)) / np.arange(1, v + 1)
    added = 2 * m * delta * means.max(initial=0)
    if k > 2:
        likeliest = sum(min(1.0, 1 / math.sqrt(2 * math.e * j * rate * (1 - rate))) for j in range(1, r))
        added = m * delta * (1 - rate) * (1 + likeliest) / r
    return min(1.0, binom.sf(v - 1, r, rate) + added)


@pytest.mark.parametrize("seen", [*SEEN, *OF_MANY])
def test_the_recursion_agrees_with_a_plain_loop(seen):
    mu = of_tradeoff(GDP(1e-5), seen, 0.05)
    assert mu == 0 or gdp_refuted(mu - 1e-6, seen, 0.05)
    assert not gdp_refuted(mu + 1e-6, seen, 0.05)


@pytest.mark.parametrize("seen", OF_MANY)
@pytest.mark.parametrize("delta", [1e-8, 1e-4])
def test_p_values_of_many_candidates_are_hardly_above_a_plain_loop(seen, delta):
    epsilons = np.array([0.0, 0.3, 1, 3, 6])
    expected = np.array([odds_p_value(epsilon, delta, seen) for epsilon in epsilons])
    found = p_values(epsilons, delta, seen)
    assert (found >= expected - 1e-12).all()
    np.testing.assert_allclose(found, expected, rtol=0.3, atol=1e-12)


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.5, 0.9])
def test_herzogs_inequality(rate):
    trials = np.arange(1, 2_000)
    likeliest = binom.pmf(np.floor((trials + 1) * rate), trials, rate)
    assert (likeliest <= 1 / np.sqrt(2 * math.e * trials * rate * (1 - rate))).all()


def most_of_any_mechanism(epsilon, delta, secrets, candidates, fewest):
    """The largest P(C ≥ v) of any (ε, δ)-DP mechanism that says what to guess: a linear program over its law."""
    worlds = list(itertools.product(range(candidates), repeat=secrets))
    count = len(worlds)
    right = np.array([[sum(a == b for a, b in zip(s, y, strict=True)) for y in worlds] for s in worlds])
    apart = [(i, j) for i in range(count) for j in range(count) if right[i, j] == secrets - 1]
    size = count * count + len(apart) * count  # P(y | s), and what P(y | s) exceeds e^ε P(y | s') by
    own, above = np.arange(count * count).reshape(count, count), count * count
    rows, at, values, limits, row = [], [], [], [], 0
    for n, (i, j) in enumerate(apart):
        beyond = above + n * count + np.arange(count)
        for y in range(count):
            rows += [row] * 3
            at += [own[i, y], own[j, y], beyond[y]]
            values += [1, -math.exp(epsilon), -1]
            limits.append(0.0)
            row += 1
        rows += [row] * count
        at += beyond.tolist()
        values += [1] * count
        limits.append(delta)
        row += 1
    objective = np.zeros(size)
    objective[:above] = -(right >= fewest).astype(float).ravel() / count
    found = linprog(
        objective,
        A_ub=csr_array((values, (rows, at)), shape=(row, size)),
        b_ub=limits,
        A_eq=csr_array((np.ones(above), (np.repeat(np.arange(count), count), own.ravel())), shape=(count, size)),
        b_eq=np.ones(count),
    )
    return -found.fun


@pytest.mark.parametrize(("secrets", "candidates"), [(2, 3), (1, 4), (2, 2), (3, 2)])
@pytest.mark.parametrize("delta", [0.0, 0.03])
def test_no_mechanism_is_guessed_more_often_than_the_p_value_allows(secrets, candidates, delta):
    for epsilon in (0.2, 1.5):
        for fewest in range(1, secrets + 1):
            most = most_of_any_mechanism(epsilon, delta, secrets, candidates, fewest)
            [allowed] = p_values(np.array([epsilon]), delta, Seen(fewest, secrets, secrets, candidates))
            if candidates > 2 or allowed < 0.5:  # alpha is: beyond it the formula for pairs is exceeded
                assert most <= allowed + 1e-8
            if not delta:
                assert most == pytest.approx(allowed), "a binomial is what randomised response reaches"


@pytest.mark.parametrize("seen", SEEN)
@pytest.mark.parametrize("delta", [1e-8, 1e-4, 1e-3])
def test_p_values_are_those_of_a_plain_loop(seen, delta):
    epsilons = np.array([0.0, 0.3, 1, 3, 10, 40])
    expected = [odds_p_value(epsilon, delta, seen) for epsilon in epsilons]
    np.testing.assert_allclose(p_values(epsilons, delta, seen), expected, rtol=1e-9, atol=1e-300)


@pytest.mark.parametrize("seen", SEEN)
def test_the_largest_refuted_epsilon_is_where_the_p_value_is_alpha(seen):
    epsilon = of_odds(1e-5, seen, 0.05)
    if epsilon:
        assert odds_p_value(epsilon, 1e-5, seen) == pytest.approx(0.05, abs=1e-7)
        assert odds_p_value(epsilon + 1e-6, 1e-5, seen) > 0.05
    else:
        assert odds_p_value(0.0, 1e-5, seen) > 0.05 - 1e-9


def most_likely(claim, parameter, seen):
    """The largest P(C ≥ v) that f allows, for f of straight lines: a linear program over the law of C."""
    v, r, m, candidates = seen
    lines = [(1 - claim.delta, np.exp(parameter)), (np.exp(-parameter) * (1 - claim.delta), np.exp(-parameter))]
    count, rows, limits = np.arange(r + 1), [], []
    for k in range(1, r + 1):
        wrong = np.where(count >= k - 1, (r - count) / m, 0)
        right = np.where(count >= k, count / m, 0)
        for intercept, slope in lines:  # wrong ≥ intercept - slope * (1 - right)
            rows.append(slope * right - wrong / (candidates - 1))
            limits.append(slope - intercept)
    found = linprog(-(count >= v).astype(float), A_ub=rows, b_ub=limits, A_eq=[np.ones(r + 1)], b_eq=[1])
    return -found.fun


@pytest.mark.parametrize(
    "seen",
    [
        *(Seen(6, 6, 6), Seen(5, 6, 12), Seen(17, 20, 20), Seen(28, 30, 300)),
        *(Seen(12, 20, 20, 4), Seen(9, 10, 40, 3), Seen(2, 10, 10, 50)),
    ],
)
@pytest.mark.parametrize("epsilon", [0.1, 0.7, 1.5])
def test_what_f_allows_with_the_level_as_its_probability_is_never_refuted(seen, epsilon):
    claim = ApproximateDP(1e-3)
    allowed = most_likely(claim, epsilon, seen)
    if allowed < 0.5:
        assert of_tradeoff(claim, seen, allowed * (1 - 1e-6)) <= epsilon
        assert of_tradeoff(claim, seen, min(allowed * 1.05, 0.5)) > epsilon - 1e-6, "far from the best"


@pytest.mark.parametrize("seen", [*SEEN, *OF_MANY])
def test_without_a_difference_a_binomial_decides(seen):
    v, r, _, k = seen
    p = binom.sf(v - 1, r, 1 / k)
    assert p_values(np.zeros(1), 0.0, seen) == pytest.approx(min(p, 1))
    if p < 0.04:
        assert of_tradeoff(GDP(1e-5), seen, 0.05) > 0
    if p > 0.06:
        assert of_tradeoff(GDP(1e-5), seen, 0.05) == of_odds(1e-12, seen, 0.05) == 0


def test_independent_guesses_are_judged_at_the_upper_end_of_their_error_rate():
    mu = Product(1e-5).refuted_by_guesses(Seen(800, 1_000, 1_000), 0.05)
    error = NORMAL.cdf(-mu / 2)
    assert binom.cdf(200, 1_000, error) == pytest.approx(0.05, abs=1e-9)
    assert Product(1e-5).refuted_by_guesses(Seen(500, 1_000, 1_000), 0.05) == 0


def test_many_independent_guesses_show_the_truth():
    right = 1_000_000 * NORMAL.cdf(0.5)
    assert Product(1e-5).refuted_by_guesses(Seen(round(right), 10**6, 10**6), 0.05) == pytest.approx(1, abs=0.01)
