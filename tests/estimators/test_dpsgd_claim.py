import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from dpsub import accounting
from dpsub.accounting import Poisson, Sampling, epsilon_interval
from dpsub.estimators import epsilon_lower_bound
from dpsub.estimators.dpsgd_claim import PER_OCTAVE, MechanismDP

DELTA = 1e-5


# The independent implementation has a mesh of its own, good to 0.002.
@pytest.mark.parametrize(
    ("adjacency", "expected"),
    [("substitute", 5.36475795), pytest.param("add_remove", 5.88654886, marks=pytest.mark.slow)],
)
def test_the_mechanisms_own_curve_at_known_points(worlds, adjacency, expected):
    mechanism = {"sample_rate": 0.0625, "steps": 500, "adjacency": adjacency}
    scores, bits = worlds(3_000, 25_000, 12_000, 25_000)
    bound = epsilon_lower_bound(scores, bits, delta=DELTA, claim="pld", rule=0.5, **mechanism)
    assert bound.epsilon == pytest.approx(expected, abs=2e-3)
    assert (bound.assumes, bound.valid, bound.mu) == ("mechanism", True, None)
    exact = accounting.epsilon(noise_multiplier=bound.noise_multiplier, delta=DELTA, **mechanism)
    assert bound.epsilon <= exact <= bound.epsilon + 5e-3
    fnr = accounting.tradeoff(bound.details["fpr_upper"], noise_multiplier=bound.noise_multiplier, **mechanism)
    assert fnr == pytest.approx(bound.details["fnr_upper"], abs=5e-5)


@pytest.mark.parametrize("rule", ["ranks", "best", 0.5])
def test_at_full_batch_the_mechanisms_curve_is_the_gaussian_one(bounded, gaussian_scores, rule):
    scores, bits = gaussian_scores(20, 2_000, 1.0)
    mechanism = {"sample_rate": 1, "steps": 40, "adjacency": "substitute"}
    gaussian = bounded(scores, bits, "gdp", rule)
    own = epsilon_lower_bound(scores, bits, delta=DELTA, claim="pld", rule=rule, **mechanism)
    assert own.epsilon == pytest.approx(gaussian.epsilon, abs=1e-6)
    assert own.details == gaussian.details
    assert own.noise_multiplier == pytest.approx(2 * math.sqrt(40) / gaussian.mu)


def test_errors_that_no_noise_of_the_mechanism_explains_are_doubted(worlds):
    mechanism = {"sample_rate": 0.9, "steps": 1, "adjacency": "substitute"}
    bound = epsilon_lower_bound(*worlds(0, 2_000, 0, 2_000), delta=DELTA, claim="pld", rule=0.5, **mechanism)
    assert bound.note.startswith("refuted at every noise_multiplier down to 0.2: check sample_rate")
    assert bound.epsilon == pytest.approx(accounting.epsilon(noise_multiplier=0.2, delta=DELTA, **mechanism), rel=1e-3)


def test_noise_beyond_all_accounting_is_no_leak(gaussian_scores):
    scores, bits = gaussian_scores(17, 100_000, 0.02)
    mechanism = {"delta": DELTA, "claim": "pld", "steps": 10**9, "adjacency": "substitute"}
    full = epsilon_lower_bound(scores, bits, sample_rate=1.0, **mechanism)
    assert full.epsilon == pytest.approx(epsilon_lower_bound(scores, bits, delta=DELTA).epsilon, abs=1e-9)
    assert MechanismDP(DELTA, 0.5, 10**6, "substitute").epsilon(1e-3) == 0


# The exact curve of one step, from the Neyman–Pearson lemma.
@pytest.mark.parametrize(("q", "parameter"), [(0.9, 8.7), (0.9, 2.0), (0.999, 2 ** (594.5 / 256)), (0.3, 6.0)])
def test_interpolated_curves_stay_below_the_exact_one(q, parameter):
    claim = MechanismDP(DELTA, q, 1, "substitute")
    sigma = claim.noise_multiplier(parameter)
    x = np.linspace(-8 * sigma - 1, 8 * sigma + 1, 20_001)
    above = [(1 - q) * norm.sf(x / sigma) + q * norm.sf((x - mean) / sigma) for mean in (-1, 1)]
    fpr, fnr = (part[(above[0] > 1e-12) & (above[0] < 1 - 1e-12)] for part in (above[0], 1 - above[1]))
    slack = fnr - claim.tradeoff(fpr, parameter)
    assert slack.min() > -1e-9
    assert slack.max() < 6e-5


# At full batch these are Gaussian; elsewhere the curves between the stored ones are themselves only bounded.
@pytest.mark.parametrize(("q", "steps", "sigma"), [(0.0625, 500, 0.4), (0.5, 20, 0.4), (0.25, 500, 1.7)])
@pytest.mark.parametrize("adjacency", ["substitute", "add_remove"])
def test_half_way_between_its_curves_a_claim_adds_nothing_to_the_accountants(q, steps, sigma, adjacency):
    claim = MechanismDP(DELTA, q, steps, adjacency)
    place = round(PER_OCTAVE * math.log2(claim.noise_multiplier(1.0) / sigma)) + 0.5
    parameter = 2 ** (place / PER_OCTAVE)
    fpr = norm.cdf(np.linspace(-6, 6, 801) + 0.0013)
    mechanism = {"noise_multiplier": claim.noise_multiplier(parameter), "sample_rate": q, "steps": steps}
    own, exact = claim.tradeoff(fpr, parameter), accounting.tradeoff(fpr, **mechanism, adjacency=adjacency)
    assert (own <= exact).all()
    assert own == pytest.approx(exact, abs=1e-4)


LAWS = (
    *((adjacency, "poisson") for adjacency in ("substitute", "add_remove", "zero_out")),
    *((adjacency, "epochs") for adjacency in ("substitute", "zero_out")),
    ("substitute", "without_replacement"),
)


# Few steps with little noise: f bends sharply where it is decided how many of the batches held the record.
@pytest.mark.parametrize(
    ("law", "q", "steps", "sigma"),
    [
        (("substitute", "without_replacement"), 0.40003, 1, 0.2394),
        (("add_remove", "poisson"), 0.5, 1, 0.2114),
        # f changes fast with the noise
        pytest.param(("substitute", "without_replacement"), 0.00324, 74_543, 0.92515, marks=pytest.mark.slow),
    ],
)
def test_no_claim_is_above_the_certified_curve(law, q, steps, sigma):
    q = 1 / round(1 / q) if law[1] == "epochs" else q
    mechanism = {"sample_rate": q, "steps": steps, "adjacency": law[0], "sampling": law[1]}
    [claim] = MechanismDP.of_columns(DELTA, mechanism, 1)
    parameter = claim.noise_multiplier(sigma)  # its own inverse
    near_bends = np.outer([1 - q, (1 - q) ** 2, q, q**2], np.linspace(0.997, 1.003, 61)).ravel()
    fpr = np.concatenate((norm.cdf(np.linspace(-8, 8, 801)), near_bends[near_bends < 1]))
    certified = accounting.tradeoff(fpr, noise_multiplier=sigma, **mechanism)
    assert (claim.tradeoff(fpr, parameter) <= certified + 1e-12).all()


@pytest.mark.slow
@given(st.sampled_from(LAWS), st.floats(0.001, 0.999), st.integers(1, 2), st.floats(0.2, 0.6))
@settings(max_examples=12, deadline=None, derandomize=True)
def test_no_claim_is_above_the_certified_curve_anywhere(law, q, steps, sigma):
    test_no_claim_is_above_the_certified_curve(law, q, steps, sigma)


SCORES, BITS = [0.1, 0.4, 0.2, 0.3], [0, 1, 0, 1]
SAMPLED = {"claim": "pld", "sample_rate": 0.0625, "steps": 500, "adjacency": "substitute"}


def test_pld_takes_the_steps_at_which_the_scores_were_observed():
    rng = np.random.default_rng(16)
    bits = rng.integers(0, 2, 600)
    scores = rng.normal(size=(600, 2)) + np.outer(bits == 0, [1.0, 1.5])
    mechanism = {"delta": 1e-5, "claim": "pld", "sample_rate": 0.5, "adjacency": "substitute"}
    both = epsilon_lower_bound(scores, bits, steps=[10, 20], **mechanism)
    assert both == [epsilon_lower_bound(scores[:, i], bits, steps=10 * (i + 1), **mechanism) for i in range(2)]
    assert both[0] != epsilon_lower_bound(scores[:, 0], bits, steps=20, **mechanism)


def test_pld_takes_the_phases_of_a_sampling_once_and_all_of_them(monkeypatch):
    monkeypatch.setattr(Sampling, "BY_NAME", dict(Sampling.BY_NAME))

    class Warmed(Poisson):
        """Half of the steps sample records half as often."""

        name = "warmed"

        def phases(self, history):
            return [part for s, q, t in history for part in ((s, q / 2, t // 2), (s, q, t - t // 2))]

    rng = np.random.default_rng(17)
    bits = rng.integers(0, 2, 600)
    scores = rng.normal(size=600) + 1.5 * (bits == 0)
    about = {"sample_rate": 0.5, "adjacency": "substitute", "steps": 10, "sampling": Warmed()}
    found = epsilon_lower_bound(scores, bits, delta=1e-5, claim="pld", **about)
    least = epsilon_interval(noise_multiplier=found.noise_multiplier, delta=1e-5, **about).lower
    assert found.epsilon == pytest.approx(least, rel=1e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sample_rate": 0.1}, "sample_rate.* for claims 'pld'.*, got claim 'gdp'"),
        ({"claim": "pld", "steps": 3}, "'pld' needs .* got them without adjacency, sample_rate"),
        ({**SAMPLED, "steps": [1, 2]}, "one entry a column of scores, 1, got 2"),
    ],
)
def test_what_pld_is_told_is_checked(options, message):
    with pytest.raises(ValueError, match=message):
        epsilon_lower_bound(SCORES, BITS, delta=1e-5, **options)
