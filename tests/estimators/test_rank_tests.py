from dataclasses import replace

import numpy as np
import pytest
import xarray as xr
from scipy.integrate import trapezoid
from scipy.stats import beta, betabinom, binom, norm

from dpsub.accounting import gdp_epsilon
from dpsub.estimators import epsilon_lower_bound, max_certifiable_epsilon
from dpsub.estimators.claims import GDP, ApproximateDP
from dpsub.estimators.dpsgd_claim import MechanismDP
from dpsub.estimators.numerics import false_negatives_law
from dpsub.estimators.rank_tests import fixed_ranks, p_value, ranks_of_folds, refuted_by_folds

DELTA = 1e-5
CLAIMS = [GDP(DELTA), ApproximateDP(DELTA)]


def of_one_fold(claim, parameter, *, rank, negatives, positives, **missed):
    return p_value(claim, parameter, ranks=(rank,), negatives=[negatives], positives=[positives], **missed)


def refuted(positives, negatives, ranks, alpha=0.05):
    """The largest μ that one fold refutes at these ranks, and the threshold that decided."""
    found = refuted_by_folds(GDP(DELTA), [(positives, negatives)], {(k,): part for k, part in ranks.items()}, alpha)
    return found.parameter, found.details["threshold"]


def test_rank_p_value_at_a_known_point():
    p = of_one_fold(GDP(DELTA), 1.0, rank=125, negatives=1250, false_negatives=730, positives=1250)
    assert p == pytest.approx(0.12075265, abs=1e-6)


@pytest.mark.parametrize("claim", CLAIMS)
@pytest.mark.parametrize(
    ("n0", "n1", "rank", "false_negatives", "parameter"),
    [
        (1250, 1250, 25, 1020, 0.9),
        (1250, 1250, 284, 501, 0.87),
        (1250, 1250, 3, 1200, 2.0),
        (1, 50_000, 1, 9_000, 0.3),
        (5, 5_000, 2, 2_500, 0.5),
        (5_000, 5, 300, 1, 1.5),
        (30, 2_000, 1, 100, 3.0),
        (100, 100, 2, 0, 2.5),
    ],
)
def test_rank_p_value_is_the_integral_over_the_beta_law(claim, n0, n1, rank, false_negatives, parameter):
    z = np.linspace(-8, 8, 20_001)
    u = beta(rank, n0 - rank + 1).isf(norm.sf(z))
    inside = binom.cdf(false_negatives, n1, np.clip(claim.tradeoff(u, parameter), 0, 1))
    naive = trapezoid(inside * norm.pdf(z), z)
    p = of_one_fold(claim, parameter, rank=rank, negatives=n0, false_negatives=false_negatives, positives=n1)
    assert p == pytest.approx(naive, rel=5e-5, abs=1e-12)


@pytest.mark.parametrize(("n0", "n1"), [(1, 50_000), (3, 5_000), (1250, 1250)])
@pytest.mark.parametrize("alpha", [0.05, 0.01, 1e-4])
def test_rank_test_rejects_a_true_claim_with_a_probability_just_below_its_level(n0, n1, alpha):
    mu = 0.3
    for rank in fixed_ranks(GDP(DELTA), n0):
        # Exactly: the largest FN that is rejected, and how likely so few are under the claim.
        rejected = -1
        low, high = 0, n1
        while low <= high:
            middle = (low + high) // 2
            p = of_one_fold(GDP(DELTA), mu, rank=rank, negatives=n0, false_negatives=middle, positives=n1)
            rejected, low, high = (middle, middle + 1, high) if p <= alpha else (rejected, low, middle - 1)
        z = np.linspace(-8, 8, 20_001)
        u = beta(rank, n0 - rank + 1).isf(norm.sf(z))
        size = trapezoid(binom.cdf(rejected, n1, norm.sf(norm.ppf(u) + mu)) * norm.pdf(z), z)
        assert 0.65 * alpha <= size <= alpha * (1 + 1e-4)  # counts are whole numbers


@pytest.mark.parametrize(("seed", "decisive"), [(3, 0), (6, 1), (12, 2)])
def test_rank_bound_is_the_claim_at_which_the_smallest_p_value_reaches_its_level(gaussian_scores, seed, decisive):
    scores, bits = gaussian_scores(seed, 2_500, 1.0)
    positives, negatives = np.sort(scores[bits == 0]), np.sort(scores[bits == 1])
    ranks = fixed_ranks(GDP(DELTA), len(negatives))
    parameter, threshold = refuted(positives, negatives, ranks)

    def p_at(rank, mu):
        false_negatives = int((positives <= negatives[-rank]).sum())
        return of_one_fold(
            GDP(DELTA), mu, rank=rank, negatives=len(negatives), false_negatives=false_negatives,
            positives=len(positives),
        )  # fmt: skip

    assert min(p_at(rank, parameter - 1e-4) / share for rank, share in ranks.items()) < 0.05
    assert min(p_at(rank, parameter + 1e-4) / share for rank, share in ranks.items()) > 0.05
    of_level = [p_at(rank, parameter) / share for rank, share in ranks.items()]
    assert np.argmin(of_level) == decisive
    assert threshold == negatives[-list(ranks)[decisive]]


@pytest.mark.parametrize("claim", [GDP(DELTA), ApproximateDP(DELTA), MechanismDP(DELTA, 0.5, 10, "substitute")])
def test_ranks_are_distinct_and_share_all_of_alpha(claim):
    for negatives in (8, 9, 50, 1_250, 25_000):
        ranks = fixed_ranks(claim, negatives)
        assert sum(ranks.values()) == pytest.approx(1)
        assert all(share > 0 for share in ranks.values())
        assert all(1 <= rank <= negatives for rank in ranks)
    assert len(ranks) == (8 if claim.assumes == "none" else 4)


# Eight ranks from 2 % to 60 %, equal shares. Its maker's quadrature, of about 65 nodes, is off by 1.7e-4.
def test_eight_ranks_at_a_known_point():
    negatives = norm.ppf((np.arange(1, 1251) - 0.5) / 1250)
    ranks = {round(share * 1250): 1 / 8 for share in np.geomspace(0.02, 0.6, 8)}
    mu, _ = refuted(negatives + 1, negatives, ranks)
    assert gdp_epsilon(mu, DELTA) == pytest.approx(3.71325348, abs=3e-4)
    one, _ = refuted(np.repeat([-1e9, 1e9], [700, 550]), negatives, {125: 1.0})
    assert gdp_epsilon(one, DELTA) == pytest.approx(4.54533011, abs=1e-5)


def scores_of_folds(rng, runs, mu, folds):
    """Scores of folds whose scorers differ in place, scale and strength: only the order within a fold has a meaning."""
    bits, numbers = rng.integers(0, 2, runs), np.sort(np.arange(runs) % folds)
    strength = np.linspace(0.5, 1.0, folds)[numbers]
    scores = rng.normal(size=runs) + mu * strength * (bits == 0)
    return 10.0 ** (numbers - 1) * scores + 100 * (numbers % 2), bits, numbers


def of(scores, bits, rule="folds", claim="gdp", **options):
    return epsilon_lower_bound(scores, bits, delta=DELTA, rule=rule, claim=claim, **options)


def as_array(scores, numbers):
    return xr.DataArray(scores, dims="run", coords={"fold": ("run", numbers)})


@pytest.mark.parametrize("claim", ["gdp", "dp", "pld"])
def test_one_fold_is_the_rank_test(bounded, gaussian_scores, claim):
    scores, bits = gaussian_scores(3, 400, 1.5)
    expected = bounded(scores, bits, claim, "ranks")
    assert expected.epsilon > 0
    assert bounded(scores, bits, claim, "folds", folds=np.full(400, 7)) == replace(expected, rule="folds")


@pytest.mark.parametrize("claim", CLAIMS, ids=["gdp", "dp"])
@pytest.mark.parametrize(
    ("rank", "negatives", "positives"), [(1, 3, 5), (3, 30, 20), (40, 100, 300), (500, 999, 2_000)]
)
@pytest.mark.parametrize("parameter", [0.0, 0.7, 3.0])
def test_the_law_of_one_fold_adds_up_to_its_p_values(claim, rank, negatives, positives, parameter):
    start, law = false_negatives_law(claim, parameter, rank, negatives, positives)
    below = np.cumsum(law)
    assert below[-1] == pytest.approx(1, abs=1e-6)
    for i in range(0, len(law), max(1, len(law) // 20)):
        counts = {"rank": rank, "negatives": negatives, "false_negatives": start + i, "positives": positives}
        if below[i] > 1e-12:
            assert below[i] == pytest.approx(of_one_fold(claim, parameter, **counts), rel=1e-4)


def test_without_leakage_the_law_of_one_fold_is_beta_binomial():
    _, law = false_negatives_law(GDP(DELTA), 0.0, 4, 20, 30)  # 1 - U ~ Beta(17, 4)
    np.testing.assert_allclose(law, betabinom.pmf(np.arange(31), 30, 17, 4), atol=1e-9)


def test_two_folds_are_a_sum_over_all_pairs_of_counts():
    sizes = [(2, 12, 9), (5, 20, 15)]
    first, second = (betabinom.pmf(np.arange(n1 + 1), n1, n0 - k + 1, k) for k, n0, n1 in sizes)
    for missed in range(25):
        naive = sum(first[i] * second[j] for i in range(10) for j in range(16) if i + j <= missed)
        ranks, negatives, positives = zip(*sizes, strict=True)
        counts = {"ranks": ranks, "negatives": negatives, "positives": positives, "false_negatives": missed}
        found = p_value(GDP(DELTA), 0.0, **counts)
        assert found == pytest.approx(1.0 if missed == 24 else naive, abs=1e-7)


@pytest.mark.parametrize("claim", CLAIMS, ids=["gdp", "dp"])
def test_pooled_p_values_are_those_of_drawn_audits(claim):
    rng, draws = np.random.default_rng(0), 200_000
    sizes, parameter = [(3, 20, 25), (6, 40, 30), (1, 8, 12)], 0.8
    missed = sum(
        rng.binomial(n1, np.clip(claim.tradeoff(rng.beta(k, n0 - k + 1, draws), parameter), 0, 1))
        for k, n0, n1 in sizes
    )
    ranks, negatives, positives = zip(*sizes, strict=True)
    for at in (10, 20, 30, 45):
        counts = {"ranks": ranks, "negatives": negatives, "positives": positives, "false_negatives": at}
        expected = float((missed <= at).mean())
        found = p_value(claim, parameter, **counts)
        assert abs(found - expected) < 5 * np.sqrt(found * (1 - found) / draws) + 1e-6


@pytest.mark.parametrize("claim", CLAIMS, ids=["gdp", "dp"])
def test_p_values_increase_with_the_parameter(claim):
    counts = {"ranks": (3, 9), "negatives": (20, 30), "positives": (25, 25), "false_negatives": 17}
    found = [p_value(claim, parameter, **counts) for parameter in np.linspace(0, 4, 60)]
    assert (np.diff(found) > -1e-9).all()


@pytest.mark.parametrize("claim", CLAIMS, ids=["gdp", "dp"])
def test_ranks_of_folds_are_the_fixed_ranks_in_proportion(claim):
    assert ranks_of_folds(claim, [200]) == {(rank,): share for rank, share in fixed_ranks(claim, 200).items()}
    shared = ranks_of_folds(claim, [100, 60, 40])
    assert sum(shared.values()) == pytest.approx(1)
    for ranks in shared:
        assert all(1 <= rank <= count for rank, count in zip(ranks, (100, 60, 40), strict=True))


def test_the_place_and_scale_of_a_folds_scores_do_not_matter():
    scores, bits, numbers = scores_of_folds(np.random.default_rng(1), 600, 2.0, 4)
    order = np.random.default_rng(0).permutation(600)
    expected = of(scores, bits, folds=numbers)
    assert expected.epsilon > 3
    assert expected.details.get("threshold") is None
    assert of(scores[order], bits[order], folds=-7 * numbers[order]) == expected
    assert of(np.exp(scores / 1e4), bits, folds=numbers).epsilon == expected.epsilon
    assert of(scores, bits, "ranks").epsilon < expected.epsilon / 2


def test_folds_by_the_coordinate_are_chosen_by_themselves():
    scores, bits, numbers = scores_of_folds(np.random.default_rng(1), 600, 2.0, 4)
    expected = of(scores, bits, folds=numbers)
    named, worlds = as_array(scores, numbers), xr.DataArray(bits, dims="run")
    assert of(scores, bits, "auto", folds=numbers) == expected
    expected = replace(expected, of="training")
    assert of(named, worlds, "auto") == of(named, bits) == expected
    last = numbers == 3
    assert of(named[last], bits[last], "auto").epsilon == of(scores[last], bits[last], "ranks").epsilon
    both = xr.concat([named, -named], "step").transpose("run", "step")
    assert of(both, worlds, "auto")[0] == expected


@pytest.mark.parametrize("rule", ["ranks", "split", "best", 0.0])
def test_rules_for_scores_of_one_scorer_are_not_valid_for_several(rule):
    scores, bits, numbers = scores_of_folds(np.random.default_rng(1), 600, 2.0, 4)
    bound = of(as_array(scores, numbers), bits, rule)
    assert not bound.valid
    assert "each fold has a scorer of its own, so the scores are not alike: give rule 'folds'" in bound.note
    assert of(scores, bits, rule).valid == (rule != "best")


@pytest.mark.parametrize("rule", ["auto", "ranks", "folds", "split", "bets", "best", 0.5])
def test_no_bound_is_valid_for_scores_in_sample(rule):
    scores, bits, numbers = scores_of_folds(np.random.default_rng(1), 600, 2.0, 1)
    marked = as_array(scores, numbers).assign_coords(in_sample=("run", np.ones(600, bool)))
    bound = of(marked, bits, rule)
    assert not bound.valid
    assert "the judged models were learned from" in bound.note
    assert bound.epsilon == of(scores, bits, rule, folds=numbers if rule in ("auto", "folds") else None).epsilon


@pytest.mark.parametrize("claim", ["gdp", "dp"])
def test_no_bound_exceeds_the_ceiling_of_perfect_scores(claim):
    bits, numbers = np.arange(400) % 2, np.sort(np.arange(400) % 5)
    perfect = of(1.0 - bits, bits, claim=claim, folds=numbers)
    ceiling = max_certifiable_epsilon(400, delta=DELTA, claim=claim, rule="folds")
    assert perfect.epsilon == pytest.approx(ceiling, abs=1e-6)
    assert ceiling / 1.5 < max_certifiable_epsilon(400, delta=DELTA, claim=claim)


def test_pooling_loses_little_where_the_scorers_are_alike(gaussian_scores):
    found = []
    for seed in range(8):
        scores, bits = gaussian_scores(seed, 1_000, 1.0)
        numbers = np.arange(1_000) // 200
        found.append((of(scores, bits, folds=numbers).mu, of(scores, bits, "ranks").mu))
    pooled, together = np.mean(found, axis=0)
    assert 0.9 * together < pooled < 1.1 * together


@pytest.mark.parametrize(
    ("claim", "mu", "audits"),
    [
        ("gdp", 1.0, 25),
        *(pytest.param(*case, 1_000, marks=pytest.mark.slow) for case in (("gdp", 0), ("gdp", 1), ("dp", 1))),
    ],
)
def test_bounds_exceed_the_truth_in_at_most_alpha_of_audits(claim, mu, audits):
    """Folds depend on the past: each scorer's direction is learned from all runs before, in 5 dimensions."""
    rng, wrong, truth = np.random.default_rng(5), 0, gdp_epsilon(mu, DELTA)
    numbers = np.arange(180) // 60
    for _ in range(audits):
        bits = rng.integers(0, 2, 240)
        models = rng.normal(size=(240, 5)) + mu * np.outer(bits == 0, np.eye(5)[0])
        scores = []
        for start in (60, 120, 180):
            past, known = models[:start], bits[:start]
            scores.append(models[start : start + 60] @ (past[known == 0].mean(axis=0) - past[known == 1].mean(axis=0)))
        found = of(np.concatenate(scores), bits[60:], claim=claim, folds=numbers)
        wrong += found.mu > mu if claim == "gdp" else found.epsilon > truth
    assert wrong <= binom.ppf(0.999, audits, 0.05)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "folds must be given for rule 'folds', one whole number for each run, or be the coordinate 'fold'"),
        ({"folds": np.arange(40)}, "folds must each hold runs of both worlds, got one world only in fold 0, of 1 runs"),
        ({"folds": np.zeros(40), "rule": "ranks"}, "folds must be given for rule 'folds' only, got rule"),
    ],
)
def test_bad_input_is_named(options, message):
    scores, bits, _ = scores_of_folds(np.random.default_rng(0), 40, 1.0, 1)
    with pytest.raises(ValueError, match=message):
        of(scores, bits, **options)
