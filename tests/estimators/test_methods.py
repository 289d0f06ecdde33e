import numpy as np
import pytest

from dpsub.estimators import epsilon_lower_bound

SCORES, BITS = [0.1, 0.4, 0.2, 0.3], [0, 1, 0, 1]
SAMPLED = {"method": "pld", "sample_rate": 0.0625, "steps": 500, "adjacency": "substitute"}


def test_pld_takes_the_steps_at_which_the_scores_were_observed():
    rng = np.random.default_rng(16)
    bits = rng.integers(0, 2, 600)
    scores = rng.normal(size=(600, 2)) + np.outer(bits == 0, [1.0, 1.5])
    mechanism = {"delta": 1e-5, "method": "pld", "sample_rate": 0.5, "adjacency": "substitute"}
    both = epsilon_lower_bound(scores, bits, steps=[10, 20], **mechanism)
    assert both == [epsilon_lower_bound(scores[:, i], bits, steps=10 * (i + 1), **mechanism) for i in range(2)]
    assert both[0] != epsilon_lower_bound(scores[:, 0], bits, steps=20, **mechanism)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sample_rate": 0.1}, "sample_rate.* for method 'pld'.*, got method 'gdp'"),
        ({"method": "pld", "steps": 3}, "'pld' needs .* got them without adjacency, sample_rate"),
        ({**SAMPLED, "noise_multiplier": 1.0}, "with noise_multiplier: the noise is"),
        ({**SAMPLED, "steps": [1, 2]}, "one entry for each of the 1 columns .* got 2"),
        ({**SAMPLED, "adjacency": "swap"}, "adjacency must be one of .* got 'swap'"),
        ({**SAMPLED, "sample_rate": 1.5}, "sample_rate must be > 0 and <= 1, got 1.5"),
        ({**SAMPLED, "steps": np.ma.array([5], mask=[1])}, "steps must not be masked"),
        ({**SAMPLED, "steps": 10**400}, "steps must be >= 1 and <= 1000000000"),
    ],
)
def test_what_pld_is_told_is_checked(options, message):
    with pytest.raises(ValueError, match=message):
        epsilon_lower_bound(SCORES, BITS, delta=1e-5, **options)
