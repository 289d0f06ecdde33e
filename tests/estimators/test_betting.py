import numpy as np
import pytest
from scipy.stats import binom, norm

from dpsub.accounting import gdp_epsilon
from dpsub.estimators import epsilon_lower_bound, max_certifiable_epsilon
from dpsub.estimators.betting import log_wealth, portfolio
from dpsub.estimators.claims import GDP, ApproximateDP
from dpsub.estimators.dpsgd_claim import MechanismDP
from dpsub.estimators.lessons import FIRST, QUANTILES, stretches

DELTA = 1e-5
SAMPLED = MechanismDP(DELTA, 0.3, 2, "add_remove")


def slopes_and_deltas(claim, parameter):
    slopes = np.linspace(0, claim.steepest(1e-4, parameter), 21)
    return slopes[None], claim.deltas(slopes, parameter)[None]


def independent(rng, observations, mu):
    bits = rng.integers(0, 2, observations)
    return rng.normal(size=observations) + mu * (bits == 0), bits


def drifting(rng, observations, mu):
    """The place and the spread of a score depend on all scores and coins before it."""
    bits = rng.integers(0, 2, observations)
    scores, place = np.empty(observations), 0.0
    for t in range(observations):
        spread = 1 + (place > 0)
        scores[t] = place + spread * (rng.normal() + mu * (bits[t] == 0))
        place = 0.9 * scores[t] + (bits[t] == 0)
    return scores, bits


def sorted_by_luck(rng, observations, mu, together=16):
    """After many coins for z the next scores are made lower, after few higher, by less and less.

    Given the past, each is N(0, 1) or N(μ, 1) at a place that is known: exactly μ-GDP. But at the end the places where
    z came up more often are above those where it came up less often.
    """
    bits = rng.integers(0, 2, observations)
    place, step = 0.0, 2.0 ** (observations // together)
    places = np.empty(observations)
    for start in range(0, observations, together):
        places[start : start + together] = place
        place -= 10 * step * np.sign(0.5 - bits[start : start + together].mean())
        step /= 2
    return places + rng.normal(size=observations) + mu * (bits == 0), bits


PROCESSES = [(independent, 1.0, 400), (drifting, 1.0, 400), (sorted_by_luck, 0.1, 640)]


def refuted(process, mu, observations, threshold, audits, alpha):
    """In how many audits of this process a true claim was refuted."""
    rng = np.random.default_rng(1)
    truth = gdp_epsilon(mu, DELTA)
    return sum(
        epsilon_lower_bound(*process(rng, observations, mu), delta=DELTA, threshold=threshold, alpha=alpha).epsilon
        > truth
        for _ in range(audits)
    )


@pytest.mark.parametrize(
    ("audits", "alpha"), [(60, 0.25), pytest.param(1_000, 0.05, marks=pytest.mark.slow)], ids=["few", "many"]
)
@pytest.mark.parametrize(("process", "mu", "observations"), PROCESSES)
def test_true_claims_are_refuted_at_any_time_in_at_most_alpha_of_audits(process, mu, observations, audits, alpha):
    assert refuted(process, mu, observations, "bets", audits, alpha) <= binom.ppf(0.999, audits, alpha)


def test_ranks_break_their_promise_where_bets_keep_it():
    assert refuted(sorted_by_luck, 0.1, 640, "ranks", 40, 0.05) > 20  # at most 2 of 40 are promised
    assert refuted(sorted_by_luck, 0.1, 640, "bets", 40, 0.05) <= 2


@pytest.mark.parametrize(("mu", "observations", "least"), [(0.5, 5_000, 0.75), (1, 1_000, 0.75), (1, 5_000, 0.85)])
def test_bets_find_most_of_the_truth(mu, observations, least):
    rng = np.random.default_rng(2)
    bounds = [
        epsilon_lower_bound(*independent(rng, observations, mu), delta=DELTA, threshold="bets") for _ in range(24)
    ]
    assert np.mean([bound.mu for bound in bounds]) > least * mu


@pytest.mark.slow
def test_bets_find_nearly_all_with_20_000_observations():
    rng = np.random.default_rng(2)
    bounds = [epsilon_lower_bound(*independent(rng, 20_000, 1), delta=DELTA, threshold="bets") for _ in range(6)]
    assert np.mean([bound.mu for bound in bounds]) > 0.92


@pytest.mark.parametrize(("claim", "parameter"), [(GDP(DELTA), 0.8), (ApproximateDP(0.01), 1.0), (SAMPLED, 0.9)])
def test_no_true_claim_lets_wealth_grow_on_average(claim, parameter):
    # For pairs on the trade-off function itself, the expectation of every bet is computed, not simulated.
    rng = np.random.default_rng(3)
    slopes, deltas = slopes_and_deltas(claim, parameter)
    for stretch in stretches(*(lambda s, b: (s, b == 0))(*independent(rng, 500, 2.0))):
        gross, charge = portfolio(stretch, slopes, deltas)
        growth = gross[0] - charge[0] @ deltas[0]
        assert (charge >= 0).all()
        assert growth.min() > 0
        for rates in rng.uniform(size=(20, len(QUANTILES))):
            fpr = np.sort(rates)[::-1]
            tpr = 1 - claim.tradeoff(fpr, parameter)
            between = np.zeros((2, growth.shape[1]))
            between[0, ::2] = -np.diff(np.concatenate(([1.0], tpr, [0.0])))
            between[1, ::2] = -np.diff(np.concatenate(([1.0], fpr, [0.0])))
            assert (between >= -1e-12).all()
            for law in (between, between[::-1, ::-1]):
                assert (growth * law).sum() / 2 <= 1 + 1e-9


@pytest.mark.parametrize(("claim", "parameter"), [(GDP(DELTA), 1.3), (ApproximateDP(0.01), 1.0), (SAMPLED, 2.0)])
def test_privacy_curves_are_those_of_the_tradeoff_functions(claim, parameter):
    epsilons = np.array([0.0, 0.3, 0.9, 1.0, 1.5])
    fpr = norm.cdf(np.linspace(-8, 8, 200_001))
    of_f = [np.max(1 - claim.tradeoff(fpr, parameter) - np.exp(epsilon) * fpr) for epsilon in epsilons]
    np.testing.assert_allclose(claim.deltas(epsilons, parameter), of_f, atol=1e-4)
    assert (claim.deltas(epsilons, 1.1 * parameter) >= claim.deltas(epsilons, parameter)).all()


def test_bets_know_only_the_past():
    scores, bits = independent(np.random.default_rng(4), 400, 1.0)
    slopes, deltas = slopes_and_deltas(GDP(DELTA), 0.7)

    def path(scores, bits):
        paths, wealth = [], np.zeros(1)
        for stretch in stretches(scores, bits == 0):
            paths.append(log_wealth(stretch, portfolio(stretch, slopes, deltas), deltas, wealth))
            wealth = paths[-1][:, -1]
        return np.concatenate(paths, axis=1)[0]

    whole = path(scores, bits)
    assert len(whole) == 400 - FIRST
    for known in (FIRST + 1, 150, 399):
        other, coins = scores.copy(), bits.copy()
        other[known:], coins[known:] = -5 * scores[known:], 1 - bits[known:]
        np.testing.assert_array_equal(path(other, coins)[: known - FIRST], whole[: known - FIRST])
        assert (path(other, coins)[known - FIRST :] != whole[known - FIRST :]).any()


def test_one_may_stop_when_the_bound_is_reached(bounded):
    scores, bits = independent(np.random.default_rng(5), 800, 1.0)
    bound = bounded(scores, bits, threshold="bets")
    assert (bound.observations, bound.valid, bound.threshold) == (800, True, None)
    assert FIRST < bound.reached < 800
    stopped = bounded(scores[: bound.reached], bits[: bound.reached], threshold="bets")
    assert stopped.epsilon == bound.epsilon
    assert bounded(scores[: bound.reached - 1], bits[: bound.reached - 1], threshold="bets").epsilon < bound.epsilon


def test_bounds_never_fall_as_observations_come_in(bounded):
    scores, bits = independent(np.random.default_rng(6), 600, 1.5)
    found = [bounded(scores[:seen], bits[:seen], threshold="bets").mu for seen in range(100, 601, 100)]
    assert found == sorted(found)
    assert found[-1] > found[0]


def test_the_note_says_what_bets_rest_on(bounded):
    scores, bits = independent(np.random.default_rng(7), 800, 1.0)
    note = bounded(scores, bits, threshold="bets").note
    for part in ("depend on the past", "whenever one stops", "one observation", "fair coin", "order"):
        assert part in note


def test_order_matters(bounded):
    scores, bits = independent(np.random.default_rng(8), 800, 1.0)
    assert bounded(scores, bits, threshold="bets").mu != bounded(scores[::-1], bits[::-1], threshold="bets").mu


def test_what_bets_cannot_use_is_named(bounded):
    bits = np.arange(FIRST) % 2
    few = bounded(1.0 - bits, bits, threshold="bets")
    assert (few.epsilon, few.reached) == (0, None)
    assert few.note == "bets need more than 64 observations, which they learn from, got 64"
    bits = np.arange(1_000) % 5 == 0
    with pytest.raises(ValueError, match="bits must be those of a fair coin for threshold 'bets', got 800 of 1,000"):
        bounded(1.0 - bits, bits, threshold="bets")
    with pytest.raises(ValueError, match="'bets' goes with the methods 'gdp', 'dp', 'pld', got 'katz'"):
        bounded([0.1, 0.2], [0, 1], "katz", "bets")
    with pytest.raises(ValueError, match="runs must be at most 1e\\+06 for threshold 'bets', got 2000000"):
        max_certifiable_epsilon(2_000_000, delta=DELTA, threshold="bets")


def test_full_batch_claims_about_noise_are_those_of_gdp(bounded):
    scores, bits = independent(np.random.default_rng(9), 600, 1.0)
    full = {"sample_rate": 1.0, "steps": 1, "adjacency": "substitute"}
    pld = epsilon_lower_bound(scores, bits, delta=DELTA, method="pld", threshold="bets", **full)
    assert pld.noise_multiplier == pytest.approx(2 / bounded(scores, bits, threshold="bets").mu)
    assert bounded(scores[:, None], bits, threshold="bets")[0].epsilon == pytest.approx(pld.epsilon)
