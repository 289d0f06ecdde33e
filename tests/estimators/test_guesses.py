import numpy as np
import pytest
import xarray as xr

from dpsub.estimators import count_guesses

SCORES = np.array([0.3, -2.0, 1.0, -0.1])
COINS = np.array([0, 1, 1, 0])


def test_the_scores_farthest_from_zero_are_guessed_first():
    correct, guesses = count_guesses(SCORES, COINS, [0.25, 0.5, 0.75, 1])
    assert guesses.tolist() == [1, 2, 3, 4]
    assert correct.tolist() == [1, 1, 2, 2]


def test_one_fraction_is_one_count_and_all_pairs_are_the_default():
    assert [part.tolist() for part in count_guesses(SCORES, COINS)] == [[2], [4]]
    assert [part.tolist() for part in count_guesses(SCORES, COINS, 0.5)] == [[1], [2]]
    assert [part.tolist() for part in count_guesses(SCORES, COINS, 1e-9)] == [[1], [1]]


def test_nothing_changes_if_the_records_of_all_pairs_are_exchanged():
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2, 500)
    scores, fractions = rng.normal(size=500) + (bits == 0) - 0.5, np.linspace(0.1, 1, 10)
    ways = (scores, bits), (-scores, 1 - bits), (xr.DataArray(scores, dims="pair"), xr.DataArray(bits, dims="pair"))
    counts = [np.stack(count_guesses(*way, fractions)) for way in ways]
    for other in counts[1:]:
        np.testing.assert_array_equal(other, counts[0])
    assert counts[0][0, 0] > 0.7 * counts[0][1, 0]


@pytest.mark.parametrize("score", [1.0, 0.0, -1.0])
def test_pairs_in_the_order_of_their_coins_tell_nothing_if_scores_are_equal(score):
    correct, guesses = count_guesses(np.full(2_000, score), np.repeat([0, 1], 1_000), [0.1, 0.3])
    assert (abs(correct - guesses / 2) < 4 * np.sqrt(guesses / 4)).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.zeros((4, 2)), COINS), r"scores must have shape \(pairs,\), got \(4, 2\)"),
        ((SCORES * np.nan, COINS), "scores must not be NaN"),
        ((SCORES, COINS[:3]), r"bits must have shape \(4,\)"),
        ((SCORES, [0, 1, 2, 0]), "bits must be 0"),
        ((SCORES, np.zeros(4)), "bits must hold runs of both worlds"),
        ((np.arange(1_000), np.arange(1_000) > 700), "bits must be those of a fair coin, got 701 of 1,000 pairs"),
        ((SCORES, COINS, 0), "fractions must be one or several numbers above 0 and at most 1, got 0"),
        ((SCORES, COINS, 1.5), "fractions must be from 0 to 1, got 1.5"),
        ((SCORES, COINS, []), "fractions must be one or several numbers"),
        ((SCORES, COINS, [[0.5]]), "fractions must be one or several numbers"),
        ((SCORES, COINS, "all"), "fractions must be numbers"),
    ],
)
def test_bad_arguments_are_refused_by_name(arguments, message):
    with pytest.raises(ValueError, match=message):
        count_guesses(*arguments)
