import numpy as np
import pytest
from own_code.known_truths import Drifting, Gaussian, strongest_scores

from dpsub.accounting import gdp_epsilon
from dpsub.estimators import wealth_of_bets
from dpsub.estimators.lessons import FIRST

DELTA = 1e-5


def observed(truth, count, seed):
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 2, count)
    return strongest_scores(truth, bits, rng), bits


@pytest.mark.parametrize("truth", [Gaussian(1.0), Drifting(1.0)], ids=lambda one: type(one).__name__)
def test_wealth_against_a_true_claim_does_not_grow_on_average_and_against_a_false_one_it_does(truth):
    paths = {epsilon: [] for epsilon in (2.0, gdp_epsilon(1.0, DELTA))}
    for seed in range(40):
        for epsilon, found in paths.items():
            found.append(wealth_of_bets(*observed(truth, 600, seed), epsilon=epsilon, delta=DELTA))
    false, true = (np.exp(found) for found in paths.values())
    assert true.shape == (40, 600)
    assert (true[:, :FIRST] == 1).all()
    last = true[:, -1]
    assert last.mean() <= 1 + 4 * last.std() / np.sqrt(len(last))
    assert (true.max(axis=1) >= 20).mean() <= 0.2
    if truth == Gaussian(1.0):  # the places of the others hide the difference from thresholds
        assert (false.max(axis=1) >= 20).mean() > 0.8


def test_a_claim_is_refuted_when_its_bound_is_reached(bounded):
    scores, bits = observed(Gaussian(1.0), 800, 5)
    bound = bounded(scores, bits, threshold="bets")
    below, above = (
        wealth_of_bets(scores, bits, epsilon=share * bound.epsilon, delta=DELTA).max() >= np.log(20)
        for share in (0.8, 1.25)
    )
    assert (below, above) == (True, False)


def test_claims_of_epsilon_delta_are_harder_to_refute():
    seen = observed(Gaussian(1.0), 800, 5)
    gdp, dp = (wealth_of_bets(*seen, epsilon=2.0, delta=DELTA, method=method)[-1] for method in ("gdp", "dp"))
    assert gdp > dp


def test_no_more_than_what_is_learnt_from_leaves_the_wealth_as_it_is():
    scores, bits = observed(Gaussian(1.0), 40, 5)
    np.testing.assert_array_equal(wealth_of_bets(scores, bits, epsilon=1.0, delta=DELTA), np.zeros(40))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"epsilon": 0}, "epsilon must be > 0 and <= 100, got 0"),
        ({"epsilon": 101}, "epsilon must be > 0 and <= 100, got 101"),
        ({"delta": 1}, "delta must be > 0 and < 1, got 1"),
        ({"method": "pld"}, "method must be one of 'gdp', 'dp', got 'pld'"),
        ({"scores": np.zeros((2, 2))}, r"scores must have shape \(observations,\), got \(2, 2\): give one column"),
        ({"scores": [0.0, np.nan]}, "scores must"),
        ({"bits": [0, 0]}, "bits must"),
    ],
)
def test_what_cannot_be_bet_on_is_named(changed, message):
    with pytest.raises(ValueError, match=message):
        wealth_of_bets(**{"scores": [0.1, 0.2], "bits": [0, 1], "epsilon": 1.0, "delta": DELTA} | changed)
