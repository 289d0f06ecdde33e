import pytest

from dpsub.accounting import epsilon, noise_multiplier


@pytest.mark.parametrize("adjacency", ["substitute", "add_remove"])
@pytest.mark.parametrize("q", [1.0, 0.25, 0.02])
def test_noise_multiplier_is_the_smallest_that_meets_the_target(q, adjacency):
    setting = {"sample_rate": q, "steps": 300, "delta": 1e-5, "adjacency": adjacency}
    sigma = noise_multiplier(target_epsilon=4.0, **setting)
    assert epsilon(noise_multiplier=sigma, **setting) <= 4.0 + 1e-9
    assert epsilon(noise_multiplier=sigma * (1 - 1e-5), **setting) > 4.0


def test_calibration_says_when_no_noise_is_needed():
    with pytest.raises(ValueError, match="delta must be smaller than the probability of ever being sampled"):
        noise_multiplier(target_epsilon=1, sample_rate=1e-8, steps=10, delta=1e-5, adjacency="substitute")


@pytest.mark.slow
def test_calibration_where_a_grid_is_as_fine_as_it_gets():
    asked = {"sample_rate": 3e-5, "steps": 177, "delta": 1e-5, "adjacency": "add_remove"}
    sigma = noise_multiplier(target_epsilon=9.5, **asked)
    assert epsilon(noise_multiplier=sigma, **asked) <= 9.5
    assert epsilon(noise_multiplier=sigma * (1 - 2e-6), **asked) > 9.5
