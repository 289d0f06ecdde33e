from dataclasses import replace

import numpy as np
import pytest
import xarray as xr
from scipy.stats import binom, norm

from dpsub.estimators import betting, epsilon_lower_bound
from dpsub.estimators.betting import FIRST, QUANTILES, Bets, portfolio, stretches
from dpsub.estimators.claims import GDP, ApproximateDP
from dpsub.estimators.dpsgd_claim import MechanismDP
from dpsub.estimators.wealth import Bettor, Expected
from studies.estimators.known_truths import Drifting, Gaussian, SortedByLuck
from studies.estimators.validity import Cell, measure

DELTA = 1e-5
SAMPLED = MechanismDP(DELTA, 0.3, 2, "add_remove")


def slopes_and_deltas(claim, parameter):
    slopes = np.linspace(0, replace(claim, delta=1e-4).epsilon(parameter), 21)
    return slopes[None], claim.deltas(slopes, parameter)[None]


PASTS = [(Gaussian(1.0), 400), (Drifting(1.0), 400), (SortedByLuck(0.1), 640)]


def refuted(truth, observations, rule, audits, alpha):
    """In how many audits of this truth it was refuted."""
    return measure(Cell("gdp", rule, observations, truth, audits=audits, alpha=alpha), seed=1)["wrong"]


@pytest.mark.slow
@pytest.mark.parametrize(("truth", "observations"), PASTS, ids=lambda truth: type(truth).__name__)
def test_true_claims_are_refuted_at_any_time_in_at_most_alpha_of_audits(truth, observations):
    assert refuted(truth, observations, "bets", 1_000, 0.05) <= binom.ppf(0.999, 1_000, 0.05)


# Few enough audits for every test run.
def test_true_claims_are_refuted_at_any_time_in_at_most_alpha_of_few_audits():
    assert refuted(Drifting(1.0), 250, "bets", 15, 0.25) <= binom.ppf(0.98, 15, 0.25)


def guesses_of_one_luck(rng, steps, together, mu):
    """Observations of a step that are right with the same probability: each keeps the claim, all others given."""
    spread = 2 / mu
    luck = np.abs(1 + spread * rng.normal(size=(steps, 1)))
    in_z = rng.random((steps, together)) < 0.5
    right = rng.random((steps, together)) < 1 / (1 + np.exp(-2 * luck / spread**2))
    return np.where(in_z == right, luck, -luck), in_z


def test_bets_on_a_step_hold_whatever_its_observations_share():
    claim, together, one_by_one = GDP(DELTA), 0, 0
    for seed in range(12):
        seen = guesses_of_one_luck(np.random.default_rng(seed), 40, 20, 1.0)
        bettors = Bettor(0.1, Expected(1.0, -1.0, 1.0), 20), Bettor(0.1, Expected(1.0, -1.0, 1.0))
        for step in zip(*seen, strict=True):
            bettors[0].observe(*step, claim, 1.0)
            for score, world in zip(*step, strict=True):
                bettors[1].observe(score, world, claim, 1.0)
        together += bettors[0].refuted_at is not None
        one_by_one += bettors[1].refuted_at is not None
    assert together <= 1
    assert one_by_one >= 3


def test_more_observations_of_a_step_show_more():
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2, 1_000)
    scores = rng.normal(size=1_000) + 2 * (bits == 0)
    ten = epsilon_lower_bound(scores, bits, delta=DELTA, rule=Bets(10))
    one = epsilon_lower_bound(scores[::10], bits[::10], delta=DELTA, rule=Bets())
    assert one.mu < 1.2 < 1.5 < ten.mu < 2
    named = xr.Dataset({"score": ("observation", scores), "bit": ("observation", bits)})
    named = named.assign_coords(step=("observation", np.repeat(np.arange(100), 10)))
    assert epsilon_lower_bound(named.score, named.bit, delta=DELTA).epsilon == ten.epsilon
    with pytest.raises(ValueError, match="all observations of each step, one after the other, got steps with 5 to 10"):
        epsilon_lower_bound(named.score[5:], named.bit[5:], delta=DELTA)
    with pytest.raises(ValueError, match="scores must be 10 for each step, got 995: select whole steps"):
        epsilon_lower_bound(scores[5:], bits[5:], delta=DELTA, rule=Bets(10))


@pytest.mark.slow
def test_ranks_break_their_promise_where_bets_keep_it():
    assert refuted(SortedByLuck(0.1), 640, "ranks", 20, 0.05) > 10  # one of 20 is promised
    assert refuted(SortedByLuck(0.1), 640, "bets", 20, 0.05) <= 1


@pytest.mark.parametrize(
    ("mu", "observations", "least"),
    [
        pytest.param(0.5, 5_000, 0.75, marks=pytest.mark.slow),
        (1, 1_000, 0.7),
        pytest.param(1, 5_000, 0.85, marks=pytest.mark.slow),
    ],
)
def test_bets_find_most_of_the_truth(mu, observations, least, gaussian_scores):
    rng = np.random.default_rng(2)
    bounds = [epsilon_lower_bound(*gaussian_scores(rng, observations, mu), delta=DELTA, rule="bets") for _ in range(4)]
    assert np.mean([bound.mu for bound in bounds]) > least * mu


@pytest.mark.slow
def test_bets_find_nearly_all_with_20_000_observations(gaussian_scores):
    rng = np.random.default_rng(2)
    bounds = [epsilon_lower_bound(*gaussian_scores(rng, 20_000, 1), delta=DELTA, rule="bets") for _ in range(6)]
    assert np.mean([bound.mu for bound in bounds]) > 0.92


@pytest.mark.parametrize(("claim", "parameter"), [(GDP(DELTA), 0.8), (ApproximateDP(0.01), 1.0), (SAMPLED, 0.9)])
def test_no_true_claim_lets_wealth_grow_on_average(claim, parameter, gaussian_scores):
    # For pairs on the trade-off function itself, the expectation of every bet is computed, not simulated.
    rng = np.random.default_rng(3)
    slopes, deltas = slopes_and_deltas(claim, parameter)
    for stretch in stretches(*(lambda s, b: (s, b == 0))(*gaussian_scores(rng, 500, 2.0))):
        gross, charge = portfolio(stretch.past, slopes, deltas)
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


def test_bets_know_only_the_past(gaussian_scores):
    scores, bits = gaussian_scores(np.random.default_rng(4), 400, 1.0)
    slopes, deltas = (of[0] for of in slopes_and_deltas(GDP(DELTA), 0.7))

    def path(scores, bits):
        return betting.path(scores, bits == 0, slopes, deltas)

    whole = path(scores, bits)
    assert len(whole) == 400 - FIRST
    for known in (FIRST + 1, 150, 399):
        other, coins = scores.copy(), bits.copy()
        other[known:], coins[known:] = -5 * scores[known:], 1 - bits[known:]
        np.testing.assert_array_equal(path(other, coins)[: known - FIRST], whole[: known - FIRST])
        assert (path(other, coins)[known - FIRST :] != whole[known - FIRST :]).any()


def test_one_may_stop_when_the_bound_is_reached(bounded, gaussian_scores):
    scores, bits = gaussian_scores(np.random.default_rng(5), 800, 1.0)
    bound = bounded(scores, bits, rule="bets")
    assert (bound.details["observations"], bound.valid, bound.details.get("threshold")) == (800, True, None)
    reached = bound.details["reached"]
    assert FIRST < reached < 800
    stopped = bounded(scores[:reached], bits[:reached], rule="bets")
    assert stopped.epsilon == bound.epsilon
    assert bounded(scores[: reached - 1], bits[: reached - 1], rule="bets").epsilon < bound.epsilon


def test_bounds_never_fall_as_observations_come_in(bounded, gaussian_scores):
    scores, bits = gaussian_scores(np.random.default_rng(6), 600, 1.5)
    found = [bounded(scores[:seen], bits[:seen], rule="bets").mu for seen in range(100, 601, 100)]
    assert found == sorted(found)
    assert found[-1] > found[0]


def test_order_matters(bounded, gaussian_scores):
    scores, bits = gaussian_scores(np.random.default_rng(8), 800, 1.0)
    assert bounded(scores, bits, rule="bets").mu != bounded(scores[::-1], bits[::-1], rule="bets").mu


def test_what_bets_cannot_use_is_named(bounded):
    bits = np.arange(FIRST) // 2 % 2
    few = bounded(1.0 - bits, bits, rule="bets")
    assert (few.epsilon, "reached" in few.details) == (0, False)
    assert few.note == "bets need more than 64 observations, which they learn from, got 64"
    bits = np.arange(1_000) % 5 == 0
    with pytest.raises(ValueError, match="bits must be those of a fair coin for rule 'bets', got 800 of 1,000"):
        bounded(1.0 - bits, bits, rule="bets")
    bits = np.arange(1_000) >= 500
    with pytest.raises(ValueError, match="bits must be tossed anew .* for rule 'bets', got 1 changes in 1,000"):
        bounded(1.0 - bits, bits, rule="bets")
    with pytest.raises(ValueError, match="rule 'bets' needs an exact claim, got 'katz'"):
        bounded([0.1, 0.2], [0, 1], "katz", "bets")


def test_full_batch_claims_about_noise_are_those_of_gdp(bounded, gaussian_scores):
    scores, bits = gaussian_scores(np.random.default_rng(9), 600, 1.0)
    full = {"sample_rate": 1.0, "steps": 1, "adjacency": "substitute"}
    pld = epsilon_lower_bound(scores, bits, delta=DELTA, claim="pld", rule="bets", **full)
    assert pld.noise_multiplier == pytest.approx(2 / bounded(scores, bits, rule="bets").mu)
    assert bounded(scores[:, None], bits, rule="bets")[0].epsilon == pytest.approx(pld.epsilon)
