import math

import numpy as np
import pytest
from scipy.integrate import trapezoid
from scipy.special import betaincinv
from scipy.stats import beta, binom, norm

from dpsub import accounting
from dpsub.accounting import gdp_epsilon, gdp_mu
from dpsub.estimators import METHODS, LowerBound, epsilon_lower_bound, max_certifiable_epsilon, over_repeats
from dpsub.estimators.claims import GDP, ApproximateDP
from dpsub.estimators.mechanism_claim import PER_OCTAVE, MechanismDP
from dpsub.estimators.one_threshold import clopper_pearson_upper
from dpsub.estimators.ranks import fixed_ranks, p_value, smallest_parameter

DELTA = 1e-5
SAMPLED = {"sample_rate": 0.0625, "steps": 500, "adjacency": "substitute"}
EXACT = ("gdp", "dp", "pld")
PAIRS = [(method, threshold) for method in METHODS for threshold in ("split", "best", 0.5)]
PAIRS += [(method, "ranks") for method in EXACT]


def bounded(scores, bits, method="gdp", threshold="ranks", *, delta=DELTA, **options):
    mechanism = SAMPLED if method == "pld" else {}
    return epsilon_lower_bound(scores, bits, delta=delta, method=method, threshold=threshold, **mechanism, **options)


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
        ("bayes_dp", (100, 1250, 400, 1250), 1.98206201),
        ("bayes_gdp", (100, 1250, 400, 1250), 8.59973835),
        ("katz", (100, 1250, 400, 1250), 1.94826518),
    ],
)
def test_fixed_threshold_at_known_points(method, counts, expected):
    bound = bounded(*worlds(*counts), method, 0.5)
    assert bound.epsilon == pytest.approx(expected, abs=1e-6)
    assert (bound.threshold, bound.valid) == (0.5, method in ("gdp", "dp"))
    assert bound.assumes == ("gdp" if "gdp" in method else "none")
    assert (bound.mu is None) == ("gdp" not in method)


# The independent implementation has a mesh of its own, good to 0.002.
@pytest.mark.parametrize(("adjacency", "expected"), [("substitute", 5.36475795), ("add_remove", 5.88654886)])
def test_the_mechanisms_own_curve_at_known_points(adjacency, expected):
    mechanism = {"sample_rate": 0.0625, "steps": 500, "adjacency": adjacency}
    scores, bits = worlds(3_000, 25_000, 12_000, 25_000)
    bound = epsilon_lower_bound(scores, bits, delta=DELTA, method="pld", threshold=0.5, **mechanism)
    assert bound.epsilon == pytest.approx(expected, abs=2e-3)
    assert (bound.assumes, bound.valid, bound.mu) == ("mechanism", True, None)
    exact = accounting.epsilon(noise_multiplier=bound.noise_multiplier, delta=DELTA, **mechanism)
    assert bound.epsilon <= exact <= bound.epsilon + 5e-3
    fnr = accounting.tradeoff(bound.fpr_upper, noise_multiplier=bound.noise_multiplier, **mechanism)
    assert fnr == pytest.approx(bound.fnr_upper, abs=5e-5)


def test_at_full_batch_the_mechanisms_curve_is_the_gaussian_one():
    scores, bits = gaussian_scores(np.random.default_rng(20), 2_000, 1.0)
    mechanism = {"sample_rate": 1, "steps": 40, "adjacency": "substitute"}
    for threshold in ("ranks", "best", 0.5):
        gaussian = bounded(scores, bits, "gdp", threshold)
        own = epsilon_lower_bound(scores, bits, delta=DELTA, method="pld", threshold=threshold, **mechanism)
        assert own.epsilon == pytest.approx(gaussian.epsilon, abs=1e-6)
        assert own.threshold == gaussian.threshold
        assert own.noise_multiplier == pytest.approx(2 * math.sqrt(40) / gaussian.mu)


def test_errors_that_no_noise_of_the_mechanism_explains_are_doubted():
    mechanism = {"sample_rate": 0.01, "steps": 1, "adjacency": "substitute"}
    bound = epsilon_lower_bound(*worlds(0, 2_000, 0, 2_000), delta=DELTA, method="pld", threshold=0.5, **mechanism)
    assert bound.note.startswith("refuted at every noise_multiplier down to 0.2: check sample_rate")
    assert bound.epsilon == pytest.approx(accounting.epsilon(noise_multiplier=0.2, delta=DELTA, **mechanism), rel=1e-3)


@pytest.mark.parametrize("method", ["bayes_gdp", "bayes_dp"])
@pytest.mark.parametrize(
    "counts", [(3, 40, 4, 50), (0, 30, 5, 30), (100, 1_250, 400, 1_250), (0, 5, 90, 2_000), (0, 25_000, 10, 25_000)]
)
def test_the_posterior_of_the_rates_is_integrated_over_both(method, counts):
    fp, n0, fn, n1 = counts
    bound = bounded(*worlds(*counts), method, 0.5)
    claim, parameter = (GDP(DELTA), bound.mu) if method == "bayes_gdp" else (ApproximateDP(DELTA), bound.epsilon)
    assert parameter > 0
    angle = np.linspace(0, np.pi / 2, 400_001)[1:-1]
    u = np.sin(angle) ** 2
    density = beta.pdf(u, fp + 0.5, n0 - fp + 0.5) * np.sin(2 * angle)
    tail = beta.sf(np.clip(claim.tradeoff(u, parameter), 0, 1), fn + 0.5, n1 - fn + 0.5)
    assert trapezoid(density * tail, angle) == pytest.approx(0.05, rel=1e-3)


def test_a_credible_bound_is_above_a_confident_one_and_reaches_beyond_ten():
    scores, bits = gaussian_scores(np.random.default_rng(21), 5_000, 4.0)
    confident, credible = bounded(scores, bits, "gdp", 2.0), bounded(scores, bits, "bayes_gdp", 2.0)
    assert 20 < confident.epsilon < credible.epsilon


def test_katz_needs_an_error_of_each_kind_it_takes_a_ratio_with():
    none = bounded(*worlds(0, 50, 0, 50), "katz", 0.5)
    assert none.epsilon == 0
    assert "no error" in none.note
    one = bounded(*worlds(1, 50, 0, 50), "katz", 0.5)
    assert one.epsilon == pytest.approx(math.log(50) - norm.ppf(0.975) * math.sqrt(1 - 1 / 50))


@pytest.mark.parametrize(("count", "trials", "expected"), [(3, 128, 0.0669663), (0, 1250, 0.00294675), (7, 7, 1.0)])
def test_clopper_pearson_at_known_points(count, trials, expected):
    assert clopper_pearson_upper(np.array([count]), trials, 0.025)[0] == pytest.approx(expected, abs=1e-6)


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
    for rank in fixed_ranks(GDP(DELTA), n0):
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
    ranks = fixed_ranks(GDP(DELTA), len(negatives))
    parameter, threshold = smallest_parameter(GDP(DELTA), positives, negatives, ranks, 0.05)

    def p_at(rank, mu):
        false_negatives = int((positives <= negatives[-rank]).sum())
        return p_value(
            GDP(DELTA), mu, rank=rank, negatives=len(negatives), false_negatives=false_negatives,
            positives=len(positives),
        )  # fmt: skip

    assert min(p_at(rank, parameter - 1e-4) / share for rank, share in ranks.items()) < 0.05
    assert min(p_at(rank, parameter + 1e-4) / share for rank, share in ranks.items()) > 0.05
    assert threshold in [negatives[-rank] for rank in ranks]


@pytest.mark.parametrize("claim", [GDP(DELTA), ApproximateDP(DELTA), MechanismDP(DELTA, 0.5, 10, "substitute")])
def test_ranks_are_distinct_and_share_all_of_alpha(claim):
    for negatives in (8, 9, 50, 1_250, 25_000):
        ranks = fixed_ranks(claim, negatives)
        assert sum(ranks.values()) == pytest.approx(1)
        assert all(1 <= rank <= negatives for rank in ranks)
    assert len(ranks) == (8 if claim.assumes == "none" else 4)


# Eight ranks from 2 % to 60 %, equal shares. Its maker's quadrature, of about 65 nodes, is off by 1.7e-4.
def test_eight_ranks_at_a_known_point():
    negatives = norm.ppf((np.arange(1, 1251) - 0.5) / 1250)
    ranks = {round(share * 1250): 1 / 8 for share in np.geomspace(0.02, 0.6, 8)}
    mu, _ = smallest_parameter(GDP(DELTA), negatives + 1, negatives, ranks, 0.05)
    assert gdp_epsilon(mu, DELTA) == pytest.approx(3.71325348, abs=3e-4)
    one, _ = smallest_parameter(GDP(DELTA), np.repeat([-1e9, 1e9], [700, 550]), negatives, {125: 1.0}, 0.05)
    assert gdp_epsilon(one, DELTA) == pytest.approx(4.54533011, abs=1e-5)


def naive_best(scores, bits, method, alpha=0.05):
    """The papers' rule as a loop over every threshold."""
    if method not in ("gdp", "dp"):
        return max(bounded(scores, bits, method, float(cut), alpha=alpha).epsilon for cut in np.unique(scores))
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


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("runs", "mu"), [(40, 1.0), (400, 0.2), (300, 6.0)])
def test_best_threshold_is_the_naive_loop(method, runs, mu):
    rng = np.random.default_rng(runs)
    scores, bits = gaussian_scores(rng, runs, mu)
    scores = np.round(scores, 0 if method == "pld" else 1)  # ties
    bound = bounded(scores, bits, method, "best")
    assert bound.epsilon == pytest.approx(naive_best(scores, bits, method), abs=1e-6)
    assert not bound.valid


def test_split_judges_on_the_odd_runs_what_it_chose_on_the_even_ones():
    rng = np.random.default_rng(5)
    scores, bits = gaussian_scores(rng, 1_000, 1.5)
    split = epsilon_lower_bound(scores, bits, delta=DELTA, threshold="split")
    chosen = epsilon_lower_bound(scores[::2], bits[::2], delta=DELTA, threshold="best").threshold
    judged = epsilon_lower_bound(scores[1::2], bits[1::2], delta=DELTA, threshold=chosen)
    assert split == judged


@pytest.mark.parametrize("method", METHODS)
def test_swapping_the_worlds_and_the_sign_changes_nothing_at_a_fixed_threshold(method):
    rng = np.random.default_rng(6)
    scores, bits = gaussian_scores(rng, 500, 1.0)
    here, mirrored = bounded(scores, bits, method, 0.3), bounded(-scores, 1 - bits, method, -0.3)
    assert here.epsilon == pytest.approx(mirrored.epsilon, rel=1e-4 if method == "pld" else 1e-6)
    assert (here.fpr_upper, here.fnr_upper) == pytest.approx((mirrored.fnr_upper, mirrored.fpr_upper), rel=1e-12)


@pytest.mark.parametrize(("method", "threshold"), PAIRS)
class TestDegenerateScores:
    def test_monotone_changes_of_the_score_change_nothing(self, method, threshold):
        scores, bits = gaussian_scores(np.random.default_rng(7), 600, 1.0)
        cubed = bounded(scores**3, bits, method, 0.125 if threshold == 0.5 else threshold)
        assert bounded(scores, bits, method, threshold).epsilon == cubed.epsilon

    def test_a_perfect_attack_reaches_the_ceiling_and_no_more(self, method, threshold):
        bits = np.arange(1_000) // 2 % 2
        mechanism = SAMPLED if method == "pld" else {}
        ceiling = max_certifiable_epsilon(1_000, delta=DELTA, method=method, threshold=threshold, **mechanism)
        perfect = bounded(1.0 - bits, bits, method, threshold).epsilon
        assert ceiling > 2
        assert perfect == (0 if method == "katz" else pytest.approx(ceiling))  # no errors, no ratio of errors

    def test_constant_scores_say_nothing_and_why(self, method, threshold):
        bits = np.arange(200) // 2 % 2
        bound = bounded(np.zeros(200), bits, method, threshold)
        assert bound.epsilon == 0
        assert bound.mu == (0 if "gdp" in method else None)
        assert bound.note == "all scores are equal: no threshold parts the worlds"

    def test_scores_that_point_the_wrong_way_say_nothing(self, method, threshold):
        scores, bits = gaussian_scores(np.random.default_rng(8), 600, 1.0)
        bound = bounded(-scores, bits, method, threshold)
        assert bound.epsilon < 0.1
        assert bound.note or bound.epsilon

    def test_infinite_scores_are_extreme_but_ordered(self, method, threshold):
        bits = np.arange(400) // 2 % 2
        scores = np.where(np.arange(400) == 1, 0.0, np.where(bits == 0, np.inf, -np.inf))
        assert bounded(scores, bits, method, threshold).epsilon > (2 if method != "katz" else -1)

    def test_more_confidence_costs(self, method, threshold):
        scores, bits = gaussian_scores(np.random.default_rng(9), 2_000, 2.0)
        sure, surer = (bounded(scores, bits, method, threshold, alpha=alpha).epsilon for alpha in (0.05, 0.001))
        assert surer < sure or (method, threshold) == ("katz", "split")  # which chooses another threshold


def test_fewer_runs_than_ranks_say_nothing_and_why():
    for runs in (2, 14):
        bits = np.arange(runs) % 2
        bound = epsilon_lower_bound(1.0 - bits, bits, delta=DELTA)
        assert bound.epsilon == 0
        assert bound.note == f"the rank test needs 8 runs with z_prime, got {runs // 2}"


def test_a_delta_that_so_few_runs_cannot_resolve_is_named():
    bits = np.arange(40) % 2
    bound = epsilon_lower_bound(1.0 - bits, bits, delta=0.9)
    assert bound.epsilon == 0
    assert bound.note == "what was refuted leaks nothing beyond delta = 0.9"
    bound = epsilon_lower_bound(1.0 - bits, bits, delta=0.9, method="dp")
    assert bound.note == "40 runs cannot show an epsilon at delta = 0.9, however good the attack"
    weak = epsilon_lower_bound(bits.astype(float), bits, delta=DELTA)
    assert weak.note == "the scores refute no claim: the attack is too weak, or the runs are too few"


@pytest.mark.parametrize(("method", "threshold"), PAIRS)
def test_only_exact_methods_under_rules_that_do_not_look_are_valid(method, threshold):
    bound = bounded(*gaussian_scores(np.random.default_rng(15), 200, 1.0), method, threshold)
    assert bound.valid == (method in EXACT and threshold != "best")
    assert bound.assumes == {"gdp": "gdp", "bayes_gdp": "gdp", "pld": "mechanism"}.get(method, "none")
    assert (bound.fpr_upper is None) == (bound.fnr_upper is None) == (threshold == "ranks")
    assert (bound.noise_multiplier is None) == (method != "pld")


def test_pld_takes_the_steps_at_which_the_scores_were_observed():
    rng = np.random.default_rng(16)
    bits = rng.integers(0, 2, 600)
    scores = rng.normal(size=(600, 2)) + np.outer(bits == 0, [1.0, 1.5])
    mechanism = {"delta": DELTA, "method": "pld", "sample_rate": 0.25, "adjacency": "substitute"}
    both = epsilon_lower_bound(scores, bits, steps=[100, 200], **mechanism)
    assert both == [epsilon_lower_bound(scores[:, i], bits, steps=100 * (i + 1), **mechanism) for i in range(2)]
    assert both[0] != epsilon_lower_bound(scores[:, 0], bits, steps=200, **mechanism)


def test_repeats_become_a_mean_and_two_standard_errors():
    def bound(epsilon):
        return LowerBound(epsilon, None, None, None, None, "dp", "none", True)

    mean, error, repeats = over_repeats([bound(1.0), bound(2.0), bound(6.0)])
    assert (mean, repeats) == (3.0, 3)
    assert error == pytest.approx(2 * np.std([1, 2, 6], ddof=1) / math.sqrt(3))
    curves = over_repeats([[bound(1.0), bound(2.0)], [bound(3.0), bound(2.0)]])
    np.testing.assert_allclose([curves.mean, curves.error], [[2, 2], [2, 0]])
    assert np.isnan(over_repeats([[bound(1.0), bound(2.0)]]).error).all()
    for bad in ([], [[1.0, 2.0], [1.0]], [[], []], [None, 3.0], "345", bound(1.0), [np.nan]):
        with pytest.raises(ValueError, match="bounds must be a sequence of repeats"):
            over_repeats(bad)


def test_noise_beyond_all_accounting_is_no_leak():
    rng = np.random.default_rng(17)
    scores, bits = gaussian_scores(rng, 100_000, 0.02)
    mechanism = {"delta": DELTA, "method": "pld", "steps": 10**9, "adjacency": "substitute"}
    full = epsilon_lower_bound(scores, bits, sample_rate=1.0, **mechanism)
    assert full.epsilon == pytest.approx(epsilon_lower_bound(scores, bits, delta=DELTA).epsilon, abs=1e-9)
    assert MechanismDP(DELTA, 0.5, 10**6, "substitute").epsilon(1e-3) == 0


def test_no_number_of_errors_beats_the_ceiling_of_katz():
    for runs in (10, 11, 40, 41):
        n0, n1 = runs // 2, runs - runs // 2
        most = max(
            bounded(*worlds(fp, n0, fn, n1), "katz", 0.5).epsilon for fp in range(n0 + 1) for fn in range(n1 + 1)
        )
        assert max_certifiable_epsilon(runs, delta=DELTA, method="katz", threshold="best") == pytest.approx(most)


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
    own = claim.tradeoff(fpr, parameter)
    assert ((own <= accounting.tradeoff(fpr, **mechanism, adjacency=adjacency)) | (own == 0)).all()


def test_steps_give_one_bound_each_and_share_alpha_only_when_asked():
    rng = np.random.default_rng(10)
    bits = rng.integers(0, 2, 800)
    scores = rng.normal(size=(800, 3)) + np.outer(bits == 0, [0.5, 1.0, 2.0])
    each = epsilon_lower_bound(scores, bits, delta=DELTA)
    assert each == [epsilon_lower_bound(scores[:, i], bits, delta=DELTA) for i in range(3)]
    together = epsilon_lower_bound(scores, bits, delta=DELTA, simultaneous=True)
    assert together == [epsilon_lower_bound(scores[:, i], bits, delta=DELTA, alpha=0.05 / 3) for i in range(3)]


# 1,000 audits whose truth is known. At 5 % the count of overshoots is below 72 with probability 0.999.
@pytest.mark.parametrize(
    ("method", "threshold", "runs"),
    [
        ("gdp", "ranks", 2_500),
        ("gdp", "split", 500),
        ("gdp", 0.5, 500),
        ("dp", "ranks", 500),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (("gdp", "ranks", 500), ("gdp", "split", 2_500), ("gdp", 0.5, 2_500), ("dp", "ranks", 2_500))
        ),
    ],
)
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
        (SCORES, BITS, {"alpha": 0.5}, "alpha must be > 1e-12 and < 0.5, got 0.5"),
        (SCORES, BITS, {"alpha": 0.0}, "alpha must be > 1e-12 and < 0.5, got 0.0"),
        ([[1.0, 2.0], [1.0], [2.0], [3.0]], BITS, {}, "scores must have the same number of steps for every run"),
        (SCORES, BITS, {"method": "rdp"}, "method must be one of 'gdp', 'dp', 'pld', 'bayes_gdp', .*, got 'rdp'"),
        (
            SCORES,
            BITS,
            {"method": "katz"},
            "'ranks' goes with the methods 'gdp', 'dp', 'pld', got 'katz'",
        ),
        (SCORES, BITS, {"sample_rate": 0.1}, "sample_rate: for method 'pld' alone, got method 'gdp'"),
        (SCORES, BITS, {"method": "pld", "steps": 3}, "'pld' needs .* got them without adjacency, sample_rate"),
        (
            SCORES,
            BITS,
            {"method": "pld", **SAMPLED, "noise_multiplier": 1.0},
            "with noise_multiplier: the noise is",
        ),
        (SCORES, BITS, {"method": "pld", **SAMPLED, "steps": [1, 2]}, "one entry for each of the 1 columns .* got 2"),
        (SCORES, BITS, {"method": "pld", **SAMPLED, "adjacency": "swap"}, "adjacency must be one of .* got 'swap'"),
        (SCORES, BITS, {"method": "pld", **SAMPLED, "sample_rate": 1.5}, "sample_rate must be > 0 and <= 1, got 1.5"),
        (SCORES, BITS, {"threshold": "median"}, "threshold must be one of 'ranks', 'split', 'best' or a number"),
        (SCORES, [None, 1, 0, 1], {}, r"bits must be 0 \(trained with z\) or 1 \(with z_prime\)"),
        (SCORES, [[0], [1, 0], 0, 1], {}, r"bits must be 0 \(trained with z\) or 1 \(with z_prime\)"),
        (np.array([1, 2, 3, 4], "m8[s]"), BITS, {}, r"scores must be real numbers, got dtype timedelta64"),
        (SCORES, BITS, {"threshold": np.array([0.5, 0.6])}, "threshold must be a number, finite, got array"),
        (SCORES, BITS, {"simultaneous": "no"}, "simultaneous must be True or False, got 'no'"),
        (SCORES, BITS, {"method": "pld", **SAMPLED, "steps": np.ma.array([5], mask=[1])}, "steps must not be masked"),
        (SCORES, BITS, {"method": "pld", **SAMPLED, "steps": 10**400}, "steps must be >= 1 and <= 1000000000"),
        (SCORES, BITS, {"threshold": np.nan}, "threshold must be finite, got nan"),
        (SCORES, [0, 1, 0, 1], {"threshold": "split"}, 'threshold "split" needs runs of both worlds'),
    ],
)
def test_bad_input_is_named(scores, bits, options, message):
    with pytest.raises(ValueError, match=message):
        epsilon_lower_bound(scores, bits, **{"delta": DELTA, **options})
