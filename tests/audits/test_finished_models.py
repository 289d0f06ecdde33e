import numpy as np
import pytest
from scipy.stats import binom

import dpsub
from dpsub.estimators import one_run_epsilon_lower_bound

DELTA = 1e-5
AUDITS = 20
MOST = int(binom.isf(1e-3, AUDITS, 0.05))  # an audit that is wrong in 5 % of cases exceeds this once in 1,000


def two_classes(share):
    """(N, 2), with the probability of label 1 for each record."""
    share = np.asarray(share, float)
    return np.stack([1 - share, share], axis=1)


def of_release(released, strength=1.0):
    """Logits of a model that releases a label for each record."""
    return strength * np.eye(2)[released]


def randomised(labels, epsilon, draws):
    """Each label is kept with the odds e^ε."""
    return np.where(draws.random(len(labels)) < 1 / (1 + np.exp(-epsilon)), labels, 1 - labels)


def turned_of(q, tolerance):
    """What the tolerance allows with this distribution for all of some records, which have the rarest label."""
    return dpsub.proxy_labels([int(np.argmin(q))] * 9, [q] * 9, tolerance=tolerance, seed=0).turned


def bound_of(labels, share, logits, tolerance, seed, claim="dp", **asked):
    drawn = dpsub.proxy_labels(labels, two_classes(share), tolerance=tolerance, seed=seed)
    return dpsub.bound(drawn.scores(logits), delta=DELTA, claim=claim, **asked)


def exceeding(truth, epsilon, tolerance, *, records=400, believed=0.5, knows=False, claim="dp", audits=AUDITS):
    """In how many audits of randomised response the bound is above its ε."""
    found = []
    for seed in range(audits):
        draws = np.random.default_rng(seed)
        labels = (draws.random(records) < truth).astype(int)
        logits = of_release(randomised(labels, epsilon, draws), epsilon + 1e-6)
        if knows:  # what is frequent in truth, which needs no leak
            logits[:, 1] += np.log(truth / (1 - truth))
        logits += 1e-9 * draws.random(logits.shape)
        share = np.full(records, believed)
        found.append(bound_of(labels, share, logits, tolerance, seed, claim, rule=records // 4).epsilon)
    return int(np.sum(np.array(found) > epsilon + 1e-9)), np.array(found)


def test_own_labels_stand_where_the_coins_say_and_equal_ones_are_left_out():
    draws = np.random.default_rng(0)
    own = draws.integers(0, 4, 2000)
    proxy = np.tile([0.1, 0.2, 0.3, 0.4], (2000, 1))
    drawn = dpsub.proxy_labels(own, proxy, seed=3)
    its, other = drawn.labels[np.arange(len(drawn.bits)), drawn.bits], drawn.labels[:, ::-1]
    other = other[np.arange(len(drawn.bits)), drawn.bits]
    assert np.array_equal(its, own[drawn.records])
    assert (its != other).all()
    assert abs(drawn.bits.mean() - 0.5) < 4 * 0.5 / np.sqrt(len(drawn.bits))
    # Of records with own label 0 the others are drawn as the proxy says, without 0.
    counts = np.bincount(other[its == 0], minlength=4)
    expected = np.array([0, 2, 3, 4]) / 9
    assert abs(counts / counts.sum() - expected).max() < 4 * 0.5 / np.sqrt(counts.sum())
    assert np.array_equal(drawn.labels, dpsub.proxy_labels(own, proxy, seed=3).labels)
    assert not np.array_equal(drawn.bits[:50], dpsub.proxy_labels(own, proxy, seed=4).bits[:50])


def test_scores_are_differences_of_log_odds_less_the_references():
    logits, reference = np.random.default_rng(1).normal(size=(2, 40, 3))
    drawn = dpsub.proxy_labels(np.arange(40) % 3, np.full((40, 3), 1 / 3), proxy="thirds", tolerance=0.0, seed=0)
    result = drawn.scores(logits, reference=reference)

    def log_odds(table):
        p = np.exp(table) / np.exp(table).sum(axis=1, keepdims=True)
        return np.log(p / (1 - p))

    naive = log_odds(logits) - log_odds(reference)
    naive = naive[drawn.records, drawn.labels[:, 0]] - naive[drawn.records, drawn.labels[:, 1]]
    np.testing.assert_allclose(result.score[0], naive, atol=1e-5)
    assert np.array_equal(result.bit[0], drawn.bits)
    assert result.attrs["proxy"] == "thirds"
    assert result.attrs["adjacency"] == "substitute"


def test_with_an_exact_proxy_the_bound_is_that_of_one_run():
    labels = np.random.default_rng(0).integers(0, 2, 300)
    drawn = dpsub.proxy_labels(labels, two_classes(np.full(300, 0.5)), tolerance=0.0, proxy="coins", seed=0)
    pairs = len(drawn.bits)
    found = dpsub.bound(drawn.scores(of_release(labels)), delta=DELTA, rule=pairs)
    expected = one_run_epsilon_lower_bound(pairs, pairs, pairs, delta=DELTA)
    assert found.epsilon == expected.epsilon > 0
    assert (found.valid, found.assumes, found.details["proxy"], found.details["allowed"]) == (True, "proxy", "coins", 0)
    assert "assumes that labels follow the proxy 'coins', beside what 'gdp' assumes; valid" in str(found)
    wrong = dpsub.bound(drawn.scores(-of_release(labels)), delta=DELTA, rule=pairs)
    assert wrong.epsilon == 0


def test_the_tolerance_takes_right_guesses_and_a_tenth_of_alpha():
    labels = np.random.default_rng(0).integers(0, 2, 1000)
    drawn = dpsub.proxy_labels(labels, two_classes(np.full(1000, 0.5)), tolerance=0.05, seed=0)
    pairs, allowed = len(drawn.bits), int(binom.isf(0.005, 1000, 0.025))
    found = dpsub.bound(drawn.scores(of_release(labels)), delta=DELTA, rule=(200, pairs))
    expected = one_run_epsilon_lower_bound(
        (200 - allowed, pairs - allowed), (200, pairs), pairs, delta=DELTA, alpha=0.045
    )
    assert found.epsilon == expected.epsilon > 0
    assert (found.details["allowed"], found.details["tolerance"], found.alpha) == (allowed, 0.05, 0.05)
    assert found.details["correct"] == found.details["guesses"]
    assert "the proxy 'proxy' to within 0.05, beside" in str(found)


def test_bounds_fall_to_0_as_the_tolerance_rises():
    labels = np.random.default_rng(0).integers(0, 2, 1000)
    found = [bound_of(labels, np.full(1000, 0.5), of_release(labels), tau, 0) for tau in (0, 0.01, 0.05, 0.2, 1)]
    epsilons = [one.epsilon for one in found]
    assert epsilons == sorted(epsilons, reverse=True)
    assert epsilons[0] > epsilons[2] > epsilons[-1] == 0
    assert "that a proxy may cause" in found[-1].note


def test_without_a_tolerance_no_bound_is_valid():
    labels = np.random.default_rng(0).integers(0, 2, 300)
    found = bound_of(labels, np.full(300, 0.5), of_release(labels), None, 0)
    assert found.epsilon > 0
    assert not found.valid
    assert "give proxy_labels a tolerance" in found.note


def test_no_shift_of_a_distribution_turns_more_coins_than_allowed():
    draws = np.random.default_rng(0)
    for _ in range(200):
        classes = int(draws.integers(2, 6))
        p, q = draws.dirichlet(np.full(classes, 0.5), 2)
        tolerance = abs(p - q).sum() / 2
        products = np.outer(p, q)
        turned = abs(products - products.T).sum() / 4
        allowed = turned_of(q, tolerance)
        assert turned <= allowed + 1e-12
        if classes == 2:
            assert turned == pytest.approx(allowed)
    # One class loses to another, both of them rare: nothing else turns as many.
    q = np.array([0.04, 0.06, 0.5, 0.4])
    p = q + np.array([-0.04, 0.04, 0, 0])
    products = np.outer(p, q)
    assert abs(products - products.T).sum() / 4 == pytest.approx(turned_of(q, 0.04))


@pytest.mark.parametrize("epsilon", [0.0, 1.0])
def test_an_exact_proxy_is_wrong_in_five_of_a_hundred_audits_at_most(epsilon):
    """Randomised response has this ε exactly, and its guesses attain the bound."""
    wrong, found = exceeding(0.5, epsilon, 0.0)
    assert wrong <= MOST
    assert found.mean() > 0.4 * epsilon


def test_a_wrong_proxy_is_a_false_alarm_unless_its_tolerance_is_given():
    """The model has learnt nothing of single labels, but knows that label 1 is more frequent than the proxy says."""
    alarms, _ = exceeding(0.7, 0.0, 0.0, knows=True)
    assert alarms > AUDITS / 2
    healed, _ = exceeding(0.7, 0.0, 0.2, knows=True)
    assert healed <= MOST


def test_a_level_is_checked_before_a_tenth_of_it_is_left_to_the_proxy():
    drawn = dpsub.proxy_labels([0, 1] * 10, [[0.5, 0.5]] * 20, tolerance=0.1, seed=0)
    with pytest.raises(ValueError, match="alpha must be > 1e-12 and < 0.5, got 0.55"):
        dpsub.bound(drawn.scores(np.zeros((20, 2))), delta=DELTA, alpha=0.55)


@pytest.mark.slow
@pytest.mark.parametrize(("claim", "epsilon"), [("dp", 0.0), ("dp", 0.5), ("dp", 2.0), ("gdp", 0.0)])
@pytest.mark.parametrize("off", [0.0, 0.02, 0.1])
def test_the_tolerance_covers_leaks_and_mistakes_together(claim, epsilon, off):
    audits = 400
    wrong, _ = exceeding(0.5 + off, epsilon, off, records=1500, knows=True, claim=claim, audits=audits)
    assert wrong <= binom.isf(1e-3, audits, 0.05)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"labels": [0, 2, 1]}, "labels must be whole numbers >= 0 and <= 1, got 2"),
        ({"labels": [0, 1]}, r"labels must have shape \(3,\), got \(2,\)"),
        ({"probabilities": [[0.5, 0.6]] * 3}, r"probabilities must .*add up to 1 .*got \[0.5, 0.6\]"),
        ({"probabilities": [[np.nan, 1.0]] * 3}, r"probabilities must be finite .*got nan \(3 of 6 values\)"),
        ({"probabilities": [[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]}, "probabilities must leave a doubt"),
    ],
)
def test_what_is_no_proxy_is_refused_by_name(change, told):
    given = {"labels": [0, 1, 1], "probabilities": [[0.5, 0.5]] * 3, "seed": 0} | change
    with pytest.raises(ValueError, match=told):
        dpsub.proxy_labels(**given)


def test_logits_of_other_records_are_refused():
    drawn = dpsub.proxy_labels([0, 1] * 10, [[0.5, 0.5]] * 20, seed=0)
    with pytest.raises(ValueError, match=r"logits must have shape \(20, 2\), got \(19, 2\)"):
        drawn.scores(np.zeros((19, 2)))
    with pytest.raises(ValueError, match=r"reference must be finite numbers, got inf \(1 of 40 values\)"):
        drawn.scores(np.zeros((20, 2)), reference=np.where(np.arange(40).reshape(20, 2) == 3, np.inf, 0.0))
