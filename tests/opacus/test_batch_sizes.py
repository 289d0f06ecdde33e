from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.stats import binom

from dpsub.opacus.batch_sizes import BatchSizes, _equal_chance


def seen(sizes, expected=6, sample_rate=0.1, **about):
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
    return batches.against_poisson


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
    assert seen([6] * 40, _is_last_step_skipped=True) == ""
    assert seen([6] * 40, params=[SimpleNamespace()]) == ""  # ghost clipping keeps no gradients of records
