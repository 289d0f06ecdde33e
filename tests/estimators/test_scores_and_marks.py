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
        (
            [0.1, np.nan, np.nan, 0.3],
            [0, -1, -1, 1],
            r"2 of 4 runs are not trained yet, .*: finish .*, or drop them with",
        ),
        ([0.1, np.nan, 0.2, 0.3], BITS, "scores must not be NaN, got 1 of them"),
        (["a"] * 4, BITS, "scores must be real numbers"),
        ([[1.0, 2.0], [1.0], [2.0], [3.0]], BITS, "scores must have the same number of steps for every run"),
        (np.ma.array(SCORES, mask=[1, 0, 0, 0]), BITS, "scores must not be masked"),
        (SCORES, [0, 1, 0], r"bits must have shape \(4,\), one for each run, got \(3,\)"),
        (SCORES, [0, 1, 2, 1], r"bits must be 0 \(trained with z\) or 1 \(with z_prime\), got \[0, 1, 2\]"),
        (SCORES, [0, 0, 0, 0], "bits must hold runs of both worlds, got 0 only"),
        (torch.ones(4, requires_grad=True), BITS, r"scores must not require gradients, .*: detach\(\) them"),
        ([torch.ones((), requires_grad=True)] * 4, BITS, r"scores must not require gradients, .*: detach\(\) them"),
        (SCORES, [None, 1, 0, 1], r"bits must be 0 \(trained with z\) or 1 \(with z_prime\)"),
    ],
)
def test_bad_scores_and_bits_are_named(scores, bits, message):
    with pytest.raises(ValueError, match=message):
        epsilon_lower_bound(scores, bits, delta=1e-5)


@pytest.mark.parametrize(
    "scores",
    [
        2**62 + np.arange(40),
        (2**62 + np.arange(40)).astype(np.uint64),
        np.stack([np.arange(40), 2**62 + np.arange(40)], axis=1),
        [2**62 + i for i in range(39)] + [0.5],
        [2**63 + i for i in range(39)] + [-1],
    ],
)
def test_scores_that_float64_cannot_tell_apart_are_refused(scores):
    with pytest.raises(ValueError, match="scores must differ as float64 where they differ, got 40 different scores"):
        epsilon_lower_bound(scores, np.arange(40) % 2, delta=1e-5)


@pytest.mark.skipif(np.finfo(np.longdouble).eps == np.finfo(float).eps, reason="there is no longer float here")
def test_long_scores_that_float64_cannot_tell_apart_are_refused():
    for scores in (1 + np.arange(40) * np.finfo(np.longdouble).eps, np.arange(40) * np.longdouble("1e4000")):
        with pytest.raises(ValueError, match="scores must differ as float64 where they differ"):
            epsilon_lower_bound(scores, np.arange(40) % 2, delta=1e-5)


def test_large_scores_keep_their_order():
    bits = np.arange(40) % 2
    for scores in (2**62 - 2**20 * np.arange(40) * bits, np.where(bits, -np.inf, np.inf), 1e308 * (1 - 2.0 * bits)):
        found = epsilon_lower_bound(scores, bits, delta=1e-5)
        assert found.epsilon == epsilon_lower_bound(-bits, bits, delta=1e-5).epsilon > 0
