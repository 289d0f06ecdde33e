import math

import numpy as np
import pytest
from scipy.integrate import trapezoid
from scipy.special import betaincinv
from scipy.stats import beta, binom, norm

from dpsub._claims import GDP, ApproximateDP
from dpsub._rank_test import fixed_ranks, p_value, smallest_parameter
from dpsub.accounting import gdp_epsilon, gdp_mu
from dpsub.estimators import clopper_pearson_upper, epsilon_lower_bound, max_certifiable_epsilon

DELTA = 1e-5


def gaussian_scores(rng, runs, mu):
    bits = rng.integers(0, 2, runs)
    return rng.normal(size=runs) + mu * (bits == 0), bits


def worlds(false_positives, n0, false_negatives, n1):
    """Scores of a single threshold, 0.5, with these numbers of errors."""
    negative = np.arange(n0) < false_positives
    positive = np.arange(n1) >= false_negatives
    return np.concatenate([negative, positive]).astype(float), np.repeat([1, 0], [n0, n1])


# Made by an independent implementation: Clopper–Pearson at alpha / 2 for each rate.
@pytest.mark.parametrize(
    ("method", "counts", "expected"),
    [
        ("dp", (30, 1250, 900, 1250), 2.01334085),
        ("gdp", (100, 1250, 400, 1250), 8.17679359),
        ("gdp", (0, 128, 0, 128), 22.83457462),
        ("gdp", (700, 1250, 600, 1250), 0.0),
    ],
)
def test_fixed_threshold_at_known_points(method, counts, expected):
    scores, bits = worlds(*counts)
    bound = epsilon_lower_bound(scores, bits, delta=DELTA, method=method, threshold=0.5)
    assert bound.epsilon == pytest.approx(expected, abs=1e-6)
    assert (bound.threshold, bound.valid) == (0.5, True)
    assert bound.assumes == {"dp": "none", "gdp": "gdp"}[method]
    assert (bound.mu is None) == (method == "dp")


@pytest.mark.parametrize(("count", "trials", "expected"), [(3, 128, 0.0669663), (0, 1250, 0.00294675), (7, 7, 1.0)])
def test_clopper_pearson_at_known_points(count, trials, expected):
    assert clopper_pearson_upper(count, trials, 0.025) == pytest.approx(expected, abs=1e-6)


def test_rank_p_value_at_a_known_point():
    p = p_value(GDP(DELTA), 1.0, rank=125, negatives=1250, false_negatives=730, positives=1250)
    assert p == pytest.approx(0.12075265, abs=1e-6)


@pytest.mark.parametrize("claim", [GDP(DELTA), ApproximateDP(DELTA)])
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
    z = np.linspace(-8, 8, 100_001)
    u = beta(rank, n0 - rank + 1).isf(norm.sf(z))
    inside = binom.cdf(false_negatives, n1, np.clip(claim.tradeoff(u, parameter), 0, 1))
    naive = trapezoid(inside * norm.pdf(z), z)
    p = p_value(claim, parameter, rank=rank, negatives=n0, false_negatives=false_negatives, positives=n1)
    assert p == pytest.approx(naive, rel=5e-5, abs=1e-12)


@pytest.mark.parametrize(("n0", "n1"), [(1, 50_000), (3, 5_000), (1250, 1250)])
@pytest.mark.parametrize("alpha", [0.05, 0.01, 1e-4])
def test_rank_test_rejects_a_true_claim_with_probability_at_most_its_level(n0, n1, alpha):
    mu = 0.3
    for rank in fixed_ranks(n0):
        # Exactly: the largest FN that is rejected, and how likely so few are under the claim.
        rejected = -1
        low, high = 0, n1
        while low <= high:
            middle = (low + high) // 2
            p = p_value(GDP(DELTA), mu, rank=rank, negatives=n0, false_negatives=middle, positives=n1)
            rejected, low, high = (middle, middle + 1, high) if p <= alpha else (rejected, low, middle - 1)
        if rejected < 0:
            continue
        z = np.linspace(-8, 8, 20_001)
        u = beta(rank, n0 - rank + 1).isf(norm.sf(z))
        size = trapezoid(binom.cdf(rejected, n1, norm.sf(norm.ppf(u) + mu)) * norm.pdf(z), z)
        assert size <= alpha * (1 + 1e-4)


def test_rank_bound_is_the_claim_at_which_the_smallest_p_value_reaches_its_level():
    rng = np.random.default_rng(3)
    scores, bits = gaussian_scores(rng, 2_500, 1.0)
    positives, negatives = np.sort(scores[bits == 0]), np.sort(scores[bits == 1])
    parameter, threshold = smallest_parameter(GDP(DELTA), positives, negatives, 0.05)
    ranks = fixed_ranks(len(negatives))
    assert len(ranks) == 8

    def p_at(rank, mu):
        false_negatives = int((positives <= negatives[-rank]).sum())
        return p_value(
            GDP(DELTA), mu, rank=rank, negatives=len(negatives), false_negatives=false_negatives,
            positives=len(positives),
        )  # fmt: skip

    assert min(p_at(rank, parameter - 1e-4) for rank in ranks) < 0.05 / 8
    assert min(p_at(rank, parameter + 1e-4) for rank in ranks) > 0.05 / 8
    assert threshold in [negatives[-rank] for rank in ranks]


def naive_best(scores, bits, method, alpha=0.05):
    """The papers' rule as a loop over every threshold, for either family."""
    positives, negatives = scores[bits == 0], scores[bits == 1]
    best = 0.0
    for cut in scores:
        upper = []
        for errors, total in (((negatives > cut).sum(), len(negatives)), ((positives <= cut).sum(), len(positives))):
            upper.append(1.0 if errors == total else betaincinv(errors + 1, total - errors, 1 - alpha / 2))
        fpr, fnr = upper
        if method == "gdp" and max(upper) < 1:
            best = max(best, gdp_epsilon(max(0.0, norm.isf(fpr) - norm.ppf(fnr)), DELTA))
        if method == "dp":
            best = max(best, *(math.log(max(1 - DELTA - a, 1e-300) / b) for a, b in ((fpr, fnr), (fnr, fpr))))
    return best


@pytest.mark.parametrize("method", ["gdp", "dp"])
@pytest.mark.parametrize(("runs", "mu"), [(40, 1.0), (400, 0.2), (300, 6.0)])
def test_best_threshold_is_the_naive_loop(method, runs, mu):
    rng = np.random.default_rng(runs)
    scores, bits = gaussian_scores(rng, runs, mu)
    scores = np.round(scores, 1)  # ties
    bound = epsilon_lower_bound(scores, bits, delta=DELTA, method=method, threshold="best")
    assert bound.epsilon == pytest.approx(naive_best(scores, bits, method), abs=1e-9)
    assert not bound.valid


def test_split_judges_on_the_odd_runs_what_it_chose_on_the_even_ones():
    rng = np.random.default_rng(5)
    scores, bits = gaussian_scores(rng, 1_000, 1.5)
    split = epsilon_lower_bound(scores, bits, delta=DELTA, threshold="split")
    chosen = epsilon_lower_bound(scores[::2], bits[::2], delta=DELTA, threshold="best").threshold
    judged = epsilon_lower_bound(scores[1::2], bits[1::2], delta=DELTA, threshold=chosen)
    assert split == judged


@pytest.mark.parametrize("method", ["gdp", "dp"])
def test_swapping_the_worlds_and_the_sign_changes_nothing_at_a_fixed_threshold(method):
    rng = np.random.default_rng(6)
    scores, bits = gaussian_scores(rng, 500, 1.0)
    here = epsilon_lower_bound(scores, bits, delta=DELTA, method=method, threshold=0.3)
    mirrored = epsilon_lower_bound(-scores, 1 - bits, delta=DELTA, method=method, threshold=-0.3)
    assert here.epsilon == pytest.approx(mirrored.epsilon, rel=1e-12)
    assert (here.fpr_upper, here.fnr_upper) == pytest.approx((mirrored.fnr_upper, mirrored.fpr_upper), rel=1e-12)


@pytest.mark.parametrize("threshold", ["ranks", "split", "best", 0.0])
@pytest.mark.parametrize("method", ["gdp", "dp"])
class TestDegenerateScores:
    def test_monotone_changes_of_the_score_change_nothing(self, method, threshold):
        rng = np.random.default_rng(7)
        scores, bits = gaussian_scores(rng, 600, 1.0)
        here = epsilon_lower_bound(scores, bits, delta=DELTA, method=method, threshold=threshold)
        cubed = epsilon_lower_bound(scores**3, bits, delta=DELTA, method=method, threshold=threshold)
        assert here.epsilon == cubed.epsilon

    def test_a_perfect_attack_reaches_the_ceiling_and_no_more(self, method, threshold):
        bits = np.arange(1_000) // 2 % 2
        bound = epsilon_lower_bound(1.0 - bits, bits, delta=DELTA, method=method, threshold=threshold)
        ceiling = max_certifiable_epsilon(1_000, delta=DELTA, method=method, threshold=threshold)
        assert bound.epsilon == ceiling > 2

    def test_constant_scores_say_nothing(self, method, threshold):
        bits = np.arange(200) // 2 % 2
        bound = epsilon_lower_bound(np.zeros(200), bits, delta=DELTA, method=method, threshold=threshold)
        assert bound.epsilon == 0
        assert bound.mu == (0 if method == "gdp" else None)

    def test_scores_that_point_the_wrong_way_say_nothing(self, method, threshold):
        rng = np.random.default_rng(8)
        scores, bits = gaussian_scores(rng, 600, 1.0)
        bound = epsilon_lower_bound(-scores, bits, delta=DELTA, method=method, threshold=threshold)
        assert bound.epsilon < 0.1

    def test_infinite_scores_are_extreme_but_ordered(self, method, threshold):
        bits = np.arange(400) // 2 % 2
        bound = epsilon_lower_bound(np.where(bits == 0, np.inf, -np.inf), bits, delta=DELTA, threshold=threshold)
        assert bound.epsilon > 2

    def test_more_confidence_costs(self, method, threshold):
        rng = np.random.default_rng(9)
        scores, bits = gaussian_scores(rng, 2_000, 2.0)
        sure, surer = (
            epsilon_lower_bound(scores, bits, delta=DELTA, method=method, threshold=threshold, alpha=alpha).epsilon
            for alpha in (0.05, 0.001)
        )
        assert surer < sure


def test_one_run_in_each_world_says_nothing():
    assert epsilon_lower_bound([1.0, 0.0], [0, 1], delta=DELTA).epsilon == 0


def test_steps_give_one_bound_each_and_share_alpha_only_when_asked():
    rng = np.random.default_rng(10)
    bits = rng.integers(0, 2, 800)
    scores = rng.normal(size=(800, 3)) + np.outer(bits == 0, [0.5, 1.0, 2.0])
    each = epsilon_lower_bound(scores, bits, delta=DELTA)
    assert each == [epsilon_lower_bound(scores[:, i], bits, delta=DELTA) for i in range(3)]
    together = epsilon_lower_bound(scores, bits, delta=DELTA, simultaneous=True)
    assert together == [epsilon_lower_bound(scores[:, i], bits, delta=DELTA, alpha=0.05 / 3) for i in range(3)]


# 1,000 audits whose truth is known. At 5 % the count of overshoots is below 72 with probability 0.999.
@pytest.mark.parametrize("runs", [500, 2_500])
@pytest.mark.parametrize(("method", "threshold"), [("gdp", "ranks"), ("gdp", "split"), ("gdp", 0.5), ("dp", "ranks")])
def test_valid_bounds_exceed_the_truth_in_at_most_alpha_of_audits(method, threshold, runs):
    mu, audits = 1.0, 1_000
    truth = gdp_epsilon(mu, DELTA)
    rng = np.random.default_rng(11)
    bounds = []
    for _ in range(audits):
        scores, bits = gaussian_scores(rng, runs, mu)
        bounds.append(epsilon_lower_bound(scores, bits, delta=DELTA, method=method, threshold=threshold).epsilon)
    assert sum(bound > truth for bound in bounds) <= binom.ppf(0.999, audits, 0.05)
    assert np.mean(bounds) > {"gdp": 0.25, "dp": 0.1}[method] * truth


@pytest.mark.parametrize("tied", [0.5, 2.0])
def test_ties_leave_the_rank_test_conservative(tied):
    truth = gdp_epsilon(1.0, DELTA)
    rng = np.random.default_rng(12)
    exceeded = 0
    for _ in range(300):
        scores, bits = gaussian_scores(rng, 500, 1.0)
        exceeded += epsilon_lower_bound(np.floor(scores / tied), bits, delta=DELTA).epsilon > truth
    assert exceeded <= binom.ppf(0.999, 300, 0.05)


@pytest.mark.slow
def test_the_papers_rule_breaks_its_promise_at_50_000_runs():
    truth = gdp_epsilon(1.0, DELTA)
    rng = np.random.default_rng(13)
    exceeded = {"ranks": 0, "best": 0}
    for _ in range(400):
        scores, bits = gaussian_scores(rng, 50_000, 1.0)
        for rule in exceeded:
            exceeded[rule] += epsilon_lower_bound(scores, bits, delta=DELTA, threshold=rule).epsilon > truth
    assert exceeded["ranks"] <= binom.ppf(0.999, 400, 0.05)
    assert exceeded["best"] > binom.ppf(0.999, 400, 0.05)


def test_ceiling_at_known_points():
    assert max_certifiable_epsilon(256, delta=DELTA, threshold="best") == pytest.approx(22.83457462, abs=1e-6)
    assert max_certifiable_epsilon(256, delta=DELTA) < max_certifiable_epsilon(2_560, delta=DELTA)
    assert max_certifiable_epsilon(1_000, delta=DELTA, threshold=7.0) == max_certifiable_epsilon(
        1_000, delta=DELTA, threshold="best"
    )


def test_mu_and_epsilon_of_a_bound_belong_together():
    rng = np.random.default_rng(14)
    bound = epsilon_lower_bound(*gaussian_scores(rng, 1_000, 2.0), delta=1e-3)
    assert gdp_mu(bound.epsilon, 1e-3) == pytest.approx(bound.mu)


SCORES, BITS = [0.1, 0.4, 0.2, 0.3], [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("scores", "bits", "options", "message"),
    [
        ([], [], {}, r"scores must have shape \(runs,\) or \(runs, steps\), none of them 0, got \(0,\)"),
        (np.zeros((4, 2, 2)), BITS, {}, r"got \(4, 2, 2\)"),
        ([0.1, np.nan, 0.2, 0.3], BITS, {}, "scores must not be NaN, got 1 of them"),
        (["a"] * 4, BITS, {}, "scores must be real numbers"),
        (SCORES, [0, 1, 0], {}, r"bits must have shape \(4,\), one for each run, got \(3,\)"),
        (SCORES, [0, 1, 2, 1], {}, r"bits must be 0 \(trained with z\) or 1 \(with z_prime\), got \[0, 1, 2\]"),
        (SCORES, [0, 0, 0, 0], {}, "bits must hold runs of both worlds, got 0 only"),
        (SCORES, BITS, {"delta": 0.0}, "delta must be > 0 and < 1, got 0.0"),
        (SCORES, BITS, {"alpha": 1.0}, "alpha must be > 1e-12 and < 1, got 1.0"),
        (SCORES, BITS, {"method": "rdp"}, "method must be one of 'gdp', 'dp', got 'rdp'"),
        (SCORES, BITS, {"threshold": "median"}, "threshold must be one of 'ranks', 'split', 'best' or a number"),
        (SCORES, BITS, {"threshold": np.nan}, "threshold must be finite, got nan"),
        (SCORES, [0, 1, 0, 1], {"threshold": "split"}, 'threshold "split" needs runs of both worlds'),
    ],
)
def test_bad_input_is_named(scores, bits, options, message):
    with pytest.raises(ValueError, match=message):
        epsilon_lower_bound(scores, bits, **{"delta": DELTA, **options})
