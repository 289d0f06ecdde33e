import json
from dataclasses import replace

import numpy as np
import pytest
from cases import slow_but
from scipy.stats import binom, kstest

from dpsub.accounting import gdp_mu
from dpsub.estimators import CLAIMS
from studies.estimators import validity
from studies.estimators.known_truths import (
    Drifting,
    Gaussian,
    RandomizedResponse,
    SampledGaussian,
    SortedByLuck,
    strongest_scores,
)
from studies.estimators.validity import Cell
from studies.kept import read_json

TRUTHS = [Gaussian(1.0), SampledGaussian(1.0, 0.9, 1), SampledGaussian(3.0, 0.0625, 500), RandomizedResponse(1.0)]


@pytest.mark.parametrize("truth", TRUTHS, ids=lambda truth: type(truth).__name__)
def test_the_scores_are_those_of_the_strongest_attack(truth):
    rng = np.random.default_rng(1)
    bits = rng.integers(0, 2, 200_000)
    scores = strongest_scores(truth, bits, rng)
    positives, negatives = scores[bits == 0], scores[bits == 1]
    assert kstest(negatives, "norm").pvalue > 1e-3
    for fpr in (0.001, 0.01, 0.1, 0.5, 0.9):
        cut = np.quantile(negatives, 1 - fpr)
        assert (positives <= cut).mean() == pytest.approx(float(truth.tradeoff(np.array(fpr))), abs=0.01)


def drifting_one_by_one(mu, bits, noise):
    scores, place = np.empty(len(bits)), 0.0
    for t in range(len(bits)):
        spread = 1 + (place > 0)
        scores[t] = place + spread * (noise[t] + mu * (bits[t] == 0))
        place = 0.9 * scores[t] + (bits[t] == 0)
    return scores


def sorted_one_by_one(mu, bits, noise, together):
    place, step = 0.0, 10 * 2.0 ** (1 + (len(bits) - 1) // together)
    scores = np.empty(len(bits))
    for start in range(0, len(bits), together):
        coins = bits[start : start + together]
        scores[start : start + together] = place + noise[start : start + together] + mu * (coins == 0)
        place -= step * np.sign(0.5 - coins.mean())
        step /= 2
    return scores


@pytest.mark.parametrize("count", [1, 16, 40, 160])
def test_what_depends_on_the_past_is_made_one_by_one(count):
    bits = np.random.default_rng(2).integers(0, 2, count)
    noise = np.random.default_rng(3).normal(size=count)
    for truth, expected in (
        (Drifting(0.7), drifting_one_by_one(0.7, bits, noise)),
        (SortedByLuck(0.7), sorted_one_by_one(0.7, bits, noise, 16)),
        (SortedByLuck(0.7, together=5), sorted_one_by_one(0.7, bits, noise, 5)),
    ):
        np.testing.assert_allclose(strongest_scores(truth, bits, np.random.default_rng(3)), expected, rtol=1e-12)
        assert truth.epsilon(1e-5) == Gaussian(0.7).epsilon(1e-5)


def test_what_a_truth_is_at_delta():
    assert RandomizedResponse(1.0).epsilon(1e-9) == pytest.approx(1.0)
    fpr = np.array([0.1, 0.3, 0.7])
    np.testing.assert_allclose(RandomizedResponse(1.0).tradeoff(RandomizedResponse(1.0).tradeoff(fpr)), fpr)
    assert SampledGaussian(12.1148681640625, 0.25, 500).epsilon(1e-5) == pytest.approx(3.98683, abs=1e-3)


def test_a_cell_is_measured_and_the_same_again():
    cell = Cell("gdp", "best", 1_000, Gaussian(1.0), audits=40)
    row = validity.measure(cell)
    assert row == validity.measure(cell)
    assert (row["audits"], row["valid"], row["assumes"]) == (40, False, "gdp")
    assert 0.8 < row["mean"] < 1.0
    assert row["mean"] < row["mean_mu"] < 1.0  # ε falls faster than μ
    assert 0.02 < row["spread"] < 0.2
    assert "mean_mu" not in validity.measure(replace(cell, method="dp"))


def test_what_is_stored_of_steps_is_whole_and_keeps_its_promises():
    stored = read_json("estimators/validity_of_steps.json")
    assert stored["made"]["commit"].isalnum(), "made with a commit, not with changes that were in none"
    cells = {json.dumps(validity.key(cell)): cell for cell in validity.cells_of_steps()}
    rows = {json.dumps(row["cell"]): row for row in stored["rows"]}
    assert rows.keys() == cells.keys()
    for name, row in rows.items():
        cell = cells[name]
        dependent = type(cell.truth) is not Gaussian
        if row["valid"] and not (dependent and cell.threshold == "ranks"):
            assert row["wrong"] <= binom.ppf(1 - 1e-3 / len(cells), cell.audits, cell.alpha), name
    shares = {
        (round(row["truth"]), cells[name].method, cells[name].runs): row["mean"]
        for name, row in rows.items()
        if cells[name].threshold == "ranks" and abs(row["truth"] - round(row["truth"])) < 1e-6
    }
    assert min(shares[epsilon, "gdp", 2_000] for epsilon in (4, 8, 16)) >= 0.85
    assert shares[1, "gdp", 20_000] >= 0.8
    for epsilon in (1, 2, 4, 6, 8, 16):
        for runs in validity.OBSERVATIONS[1:]:
            assert shares[epsilon, "dp", runs] < 0.75 * shares[epsilon, "gdp", runs]


@pytest.mark.slow
def test_what_claims_to_be_valid_is_wrong_in_at_most_alpha_of_audits():
    row = validity.measure(Cell("pld", "ranks", 500, SampledGaussian(2.5, 0.5, 10), audits=40, alpha=0.25))
    assert row["valid"]
    assert row["wrong"] <= binom.ppf(0.999, 40, 0.25)
    assert row["mean"] > 0.15


def test_where_the_gaussian_family_misleads_the_others_do_not():
    for truth, most in ((RandomizedResponse(1.0), 5.0), (SampledGaussian(1.0, 0.9, 1), 1.4)):
        cell = Cell("gdp", "ranks", 5_000, truth, audits=12)
        misled = validity.measure(cell)
        assert misled["wrong"] == 12
        assert 1.1 < misled["mean"] < most
        assert validity.measure(replace(cell, method="dp"))["wrong"] == 0
        if isinstance(truth, SampledGaussian):
            told = validity.measure(replace(cell, method="pld"))
            assert told["wrong"] <= binom.ppf(0.999, 12, 0.05)
            assert 0.9 < told["mean"] < 1.0


def promises(cell):
    """Whether a cell's bounds claim to be valid, and assume what holds."""
    assumed = cell.method != "gdp" or isinstance(cell.truth, Gaussian)
    return CLAIMS[cell.method].exact and cell.threshold != "best" and assumed


@pytest.mark.slow
@pytest.mark.parametrize(
    "cell",
    list(filter(promises, validity.cells_of_runs())),
    ids=lambda cell: f"{cell.method}-{cell.threshold}-{cell.runs}",
)
def test_every_cell_that_claims_to_be_valid_keeps_its_promise(cell):
    row = validity.measure(replace(cell, audits=200), seed=1)
    assert row["valid"]
    assert row["wrong"] <= binom.ppf(0.9999, 200, cell.alpha)


@pytest.mark.slow
@pytest.mark.parametrize(("runs", "least"), [(2_500, 0.895), (50_000, 0.97)])
@pytest.mark.parametrize("mu", [1.0, 2.0, 3.0])
def test_the_rank_test_finds_most_of_the_truth(runs, least, mu):
    assert validity.measure(Cell("gdp", "ranks", runs, Gaussian(mu), audits=400), seed=2)["mean"] >= least


STEPS = [(4, 1_000, 0.85), (8, 1_000, 0.85), (16, 1_000, 0.85), (1, 10_000, 0.8)]


@pytest.mark.parametrize(("epsilon", "each", "least"), slow_but(STEPS, STEPS[2], STEPS[3]))
def test_ranks_find_most_of_a_step_with_so_many_observations_of_either_world(epsilon, each, least):
    truth = Gaussian(gdp_mu(epsilon, 1e-5))
    found = {
        method: validity.measure(Cell(method, "ranks", 2 * each, truth, audits=30), seed=3)["mean"]
        for method in ("gdp", "dp")
    }
    assert found["gdp"] >= least
    assert found["dp"] < 0.6 * found["gdp"]
