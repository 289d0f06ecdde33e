import numpy as np
import pytest

from studies.batches import divisors


def test_only_the_expected_size_keeps_what_add_remove_promises_and_all_keep_substitution():
    asked = {"sigma": 1.0, "steps": 600, "delta": 1e-5, "seed": 0}
    added, replaced = (divisors.bounds(adjacency, **asked) for adjacency in ("add_remove", "substitute"))
    assert added["expected size"] < added["claimed"] < min(added["number of records"], added["pairs"])
    assert max(replaced[divisor] for divisor in divisors.WORST) < replaced["claimed"]


def test_the_number_of_records_is_seen_in_the_noise_of_many_parameters():
    assert divisors.told_by_scale(sigma=50.0, parameters=10_000, steps=50, seed=0) == 1
    assert divisors.told_by_scale(sigma=50.0, parameters=1, steps=500, seed=0) < 0.7


@pytest.mark.parametrize("divisor", divisors.WORST)
def test_steps_without_noise_are_those_by_hand(divisor):
    rows = np.array([[3.0, 0.0], [0.0, 0.5], [-1.0, 0.0], [0.0, 4.0]])
    sums = {"expected size": np.array([0, 1.5]) / 8, "number of records": np.array([0, 1.5]) / 4}
    pairs = np.array([[1.5, 0.25], [-0.5, 2.0]])
    sums["pairs"] = (pairs / np.linalg.norm(pairs, axis=1, keepdims=True)).sum(axis=0) / 8
    np.testing.assert_allclose(divisors.step(divisor, 0.0, 0)(rows), sums[divisor])
