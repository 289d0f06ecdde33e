from statistics import NormalDist

import numpy as np
import pytest
from scipy.stats import binom, norm

from dpsub import accounting
from dpsub.estimators import one_run_epsilon_lower_bound, one_run_guesses
from dpsub.estimators.one_run import Guesses


def naive(scores, bits, guesses, centre=0.0):
    order = sorted(range(len(scores)), key=lambda i: -abs(scores[i] - centre))
    return sum((bits[i] == 0) == (scores[i] >= centre) for i in order[:guesses])


@pytest.mark.parametrize("guesses", [1, 7, 30])
@pytest.mark.parametrize("centre", [0.0, 0.3, -5])
def test_the_clearest_scores_are_guessed_by_their_side(guesses, centre):
    draws = np.random.default_rng(guesses)
    scores, bits = draws.normal(size=30), draws.integers(0, 2, 30)
    found = one_run_guesses(scores, bits, guesses=guesses, centre=centre)
    assert found == Guesses(naive(scores, bits, guesses, centre), guesses, 30)
    moved = one_run_guesses(scores + 2, bits, guesses=guesses, centre=centre + 2)
    assert moved == found
    turned = one_run_guesses(-scores, 1 - bits, guesses=guesses, centre=-centre)
    assert turned == found


@pytest.mark.parametrize("centre", [0.0, "median"])
def test_several_numbers_of_guesses_are_as_one_after_the_other(centre):
    draws = np.random.default_rng(4)
    scores, bits = draws.normal(size=60), draws.integers(0, 2, 60)
    found = one_run_guesses(scores, bits, guesses=[2, 10, 60], centre=centre)
    each = [one_run_guesses(scores, bits, guesses=number, centre=centre) for number in (2, 10, 60)]
    assert found == Guesses(tuple(one.correct for one in each), (2, 10, 60), 60)
    assert one_run_guesses(scores, bits, guesses=np.array([10]), centre=centre) == Guesses(
        (each[1].correct,), (10,), 60
    )


def test_perfect_scores_are_all_guessed_right_around_their_centre_and_turned_ones_wrong():
    bits = np.array([0, 1] * 20)
    scores = 1.0 - 2 * bits
    assert [one_run_guesses(s, bits, guesses=40).correct for s in (scores, -scores, scores + 9)] == [40, 0, 20]
    assert one_run_guesses(scores + 9, bits, guesses=40, centre="median").correct == 40


def test_models_are_guessed_together_each_around_its_own_median():
    draws = np.random.default_rng(0)
    scores, bits = draws.normal(size=(3, 50)), draws.integers(0, 2, (3, 50))
    plain = one_run_guesses(scores, bits, guesses=60)
    assert plain == one_run_guesses(scores.ravel(), bits.ravel(), guesses=60)
    assert plain.pairs == 150
    moved = scores + np.array([[0.0], [100], [-50]])
    medians = scores - np.median(scores, axis=1, keepdims=True)
    expected = one_run_guesses(medians, bits, guesses=60)
    assert one_run_guesses(moved, bits, guesses=60, centre="median") == expected


@pytest.mark.parametrize("centre", [0.0, "median"])
def test_among_equal_scores_the_order_of_pairs_does_not_count(centre):
    bits = np.repeat([0, 1], 500)
    found = one_run_guesses(np.zeros(1_000), bits, guesses=500, centre=centre)
    assert 1e-3 < binom.cdf(found.correct, 500, 0.5) < 1 - 1e-3
    assert one_run_guesses(np.zeros(1_000), bits, guesses=500, centre=centre) == found


@pytest.mark.parametrize("centre", [0.0, "median"])
def test_scores_that_say_nothing_are_guessed_by_chance(centre):
    draws = np.random.default_rng(1)
    correct = sum(
        one_run_guesses(draws.normal(size=200), draws.integers(0, 2, 200), guesses=50, centre=centre).correct
        for _ in range(200)
    )
    assert 1e-3 < binom.cdf(correct, 50 * 200, 0.5) < 1 - 1e-3


def test_normal_scores_are_guessed_as_often_as_theory_says():
    draws = np.random.default_rng(2)
    bits = draws.integers(0, 2, 40_000)
    scores = draws.normal(size=40_000) + 0.5 - bits
    correct = one_run_guesses(scores, bits, guesses=40_000).correct
    assert 1e-3 < binom.cdf(correct, 40_000, norm.cdf(0.5)) < 1 - 1e-3
    assert one_run_guesses(scores, bits, guesses=4_000).correct / 4_000 > norm.cdf(1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"guesses": 5}, "guesses must be whole numbers >= 1 and <= 4, got 5"),
        ({"scores": [1.0, 2.0, np.nan, 3.0]}, "scores must be finite numbers, got nan"),
    ],
)
def test_what_cannot_be_guessed_is_named(change, message):
    with pytest.raises(ValueError, match=message):
        one_run_guesses(**{"scores": [1.0, -2.0, 3.0, -4.0], "bits": [0, 1, 1, 0], "guesses": 2} | change)


def test_coins_that_are_not_fair_or_used_twice_are_refused():
    draws = np.random.default_rng(3)
    scores, bits = draws.normal(size=(2, 100)), draws.integers(0, 2, (2, 100))
    with pytest.raises(ValueError, match="bits must be fair coins, one for each pair, got 0 ones among 200"):
        one_run_guesses(scores, 0 * bits, guesses=10)
    with pytest.raises(ValueError, match="bits must be tossed anew for each model, got two models with the same coins"):
        one_run_guesses(scores, bits[[0, 0]], guesses=10)
    assert one_run_guesses(scores[:, :3], bits[[0, 0], :3], guesses=2).pairs == 6, "alike by chance"


DELTA = 1e-5
NORMAL = NormalDist()


def test_values_of_an_independent_implementation():
    of_odds = one_run_epsilon_lower_bound(75, 100, 1_000, delta=1e-4, claim="dp")
    assert of_odds.epsilon == pytest.approx(0.67298466, abs=1e-5)  # Steinke et al. print 0.673
    bound = one_run_epsilon_lower_bound(95, 100, 1_000, delta=DELTA)
    assert bound.mu == pytest.approx(0.78681181, abs=1e-5)
    assert bound.epsilon == pytest.approx(3.32330049, abs=1e-4)


def right_of_gaussians(rng, pairs, mu):
    """How many of the r scores farthest from 0 have the sign of their coin, for every r."""
    scores = mu / 2 + rng.normal(size=pairs)
    return np.cumsum((scores > 0)[np.argsort(-np.abs(scores))])


@pytest.mark.parametrize(("mu", "gdp", "dp"), [(1.0, 3.61, 2.61), (2.0, 8.16, 4.99)])
def test_published_bounds_from_idealised_canaries(mu, gdp, dp):
    """Mahloujifar et al.: 1e5 canaries at δ = 1e-5, with the best number of guesses in hindsight."""
    rng, numbers = np.random.default_rng(0), np.geomspace(300, 6_000, 12).astype(int)
    best = {"gdp": [], "dp": []}
    for _ in range(2):
        right = right_of_gaussians(rng, 100_000, mu)
        for claim, found in best.items():
            tried = (
                one_run_epsilon_lower_bound(int(right[r - 1]), r, 100_000, delta=DELTA, claim=claim).epsilon
                for r in numbers.tolist()
            )
            found.append(max(tried))
    assert np.mean(best["gdp"]) == pytest.approx(gdp, rel=0.08)
    assert np.mean(best["dp"]) == pytest.approx(dp, rel=0.05)


@pytest.mark.parametrize(("pairs", "published"), [(1_000, 3.67), (10_000, 4.16)])
def test_published_bounds_from_independent_guesses(pairs, published):
    """Xiang et al.: μ = 1, so ε = 4.377."""
    right = np.random.default_rng(0).binomial(pairs, NORMAL.cdf(0.5), 100).tolist()
    found = [one_run_epsilon_lower_bound(v, pairs, pairs, delta=DELTA, claim="product").epsilon for v in right]
    assert np.mean(found) == pytest.approx(published, rel=0.03)


def odds(loss):
    return 1 / (1 + np.exp(-loss))


def responses(loss, shared=1.0):
    """Randomised response for all pairs if a public coin falls so, and else nothing; its ε and its μ.

    Its trade-off curve has straight lines between the points below, which G_μ is convex between.
    """
    error = 1 - odds(loss)
    mu = max(
        -NORMAL.inv_cdf(fpr) - NORMAL.inv_cdf(fnr)
        for fpr, fnr in [(shared * error, shared * error + 1 - shared), ((1 - shared) / 2 + shared * error,) * 2]
    )

    def draw(rng, pairs, guesses, audits):
        rate = np.where(rng.random(audits) < shared, 1 - error, 0.5)
        return rng.binomial(guesses, rate)

    return draw, {"mu": mu, "epsilon": loss}


def gaussians(mu):
    def draw(rng, pairs, guesses, audits):
        return np.array([right_of_gaussians(rng, pairs, mu)[guesses - 1] for _ in range(audits)])

    return draw, {"mu": mu, "epsilon": accounting.gdp_epsilon(mu, DELTA)}


MECHANISMS = {
    "randomised response at 1": responses(1.0),
    "randomised response at 3": responses(3.0),
    "randomised response at 3, or nothing": responses(3.0, shared=0.5),
    "rarely randomised response at 5": responses(5.0, shared=0.06),
    "a Gaussian, μ = 0.5": gaussians(0.5),
    "a Gaussian, μ = 2": gaussians(2.0),
}


def fewest_wrong(claim, truth, guesses, pairs, alpha, candidates=2):
    """The fewest right guesses whose bound exceeds the truth; more than all guesses if none does."""

    def wrong(correct):
        bound = one_run_epsilon_lower_bound(
            correct, guesses, pairs, delta=DELTA, claim=claim, alpha=alpha, candidates=candidates
        )
        return bound.epsilon > truth["epsilon"] if claim == "dp" else bound.mu > truth["mu"]

    low, high = 0, guesses + 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if wrong(middle) else (middle + 1, high)
    return low


def share_wrong(mechanism, claim, pairs, fraction, alpha, audits, seed=0):
    draw, truth = MECHANISMS[mechanism]
    guesses = round(fraction * pairs)
    right = draw(np.random.default_rng(seed), pairs, guesses, audits)
    return int((right >= fewest_wrong(claim, truth, guesses, pairs, alpha)).sum())


VALID = [
    (mechanism, claim, fraction)
    for mechanism in MECHANISMS
    for claim in ("gdp", "dp", "product")
    for fraction in ((1.0,) if claim == "product" else (0.1, 1.0))
    if claim != "product" or not ("rarely" in mechanism or "nothing" in mechanism)
]


@pytest.mark.parametrize(("mechanism", "claim", "fraction"), VALID)
@pytest.mark.parametrize(
    ("pairs", "audits"),
    [
        (1_000, 400),
        *(pytest.param(m, n, marks=pytest.mark.slow) for m, n in ((100, 20_000), (1_000, 20_000), (5_000, 10_000))),
    ],
)
def test_the_truth_is_exceeded_in_at_most_alpha_of_audits(mechanism, claim, fraction, pairs, audits):
    alpha = 0.1
    assert share_wrong(mechanism, claim, pairs, fraction, alpha, audits) <= binom.ppf(0.9999, audits, alpha)


def guessed_of_many(kind, rng, secrets, candidates, guesses, audits):
    """Right guesses of secrets of several candidates: the clearest are guessed, by the likeliest candidate."""
    if kind == "randomised response":  # at 2
        rate = np.exp(2) / (np.exp(2) + candidates - 1)
        return rng.binomial(guesses, rate, audits)
    if kind == "randomised response, or nothing":
        rate = np.where(rng.random(audits) < 0.5, np.exp(2) / (np.exp(2) + candidates - 1), 1 / candidates)
        return rng.binomial(guesses, rate)
    found = []
    for _ in range(audits):  # a Gaussian, the means of two candidates 2 apart
        scores = rng.normal(size=(secrets, candidates))
        scores[:, 0] += np.sqrt(2)
        second, best = np.sort(scores, axis=1)[:, -2:].T
        clearest = np.argsort(second - best)[:guesses]
        found.append(int((scores[clearest].argmax(axis=1) == 0).sum()))
    return np.array(found)


@pytest.mark.parametrize("candidates", [2, 3, 10, 100])
@pytest.mark.parametrize("fraction", [0.2, 1.0])
@pytest.mark.parametrize("kind", ["randomised response", "randomised response, or nothing", "Gaussian"])
@pytest.mark.parametrize("claim", ["gdp", "dp"])
@pytest.mark.parametrize("audits", [200, pytest.param(5_000, marks=pytest.mark.slow)])
def test_secrets_of_many_candidates_are_overestimated_in_at_most_alpha_of_audits(
    kind, claim, fraction, candidates, audits
):
    secrets, alpha = 100, 0.1
    guesses = round(fraction * secrets)
    mu = 2.0
    if kind != "Gaussian":  # of two candidates of randomised response, the larger of what its two kinks say
        high, low = np.exp([2, 0]) / (np.exp(2) + candidates - 1)
        mu = NORMAL.inv_cdf(high) - NORMAL.inv_cdf(low)
        mu = max(mu, -2 * NORMAL.inv_cdf(low)) if candidates == 2 else max(mu, NORMAL.inv_cdf(1 - low) * 2)
    epsilon = accounting.gdp_epsilon(mu, DELTA) if kind == "Gaussian" else 2.0
    truth = {"mu": mu, "epsilon": epsilon}
    right = guessed_of_many(kind, np.random.default_rng(7), secrets, candidates, guesses, audits)
    limit = fewest_wrong(claim, truth, guesses, secrets, alpha, candidates)
    assert (right >= limit).sum() <= binom.ppf(0.9999, audits, alpha)


@pytest.mark.parametrize("candidates", [3, 10])
def test_independent_guesses_of_many_candidates_keep_the_promise(candidates):
    right = guessed_of_many("Gaussian", np.random.default_rng(5), 100, candidates, 100, 400)
    limit = fewest_wrong("product", {"mu": 2.0}, 100, 100, 0.1, candidates)
    assert (right >= limit).sum() <= binom.ppf(0.9999, 400, 0.1)


def test_secrets_that_leak_now_and_then_are_allowed_for():
    """With probability δ each a secret is told: the bound of (ε, δ)-DP may still be wrong in α of audits only."""
    rng, delta, audits, alpha, pairs, candidates = np.random.default_rng(3), 5e-3, 2_000, 0.1, 100, 10
    rate = np.e / (np.e + candidates - 1)
    right = rng.binomial(pairs, delta + (1 - delta) * rate, audits)
    bounds = {
        correct: one_run_epsilon_lower_bound(
            correct, pairs, pairs, delta=delta, claim="dp", alpha=alpha, candidates=candidates
        ).epsilon
        for correct in set(right.tolist())
    }
    wrong = sum(bounds[correct] > 1 for correct in right.tolist())
    assert wrong <= binom.ppf(0.9999, audits, alpha)


@pytest.mark.parametrize("claim", ["gdp", "dp", "product"])
def test_two_candidates_are_a_pair_and_more_show_more(claim):
    for correct in (150, 190, 200):
        counts = (correct, 200, 200)
        pair = one_run_epsilon_lower_bound(*counts, delta=DELTA, claim=claim)
        assert one_run_epsilon_lower_bound(*counts, delta=DELTA, claim=claim, candidates=2) == pair
        found = [
            one_run_epsilon_lower_bound(*counts, delta=DELTA, claim=claim, candidates=k).epsilon
            for k in (2, 3, 10, 100)
        ]
        assert (np.diff(found) > 0).all()


@pytest.mark.parametrize("claim", ["gdp", "dp", "product"])
def test_chance_among_many_candidates_shows_nothing(claim):
    bound = one_run_epsilon_lower_bound(20, 200, 200, delta=DELTA, claim=claim, candidates=10)
    assert bound.epsilon == 0
    assert "fewer guesses" not in bound.note
    assert bound.details["candidates"] == 10
    assert "20 of 200 right, of 200 secrets of 10 candidates" in str(bound)
    none = one_run_epsilon_lower_bound(0, 200, 200, delta=DELTA, claim=claim, candidates=10)
    assert none.epsilon == 0


def test_all_right_of_many_candidates_is_what_a_binomial_says():
    bound = one_run_epsilon_lower_bound(60, 60, 60, delta=1e-12, claim="dp", candidates=10)
    assert np.exp(bound.epsilon) / (np.exp(bound.epsilon) + 9) == pytest.approx(0.05 ** (1 / 60), rel=1e-6)


def test_the_recursion_comes_near_alpha_where_one_coin_decides_for_all():
    """With probability 0.04 all pairs speak: hardly less than the level that the worst such coin could reach."""
    draw, truth = responses(5.0, shared=0.04)
    right = draw(np.random.default_rng(0), 1_000, 1_000, 1_000)
    bounds = {
        correct: one_run_epsilon_lower_bound(correct, 1_000, 1_000, delta=DELTA).mu for correct in set(right.tolist())
    }
    found = np.array([bounds[correct] for correct in right.tolist()])
    assert 0.02 < (found > 0.8 * truth["mu"]).mean() < 0.06
    assert (found > truth["mu"]).mean() <= 0.05


@pytest.mark.parametrize("pairs", [100, 1_000, 5_000])
def test_independence_is_wrong_in_every_second_audit_if_a_public_coin_decides_for_all(pairs):
    mechanism, audits = "randomised response at 3, or nothing", 1_000
    wrong = {claim: share_wrong(mechanism, claim, pairs, 1.0, 0.05, audits) for claim in ("product", "gdp", "dp")}
    assert 0.4 * audits < wrong["product"] < 0.6 * audits
    assert max(wrong["gdp"], wrong["dp"]) <= binom.ppf(0.9999, audits, 0.05)


def test_the_best_of_several_numbers_of_guesses_keeps_the_promise():
    fractions, alpha, audits, pairs, mu = (0.03, 0.1, 0.3), 0.1, 1_000, 1_000, 1.0
    numbers = [round(fraction * pairs) for fraction in fractions]
    limits = [fewest_wrong("gdp", {"mu": mu}, r, pairs, alpha / len(fractions)) for r in numbers]
    rng = np.random.default_rng(0)
    right = np.stack([right_of_gaussians(rng, pairs, mu)[np.array(numbers) - 1] for _ in range(audits)])
    assert (right >= limits).any(axis=1).sum() <= binom.ppf(0.9999, audits, alpha)


@pytest.mark.parametrize("claim", ["gdp", "dp", "product"])
def test_several_numbers_of_guesses_share_alpha(claim):
    three = ([800] * 3, [1_000] * 3) if claim == "product" else ([9, 95, 800], [10, 100, 1_000])
    both = one_run_epsilon_lower_bound(*three, 1_000, delta=DELTA, claim=claim, alpha=0.06)
    each = [
        one_run_epsilon_lower_bound(v, r, 1_000, delta=DELTA, claim=claim, alpha=0.02)
        for v, r in zip(*three, strict=True)
    ]
    best = max(each, key=lambda bound: bound.epsilon)
    assert (both.epsilon, both.details["guesses"]) == (best.epsilon, best.details["guesses"])
    assert both.details["guesses"] in (100, 1_000)


@pytest.mark.parametrize("claim", ["gdp", "dp", "pld", "product"])
def test_more_right_guesses_never_show_less(claim):
    options = {"sample_rate": 1.0, "steps": 3, "adjacency": "substitute"} if claim == "pld" else {}
    guesses = 400 if claim == "product" else 60
    found = [
        one_run_epsilon_lower_bound(v, guesses, 400, delta=DELTA, claim=claim, **options).epsilon
        for v in range(guesses // 3, guesses + 1)
    ]
    assert found[0] == 0 < found[-1]
    assert (np.diff(found) >= -1e-6).all()


@pytest.mark.parametrize("claim", ["gdp", "dp", "product"])
def test_more_confidence_shows_less(claim):
    found = [
        one_run_epsilon_lower_bound(380, 400, 400, delta=DELTA, claim=claim, alpha=alpha).epsilon
        for alpha in (0.4, 0.05, 1e-3)
    ]
    assert (np.diff(found) < 0).all()


def test_the_same_guesses_of_more_pairs_show_less_under_delta():
    found = [one_run_epsilon_lower_bound(95, 100, m, delta=1e-4, claim="dp").epsilon for m in (100, 1_000, 3_000)]
    assert (np.diff(found) < 0).all()


def test_noise_at_full_batch_is_a_claim_of_gdp():
    gdp = one_run_epsilon_lower_bound(95, 100, 1_000, delta=DELTA)
    pld = one_run_epsilon_lower_bound(
        95, 100, 1_000, delta=DELTA, claim="pld", sample_rate=1.0, steps=100, adjacency="substitute"
    )
    assert pld.epsilon == pytest.approx(gdp.epsilon)
    assert pld.noise_multiplier == pytest.approx(2 * 10 / gdp.mu)
    assert (pld.mu, pld.assumes, pld.valid) == (None, "mechanism", True)


def test_claims_about_a_sampled_training_hold_for_pairs_of_that_training(sampled):
    noise = 4.0
    truth = accounting.epsilon(noise_multiplier=noise, delta=DELTA, **sampled)
    grid = np.linspace(0, 1, 20_001)
    curve = accounting.tradeoff(grid, noise_multiplier=noise, **sampled)
    # A score of z is the false-positive rate at which it is just called z; f is its own inverse.
    rate = np.interp(np.random.default_rng(0).random(5_000), grid, curve)
    mirrored = np.interp(rate, grid, curve)
    right = (rate < mirrored)[np.argsort(-np.maximum(rate, mirrored))]
    counted = int(right[:250].sum())
    bound = one_run_epsilon_lower_bound(counted, 250, 5_000, delta=DELTA, claim="pld", **sampled)
    assert 0.4 * truth < bound.epsilon < truth


@pytest.mark.parametrize(
    ("claim", "assumes"), [("gdp", "gdp"), ("dp", "none"), ("product", "product"), ("pld", "mechanism")]
)
def test_bounds_say_what_they_assume(claim, assumes):
    options = {"sample_rate": 1.0, "steps": 3, "adjacency": "substitute"} if claim == "pld" else {}
    bound = one_run_epsilon_lower_bound(180, 200, 200, delta=DELTA, claim=claim, **options)
    assert (bound.claim, bound.assumes, bound.valid, bound.details["guesses"]) == (claim, assumes, True, 200)
    assert bound.details == {"guesses": 200, "correct": 180, "pairs": 200}
    assert ("independent guesses" in bound.note) == (claim == "product")
    assert (bound.mu is None) == (claim in ("dp", "pld"))


def test_delta_that_takes_much_is_named():
    bound = one_run_epsilon_lower_bound(90, 100, 1_000, delta=5e-4, claim="dp")
    assert bound.epsilon > 0
    assert "2 * pairs * delta = 1" in bound.note
    assert "claims 'gdp' and 'pld' do not lose this" in bound.note
    assert not one_run_epsilon_lower_bound(90, 100, 1_000, delta=1e-6, claim="dp").note
    many = one_run_epsilon_lower_bound(90_000, 100_000, 100_000, delta=1e-5, claim="dp")  # 2 pairs δ = 2, of 1e5
    assert many.epsilon > 2
    assert not many.note


@pytest.mark.parametrize(
    ("counts", "options", "message"),
    [
        ((0, 100, 1_000), {}, "fewer guesses are right than chance allows"),
        ((50, 100, 1_000), {}, "the guesses refute no claim"),
        ((3, 3, 1_000), {}, "3 guesses cannot show an epsilon"),
        ((65, 100, 100), {"delta": 0.4}, "the refuted claims have epsilon 0"),
    ],
)
def test_a_bound_of_0_says_why(counts, options, message):
    bound = one_run_epsilon_lower_bound(*counts, **{"delta": DELTA, **options})
    assert bound.epsilon == 0
    assert message in bound.note


@pytest.mark.parametrize(
    ("counts", "options", "message"),
    [
        ((11, 10, 100), {}, r"correct must be at most as many as guesses, .*, got \[11\] of \[10\]"),
        ((9, 101, 100), {}, "guesses must be whole numbers >= 1 and <= 100, got 101"),
        ((9, 10, 100), {"claim": "product"}, "guesses must be as many as pairs, 100, for claim 'product', got 10"),
    ],
)
def test_bad_arguments_are_refused_by_name(counts, options, message):
    with pytest.raises(ValueError, match=message):
        one_run_epsilon_lower_bound(*counts, **{"delta": DELTA, **options})
