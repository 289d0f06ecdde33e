import numpy as np
import pytest
import xarray as xr
from cases import slow_but
from scipy.stats import binom, norm

from dpsub.accounting import gdp_epsilon, gdp_mu
from dpsub.estimators import wealth_of_bets
from dpsub.estimators.betting import FIRST, SLOPES, STEEPEST, log_wealth, portfolio, stretches
from dpsub.estimators.claims import GDP
from dpsub.estimators.dpsgd_claim import MechanismDP
from dpsub.estimators.wealth import SHARES, Bettor, Expected, fewest
from studies.estimators.known_truths import Drifting, Gaussian, strongest_scores

CLAIM = GDP(1e-5)
SUBSTITUTED, ADDED = Expected(1.0, -1.0, 1.0), Expected(1.0, 0.0, 1.0)


def observed(rng, observations, mu, expected=SUBSTITUTED):
    """Scores as of a canary at full rate whose noise gives this μ."""
    in_z = rng.random(observations) < 0.5
    spread = (expected.z - expected.z_prime) / mu
    return np.where(in_z, expected.z, expected.z_prime) + spread * rng.normal(size=observations), in_z


def followed(scores, in_z, parameter, alpha=0.05, expected=SUBSTITUTED, claim=CLAIM):
    bettor = Bettor(alpha, expected)
    for score, world in zip(scores.tolist(), in_z.tolist(), strict=True):
        bettor.observe(score, world, claim, parameter)
    return bettor


def test_who_counts_has_the_wealth_of_bets_on_all_claims():
    scores, in_z = observed(np.random.default_rng(0), 700, 1.0)
    slopes = np.linspace(0.0, GDP(STEEPEST).epsilon(0.7), SLOPES)[None]
    deltas, wealth = CLAIM.deltas(slopes[0], 0.7)[None], np.zeros(1)
    for stretch in stretches(scores, in_z):
        wealth = log_wealth(stretch, portfolio(stretch.past, slopes, deltas), deltas, wealth)[:, -1]
    bettor = followed(scores, in_z, 0.7)
    assert bettor._wealths[0] == pytest.approx(wealth[0])
    assert np.exp(bettor.log_wealth) == pytest.approx(SHARES @ np.exp(bettor._wealths))


@pytest.mark.parametrize("claim", [CLAIM, MechanismDP(1e-5, 0.3, 1, "substitute")])
def test_no_true_claim_lets_wealth_grow_on_average(claim):
    # For the Gaussian pair that the claim allows at most, the expectation of each bettor's growth is computed.
    parameter, expected = 1.2, Expected(1.0, -1.0, getattr(claim, "sample_rate", 1.0))
    scores, in_z = observed(np.random.default_rng(1), FIRST + 40, 2.5)
    bettor = followed(scores, in_z, parameter, expected=expected, claim=claim)
    for learnt, growth in bettor._bets:
        assert growth.min() > 0
        for place in np.linspace(-1, 1, 9):
            sides = place + np.array([1, -1]) * parameter / 2
            below = [
                expected.rate * norm.cdf(learnt.cuts - side) + (1 - expected.rate) * norm.cdf(learnt.cuts - place)
                for side in sides
            ]
            law = np.zeros_like(growth)
            law[:, 0 : 2 * len(learnt.cuts) + 1 : 2] = np.diff(below, axis=1, prepend=0.0, append=1.0)
            for each in (law, law[::-1]):
                assert (each * growth).sum() / 2 <= 1 + 1e-9


def test_true_claims_are_ever_refuted_in_at_most_alpha_of_audits():
    rng, audits, alpha = np.random.default_rng(2), 25, 0.25
    refuted = sum(
        followed(*observed(rng, 200, 2.0, ADDED), 2.0, alpha, ADDED).refuted_at is not None for _ in range(audits)
    )
    assert refuted <= binom.ppf(0.999, audits, alpha)


@pytest.mark.slow
@pytest.mark.parametrize("mu", [0.3, 2.0])
def test_true_claims_are_ever_refuted_in_at_most_alpha_of_many_audits(mu):
    rng, audits, alpha = np.random.default_rng(3), 1_000, 0.05
    refuted = sum(followed(*observed(rng, 600, mu), mu, alpha).refuted_at is not None for _ in range(audits))
    assert refuted <= binom.ppf(0.999, audits, alpha)


def test_half_the_noise_is_found_before_the_past_is_learnt_from():
    rng = np.random.default_rng(4)
    found = [followed(*observed(rng, 100, 4.0), 2.0).refuted_at or 100 for _ in range(16)]
    assert np.median(found) < FIRST


@pytest.mark.slow
def test_a_step_of_1_57_for_1_27_is_found_within_10_000_observations():
    # The optimal test, which knows both, would need about 5,000 on average.
    rng, claimed, true = np.random.default_rng(5), *(gdp_mu(epsilon, 1e-5) for epsilon in (1.27, 1.57))
    found = [followed(*observed(rng, 10_000, true, ADDED), claimed, expected=ADDED).refuted_at for _ in range(40)]
    assert sum(one is not None for one in found) >= 24


def test_a_claim_that_changes_is_judged_by_what_it_was_at_each_step():
    rng = np.random.default_rng(6)
    bettor, wrong = Bettor(0.05, SUBSTITUTED), Bettor(0.05, SUBSTITUTED)
    for t in range(400):
        mu = 1.0 if t % 100 < 50 else 3.0
        [score], [in_z] = observed(rng, 1, mu)
        bettor.observe(score, in_z, CLAIM, mu)
        wrong.observe(score, in_z, CLAIM, 1.0)
    assert bettor.refuted_at is None
    assert wrong.refuted_at is not None


def test_bets_know_only_the_past():
    scores, in_z = observed(np.random.default_rng(7), 150, 3.0)
    whole = followed(scores, in_z, 2.0)
    for known in (30, FIRST, 120):
        part = followed(scores[:known], in_z[:known], 2.0)
        again = followed(np.append(scores[:known], 7.0), np.append(in_z[:known], True), 2.0)
        part.observe(7.0, True, CLAIM, 2.0)
        assert part.log_wealth == again.log_wealth
    assert len(whole) == 150


def test_a_perfect_attack_takes_more_steps_for_a_larger_claim():
    needed = [fewest(CLAIM, mu, 0.05, SUBSTITUTED) for mu in (1.0, 2.0)]
    assert needed == sorted(needed)
    assert fewest(CLAIM, 12.0, 0.05, SUBSTITUTED) is None
    assert fewest(CLAIM, 1.0, 0.001, SUBSTITUTED) > needed[0]


def test_equal_scores_and_extreme_claims_are_no_trouble():
    in_z = np.arange(100) % 2 == 0
    for mu in (1e-3, 1.0, 1e3, 1e8):
        assert followed(np.zeros(100), in_z, mu).refuted_at is None
    assert np.isfinite(followed(1e6 * np.where(in_z, 1.0, -1.0), in_z, 1e3).log_wealth)


DELTA = 1e-5


def of_truth(truth, count, seed):
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 2, count)
    return strongest_scores(truth, bits, rng), bits


@pytest.mark.parametrize("truth", [Gaussian(1.0), Drifting(1.0)], ids=lambda one: type(one).__name__)
def test_wealth_against_a_true_claim_does_not_grow_on_average_and_against_a_false_one_it_does(truth):
    def wealths(epsilon, seeds):
        return np.exp([wealth_of_bets(*of_truth(truth, 600, i), epsilon=epsilon, delta=DELTA) for i in range(seeds)])

    true = wealths(gdp_epsilon(1.0, DELTA), 12)
    assert true.shape == (12, 600)
    assert (true[:, :FIRST] == 1).all()
    last = true[:, -1]
    assert last.mean() <= 1 + 4 * last.std() / np.sqrt(len(last))
    assert (true.max(axis=1) >= 20).mean() <= 0.2
    if truth == Gaussian(1.0):  # the places of the others hide the difference from thresholds
        assert (wealths(2.0, 5).max(axis=1) >= 20).mean() > 0.8


def test_a_claim_is_refuted_when_its_bound_is_reached(bounded):
    scores, bits = of_truth(Gaussian(1.0), 800, 5)
    bound = bounded(scores, bits, rule="bets")
    below, above = (
        wealth_of_bets(scores, bits, epsilon=share * bound.epsilon, delta=DELTA).max() >= np.log(20)
        for share in (0.8, 1.25)
    )
    assert (below, above) == (True, False)


def test_claims_of_epsilon_delta_are_harder_to_refute():
    seen = of_truth(Gaussian(1.0), 800, 5)
    assert not wealth_of_bets(*(one[:40] for one in seen), epsilon=1.0, delta=DELTA).any()  # all is learnt from
    gdp, dp = (wealth_of_bets(*seen, epsilon=2.0, delta=DELTA, claim=claim)[-1] for claim in ("gdp", "dp"))
    assert gdp > dp


def test_bets_are_on_one_column():
    with pytest.raises(ValueError, match=r"scores must have shape \(observations,\), got \(2, 2\): give one column"):
        wealth_of_bets(np.zeros((2, 2)), [0, 1], epsilon=1.0, delta=DELTA)


def of_lucky_steps(count, canaries, seed):
    """Every tenth step or so tells all its coins, the others tell nothing: (ε, 0.1)-DP for each record, whatever ε."""
    rng = np.random.default_rng(seed)
    bits, told = rng.integers(0, 2, (count, canaries)), rng.random((count, 1)) < 0.1
    steps = np.repeat(np.arange(count), canaries)
    scores = xr.DataArray((told * (1 - 2 * bits)).ravel(), {"step": ("observation", steps)}, "observation")
    return scores, bits.ravel()


@pytest.mark.parametrize("audits", slow_but([8, 20], 8))
def test_canaries_of_a_step_do_not_refute_a_true_claim_by_the_same_luck(audits):
    asked = {"epsilon": 0.1, "delta": 0.1, "claim": "dp"}
    seen = [of_lucky_steps(100, 20, seed) for seed in range(audits)]
    wealths = np.array([wealth_of_bets(*each, **asked) for each in seen])
    assert wealths.shape == (audits, 2_000)
    assert (wealths.max(axis=1) >= np.log(20)).sum() <= binom.ppf(0.999, audits, 0.05)
    assert (np.ptp(wealths.reshape(audits, 100, 20), axis=2) == 0).all()
    in_a_row = [wealth_of_bets(scores.values, bits, **asked).max() for scores, bits in seen]
    assert np.mean(np.array(in_a_row) >= np.log(20)) > 0.25


def test_bets_on_a_claim_refuse_what_bounds_by_bets_refuse():
    scores, bits = of_truth(Gaussian(1.0), 400, 6)
    named, asked = xr.DataArray(scores, dims="observation"), {"epsilon": 1.0, "delta": DELTA}
    marked = {name: named.assign_coords({name: ("observation", np.ones(400))}) for name in ("same_world", "in_sample")}
    for given, coins, message in (
        (marked["same_world"], bits, "scores must be of worlds tossed anew at each step"),
        (marked["in_sample"], bits, "scores must be of observations that allow a valid bound, .* learned from"),
        (named.rename(observation="pair"), bits, "scores must be one for each model, got scores of many pairs"),
        (scores, np.sort(bits), "bits must be tossed anew for each observation"),
        (scores, np.arange(400) % 8 == 0, "bits must be those of a fair coin"),
    ):
        with pytest.raises(ValueError, match=message):
            wealth_of_bets(given, coins, **asked)
