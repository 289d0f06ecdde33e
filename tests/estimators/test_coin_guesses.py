import numpy as np
import pytest
import torch
from scipy.stats import binom, norm

from dpsub.estimators import Guesses, one_run_guesses


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


@pytest.mark.parametrize("centre", [0.0, "median", "sides"])
def test_several_numbers_of_guesses_are_as_one_after_the_other(centre):
    draws = np.random.default_rng(4)
    scores, bits = draws.normal(size=60), draws.integers(0, 2, 60)
    found = one_run_guesses(scores, bits, guesses=[2, 10, 60], centre=centre)
    each = [one_run_guesses(scores, bits, guesses=number, centre=centre) for number in (2, 10, 60)]
    assert found == Guesses(tuple(one.correct for one in each), (2, 10, 60), 60)
    assert one_run_guesses(scores, bits, guesses=np.array([10]), centre=centre) == Guesses(
        (each[1].correct,), (10,), 60
    )


def test_perfect_scores_are_all_guessed_right_and_turned_ones_all_wrong():
    bits = np.array([0, 1] * 20)
    scores = 1.0 - 2 * bits
    assert one_run_guesses(scores, bits, guesses=40).correct == 40
    assert one_run_guesses(-scores, bits, guesses=40).correct == 0
    assert one_run_guesses(scores + 9, bits, guesses=40).correct == 20
    for centre in ("median", "sides"):
        assert one_run_guesses(scores + 9, bits, guesses=40, centre=centre).correct == 40


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


def test_sides_take_as_many_of_the_highest_as_of_the_lowest():
    scores, bits = [9.0, 8.0, 7.0, 6.0, -1.0, -2.0], [0, 1, 0, 1, 1, 0]
    assert one_run_guesses(scores, bits, guesses=4, centre="sides").correct == 2
    assert one_run_guesses(scores, bits, guesses=4).correct == 2
    assert one_run_guesses(scores, bits, guesses=6, centre="sides").correct == 4
    with pytest.raises(ValueError, match="guesses must be even for centre 'sides', half of them for z, got 3"):
        one_run_guesses(scores, bits, guesses=3, centre="sides")


@pytest.mark.parametrize("centre", [0.0, "sides"])
def test_among_equal_scores_the_order_of_pairs_does_not_count(centre):
    bits = np.repeat([0, 1], 500)
    found = one_run_guesses(np.zeros(1_000), bits, guesses=500, centre=centre)
    assert 1e-3 < binom.cdf(found.correct, 500, 0.5) < 1 - 1e-3
    assert one_run_guesses(np.zeros(1_000), bits, guesses=500, centre=centre) == found


@pytest.mark.parametrize("centre", [0.0, "median", "sides"])
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


def test_datasets_lists_and_tensors_are_taken():
    scores, bits = [3.0, -2.0, 0.5], [0, 1, 1]
    expected = Guesses(2, 2, 3)
    assert one_run_guesses(torch.tensor(scores), torch.tensor(bits), guesses=2) == expected
    assert one_run_guesses(np.array(scores, np.float32), np.array(bits, bool), guesses=np.int64(2)) == expected


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"guesses": 5}, "guesses must be at most the number of pairs, 4, got 5"),
        ({"guesses": 0}, "guesses must be >= 1, got 0"),
        ({"guesses": [2, 5]}, "guesses must be at most the number of pairs, 4, got 5"),
        ({"guesses": []}, "guesses must be a whole number, or a sequence of one or more, got none"),
        ({"guesses": "2"}, "guesses must be a whole number"),
        ({"centre": "mean"}, "centre must be one of 'median', 'sides', got 'mean'"),
        ({"centre": np.nan}, "centre must be finite, got nan"),
        ({"centre": np.zeros(4)}, r"centre must be a finite number, got array\(\[0., 0., 0., 0.\]\)"),
        ({"centre": np.array(["sides"])}, "centre must be a finite number, got array"),
        ({"centre": [0.0]}, r"centre must be a finite number, got \[0.0\]"),
        ({"guesses": b"\2"}, r"guesses must be a whole number >= 1, got b'\\x02'"),
        ({"guesses": bytearray(b"\2")}, r"guesses must be a whole number, or a sequence of one or more, got bytearray"),
        ({"guesses": {2}}, r"guesses must be a whole number, or a sequence of one or more, got \{2\}"),
        ({"guesses": [[1], [1, 2]]}, r"guesses must be a whole number >= 1, got \[1\]"),
        ({"scores": [1.0, 2.0, np.nan, 3.0]}, "scores must be finite, got 1 that are not"),
        ({"scores": [1.0, 2.0]}, r"bits must have the shape of scores, \(2,\), got \(4,\)"),
        ({"scores": 3.0}, r"scores must have shape \(pairs,\) or \(models, pairs\), neither of them 0, got \(\)"),
        ({"scores": []}, r"scores must have shape \(pairs,\) or \(models, pairs\), neither of them 0, got \(0,\)"),
        ({"scores": ["a"]}, "scores must be an array of numbers, got a list"),
        ({"bits": [0, 1, 2, 1]}, r"bits must be 0 \(z was in the slot\) or 1 \(z_prime\), got 2"),
        ({"bits": [0, 1, -1, 1]}, "bits must be 0"),
        ({"bits": None}, "bits must be an array of numbers, got a NoneType"),
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
