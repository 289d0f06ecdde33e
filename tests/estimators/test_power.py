from functools import cache

import numpy as np
import pytest
from cases import slow_but
from scipy.stats import binom, norm

from dpsub import audit_worst_case
from dpsub.accounting import gdp_mu, noise_multiplier, tradeoff
from dpsub.estimators import (
    epsilon_lower_bound,
    max_certifiable_epsilon,
    one_run_epsilon_lower_bound,
    one_run_guesses,
    pairs_needed,
    runs_needed,
)
from dpsub.estimators import power as planning
from dpsub.estimators.claims import GDP, ApproximateDP
from dpsub.estimators.lower_bounds import OF_GUESSES
from dpsub.estimators.power import power_of, power_of_guesses

DELTA = 1e-5
needed = cache(runs_needed)
FIXED_SIZE = {
    "claim": "pld", "sample_rate": 0.25, "steps": 20, "adjacency": "substitute", "sampling": "without_replacement"
}  # fmt: skip


# Small numbers of runs, where the coins' chance matters, too. Each count is within its limits with probability 0.999.
@pytest.mark.parametrize(
    ("epsilon", "truth", "power", "claim", "audits"),
    [
        (8, 10, 0.8, "gdp", 40),
        pytest.param(8, 10, 0.8, "gdp", 400, marks=pytest.mark.slow),
        pytest.param(1, 2, 0.5, "gdp", 400, marks=pytest.mark.slow),
        pytest.param(8, 14, 0.9, "gdp", 400, marks=pytest.mark.slow),
        pytest.param(8, 9, 0.8, "gdp", 1_000, marks=pytest.mark.slow),
        pytest.param(2, 8, 0.8, "dp", 300, marks=pytest.mark.slow),
    ],
)
def test_audits_reach_epsilon_as_often_as_was_asked(gaussian_scores, epsilon, truth, power, claim, audits):
    runs, mu = needed(epsilon, delta=DELTA, truth=truth, power=power, claim=claim), gdp_mu(truth, DELTA)

    def reached(runs, seed):
        bounds = (
            epsilon_lower_bound(*gaussian_scores(seed * audits + i, runs, mu), delta=DELTA, claim=claim)
            for i in range(audits)
        )
        return sum(bound.epsilon >= epsilon for bound in bounds)

    enough, fewer = reached(runs, 1), reached(round(0.7 * runs), 2)
    assert enough >= binom.ppf(0.001, audits, power - 0.01)
    assert fewer <= binom.ppf(0.999, audits, power + 0.01)
    assert fewer < enough


def test_a_ceiling_is_far_below_what_an_attack_with_errors_needs():
    assert max_certifiable_epsilon(30, delta=DELTA) > 8
    assert needed(8, delta=DELTA, truth=10, power=0.8, claim="gdp") > 4 * 30
    assert max_certifiable_epsilon(needed(8, delta=DELTA, truth=1_000), delta=DELTA) >= 8


@pytest.mark.slow
def test_at_full_batch_the_mechanisms_claims_are_those_of_gdp():
    usual, mechanism = {"delta": DELTA, "truth": 10, "power": 0.8}, {"sample_rate": 1, "adjacency": "substitute"}
    assert runs_needed(8, **usual, claim="pld", steps=5, **mechanism) == needed(8, **usual, claim="gdp")


@pytest.mark.slow
def test_audits_of_the_mechanism_reach_epsilon_as_often_as_was_asked():
    """Of one step, whose sum is a sufficient score, and far from Gaussian."""
    law, audits = {"sample_rate": 0.1, "steps": 1, "adjacency": "substitute"}, 100
    runs = runs_needed(3, delta=DELTA, truth=5, power=0.8, claim="pld", **law)
    sigma = noise_multiplier(target_epsilon=5, delta=DELTA, **law)

    def reached(runs, seed):
        made = (audit_worst_case(noise_multiplier=sigma, **law, runs=runs, seed=seed + i) for i in range(audits))
        options = {"delta": DELTA, "claim": "pld", **law}
        return sum(epsilon_lower_bound(one.score[:, -1], one.bit, **options).epsilon >= 3 - 1e-3 for one in made)

    assert reached(runs, 0) >= binom.ppf(0.001, audits, 0.79)
    assert reached(round(0.7 * runs), audits) <= binom.ppf(0.999, audits, 0.81)


# A bound states what noise attains, and with batches of fixed size the certified ε is larger.
@pytest.mark.slow
@pytest.mark.parametrize(("epsilon", "truth", "q", "steps"), [(5, 6, 0.1, 100), (7.5, 8.42, 0.25, 20)])
def test_audits_of_batches_of_fixed_size_reach_epsilon_as_often_as_was_asked(epsilon, truth, q, steps):
    law = {"sample_rate": q, "steps": steps, "adjacency": "substitute", "sampling": "without_replacement"}
    runs, audits = runs_needed(epsilon, delta=DELTA, truth=truth, claim="pld", **law), 100
    sigma = noise_multiplier(target_epsilon=truth, delta=DELTA, **law)
    fpr = norm.cdf(np.linspace(-8, 8, 4001))
    fnr, rng = tradeoff(fpr, noise_multiplier=sigma, **law), np.random.default_rng(0)

    def reached():
        bits, rates = rng.integers(0, 2, runs), rng.random(runs)
        scores = -np.where(bits == 0, np.interp(rates, fpr, fnr), rates)  # f is its own inverse
        return epsilon_lower_bound(scores, bits, delta=DELTA, claim="pld", **law).epsilon >= epsilon - 1e-3

    assert abs(sum(reached() for _ in range(audits)) - 80) <= 80 - binom.ppf(0.001, audits, 0.785)


# Where one count more or less decides, a few splits of the coins are not like all of them. Found in 60,000 simulated
# audits, each with coins of its own: a standard error of at most 0.002.
OF_ALL_SPLITS = [(4, 12, 2_649, 0.6254), (3, 9, 2_542, 0.9165), (3, 8, 4_691, 0.9125)]


@pytest.mark.parametrize(("epsilon", "truth", "runs", "found"), slow_but(OF_ALL_SPLITS, *OF_ALL_SPLITS[:2]))
def test_the_power_is_that_of_all_splits_of_the_coins(epsilon, truth, runs, found):
    planned = power_of(runs, ApproximateDP(DELTA), epsilon, GDP(DELTA), gdp_mu(truth, DELTA), alpha=0.2)
    assert planned == pytest.approx(found, abs=0.015)


@pytest.mark.slow
def test_more_confidence_power_and_fewer_assumptions_cost_runs():
    usual = runs_needed(4, delta=DELTA, truth=6)
    assert isinstance(usual, int)
    assert usual < runs_needed(4, delta=DELTA, truth=6, power=0.95)
    assert usual < runs_needed(4, delta=DELTA, truth=6, alpha=0.01)
    assert 2 * usual < runs_needed(4, delta=DELTA, truth=6, claim="dp")
    assert usual == runs_needed(4, delta=DELTA, truth=6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"truth": 8}, "truth must be > epsilon = 8, got 8: no valid bound reaches the truth"),
        (
            {"epsilon": 8.2, "truth": 8.42, **FIXED_SIZE},
            "epsilon must be < 8.078 for truth = 8.42, got 8.2: .* noise_multiplier = 2 attains no more",
        ),
    ],
)
def test_what_cannot_be_planned_is_named(options, message):
    with pytest.raises(ValueError, match=message):
        runs_needed(**{"epsilon": 8, "delta": DELTA, "truth": 10, **options})


# The planned power against audits whose scores are drawn and guessed, each within 4 standard errors.
@pytest.mark.parametrize(
    ("epsilon", "truth", "power", "claim", "audits"),
    [
        (3, 10, 0.8, "gdp", 1_000),
        (2, 10, 0.8, "dp", 1_000),
        (1, 2, 0.8, "product", 200),
        pytest.param(5, 10, 0.8, "gdp", 2_000, marks=pytest.mark.slow),
        pytest.param(2, 4.38, 0.9, "gdp", 2_000, marks=pytest.mark.slow),
        pytest.param(4, 20, 0.8, "dp", 1_000, marks=pytest.mark.slow),
        pytest.param(8, 10, 0.8, "product", 2_000, marks=pytest.mark.slow),
        pytest.param(3, 4.38, 0.8, "gdp", 20, marks=pytest.mark.slow),
    ],
)
def test_audits_of_many_pairs_reach_epsilon_as_often_as_was_planned(epsilon, truth, power, claim, audits):
    pairs, mu = pairs_needed(epsilon, delta=DELTA, truth=truth, power=power, claim=claim), gdp_mu(truth, DELTA)
    tested, rng = OF_GUESSES[claim](DELTA), np.random.default_rng(9)
    made = tested.guesses(pairs)

    @cache
    def bound(correct):
        return one_run_epsilon_lower_bound(correct, made, pairs, delta=DELTA, claim=claim).epsilon

    def reached():
        bits = rng.integers(0, 2, pairs)
        guessed = one_run_guesses(rng.normal(size=pairs) + mu * (0.5 - bits), bits, guesses=made)
        return bound(guessed.correct) >= epsilon

    parameter = epsilon if claim == "dp" else gdp_mu(epsilon, DELTA)
    planned = power_of_guesses(pairs, tested, parameter, mu, alpha=0.05)
    assert power <= planned
    assert sum(reached() for _ in range(audits)) / audits == pytest.approx(
        planned, abs=4 * np.sqrt(power * (1 - power) / audits)
    )
    assert power_of_guesses(round(0.7 * pairs), tested, parameter, mu, alpha=0.05) < power


def test_the_power_of_perfect_guesses_is_decided_by_the_ceiling():
    for claim in ("gdp", "dp", "product"):
        pairs = pairs_needed(1.5, delta=DELTA, truth=500, claim=claim)

        def ceiling(pairs, claim=claim):
            made = OF_GUESSES[claim](DELTA).guesses(pairs)
            return one_run_epsilon_lower_bound(made, made, pairs, delta=DELTA, claim=claim).epsilon

        assert ceiling(pairs - 1) < 1.5 <= ceiling(pairs)


def test_what_no_number_of_pairs_reaches_is_named(monkeypatch):
    monkeypatch.setattr(planning, "MOST_PAIRS", 20_000)
    with pytest.raises(ValueError, match="by claim 'dp' no number of pairs up to 20000 is enough; runs_needed tells"):
        pairs_needed(5, delta=DELTA, truth=10, claim="dp")
    with pytest.raises(ValueError, match="truth must be > epsilon = 5, got 4"):
        pairs_needed(5, delta=DELTA, truth=4)
