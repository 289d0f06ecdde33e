from decimal import Decimal

import numpy as np
import pytest
import torch

from dpsub.estimators import epsilon_lower_bound

SCORES, BITS = [0.1, 0.4, 0.2, 0.3], [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("scores", "bits", "message"),
    [
        ([], [], r"scores must have shape \(runs,\) or \(runs, steps\), .* 0, got \(0,\)"),
        (np.zeros((4, 2, 2)), BITS, r"got \(4, 2, 2\)"),
        ([0.1, np.nan, 0.2, 0.3], BITS, "scores must not be NaN, got 1 of them"),
        (["a"] * 4, BITS, "scores must be real numbers"),
        (np.array([1, 2, 3, 4], "m8[s]"), BITS, r"scores must be real numbers, got dtype timedelta64"),
        ([[1.0, 2.0], [1.0], [2.0], [3.0]], BITS, "scores must have the same number of steps for every run"),
        (np.ma.array(SCORES, mask=[1, 0, 0, 0]), BITS, "scores must not be masked"),
        (SCORES, [0, 1, 0], r"bits must have shape \(4,\), one for each run, got \(3,\)"),
        (SCORES, [0, 1, 2, 1], r"bits must be 0 \(trained with z\) or 1 \(with z_prime\), got \[0, 1, 2\]"),
        (SCORES, [0, 0, 0, 0], "bits must hold runs of both worlds, got 0 only"),
        (SCORES, [Decimal("sNaN")] * 4, r"bits must be 0 \(trained with z\) or 1 \(with z_prime\)"),
        (torch.ones(4, requires_grad=True), [0, 1, 0, 1], "scores must be an array of numbers, got Tensor"),
        (SCORES, [None, 1, 0, 1], r"bits must be 0 \(trained with z\) or 1 \(with z_prime\)"),
        (SCORES, [[0], [1, 0], 0, 1], r"bits must be 0 \(trained with z\) or 1 \(with z_prime\)"),
    ],
)
def test_bad_scores_and_bits_are_named(scores, bits, message):
    with pytest.raises(ValueError, match=message):
        epsilon_lower_bound(scores, bits, delta=1e-5)
