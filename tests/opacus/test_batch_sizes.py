import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.stats import binom

from dpsub.opacus.batch_sizes import BatchSizes, _equal_chance


def seen(sizes, expected=6, sample_rate=0.1, all_samplings=False, **about):
    batches = BatchSizes()
    for size in sizes:
        optimizer = SimpleNamespace(
            accumulated_iterations=1,
            expected_batch_size=expected,
            params=[SimpleNamespace(grad_sample=torch.zeros(size, 1))],
            _is_last_step_skipped=False,
        )
        optimizer.__dict__.update(about)
        batches.see(optimizer, sample_rate)
    return batches.against_all if all_samplings else batches.against_poisson


def test_batches_of_one_size_are_not_poissons():
    assert "10 of 10 pairs" in seen([6] * 20)
    assert seen([6] * 10) == ""  # five pairs: a chance of 3e-5


def test_a_smaller_last_batch_does_not_hide_it():
    assert seen(([7] * 8 + [4]) * 6, expected=6.7, sample_rate=1 / 9)


@pytest.mark.parametrize(("n", "rate"), [(60, 0.1), (10_000, 0.0064), (500, 1.0), (8, 0.5), (1000, 0.001)])
def test_poisson_batches_are_taken_for_what_they_are(n, rate):
    sizes = np.random.default_rng(0).binomial(n, rate, 4000)
    assert seen(sizes, expected=int(n * rate), sample_rate=rate) == ""


@pytest.mark.parametrize(("n", "rate"), [(60, 0.1), (10_000, 0.0064), (500, 1.0), (8, 0.5)])
def test_the_chance_of_two_equal_sizes(n, rate):
    exact = float(np.sum(binom.pmf(np.arange(n + 1), n, rate) ** 2))
    assert _equal_chance(n * rate, rate) == pytest.approx(exact, rel=1e-9)


def test_accumulated_gradients_are_not_poissons():
    assert "accumulated" in seen([6], accumulated_iterations=2)


def test_batches_that_were_split_say_nothing():
    assert seen([3] * 40, _is_last_step_skipped=True) == ""
    assert seen([6] * 40, params=[SimpleNamespace()]) == ""  # ghost clipping keeps no gradients of records


@pytest.mark.parametrize(("n", "rate"), [(60, 0.1), (59, 1 / 30), (10_000, 0.0064), (500, 1.0), (8, 0.5), (119, 0.1)])
@pytest.mark.parametrize("most", [1, 2, 20, 100])
def test_the_parts_of_poisson_batches_are_those_of_one_batch(n, rate, most):
    batches = BatchSizes()
    for size in np.random.default_rng(0).binomial(n, rate, 2000):
        parts = np.array_split(np.zeros((size, 1)), max(1, math.ceil(size / most)))
        optimizer = SimpleNamespace(
            accumulated_iterations=1,
            expected_batch_size=int(n * rate),
            params=[SimpleNamespace(grad_sample=torch.tensor(parts[-1]))],
            _is_last_step_skipped=len(parts) > 1,
        )
        batches.see(optimizer, rate)
    assert batches.against_all == ""


def test_batches_joined_by_skipped_steps_are_those_of_no_sampling():
    joined = {"_is_last_step_skipped": True, "all_samplings": True}
    sizes = np.random.default_rng(0).binomial(60, 0.1, 20)
    assert "records were in batches, where 140 are expected at most" in seen(sizes, **joined)
    assert seen(sizes[:3], **joined) == ""
    assert seen(sizes, all_samplings=True) == ""
