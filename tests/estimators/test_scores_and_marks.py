import numpy as np
import pytest

from dpsub.estimators import epsilon_lower_bound

SCORES, BITS = [0.1, 0.4, 0.2, 0.3], [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("scores", "bits", "message"),
    [
        (
            [0.1, np.nan, np.nan, 0.3],
            [0, -1, -1, 1],
            "2 of 4 runs are not trained yet, .*: finish .*, or drop them with",
        ),
        ([0.1, np.nan, 0.2, 0.3], BITS, "scores must be numbers without NaN, got nan"),
        (SCORES, [0, 1, 0], r"scores must have shape \(3, ...\), got \(4,\)"),
        (SCORES, [0, 1, 2, 1], r"bits must be 0 \(trained with z\) or 1 \(with z_prime\), got \[0, 1, 2\]"),
        (SCORES, [0, 0, 0, 0], r"bits must hold runs of both worlds, got \[0\] only"),
    ],
)
def test_bad_scores_and_bits_are_named(scores, bits, message):
    with pytest.raises(ValueError, match=message):
        epsilon_lower_bound(scores, bits, delta=1e-5)


def test_large_scores_keep_their_order():
    bits = np.arange(40) % 2
    for scores in (2**62 - 2**20 * np.arange(40) * bits, np.where(bits, -np.inf, np.inf), 1e308 * (1 - 2.0 * bits)):
        found = epsilon_lower_bound(scores, bits, delta=1e-5)
        assert found.epsilon == epsilon_lower_bound(-bits, bits, delta=1e-5).epsilon > 0
