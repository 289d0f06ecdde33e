"""The test of the noise that an optimizer leaves when records and canary are taken out."""

import itertools
import re

import numpy as np
import pytest
import torch
from opacus.optimizers import DPOptimizer, DPPerLayerOptimizer
from scipy.stats import binom

from dpsub.opacus import audit_optimizer
from dpsub.opacus.audited_steps import clipped_sum
from dpsub.opacus.noise_test import SCALES, NoiseTest

SIZES = (40, 20, 300)


def watched(steps, noise, *, sizes=SIZES, alpha=0.05, seed=0, records=None):
    """A test that has seen so many steps. `noise(generator, sizes)` makes a residue, records add to it."""
    generator = torch.Generator().manual_seed(seed)
    test = NoiseTest(alpha, sizes, seed)
    for _ in range(steps):
        known = [0.3 * torch.randn(size, generator=generator) for size in sizes]
        residue = noise(generator, sizes)
        if records is not None:
            residue = [one + records * more for one, more in zip(residue, known, strict=True)]
        test.observe(residue, known)
        if test.fault is not None:
            break
    return test


def scaled(scale):
    return lambda generator, sizes: [scale * torch.randn(size, generator=generator) for size in sizes]


@pytest.mark.parametrize("scale", [1.0, 1.05, 3.0])
@pytest.mark.parametrize("sizes", [(1,), (18,), SIZES])
def test_enough_noise_is_called_wrong_in_at_most_alpha_of_trainings(scale, sizes):
    audits = 60
    found = [watched(40, scaled(scale), sizes=sizes, alpha=0.1, seed=seed) for seed in range(audits)]
    most = binom.ppf(0.999, audits, 0.1)
    assert sum(one.fault is not None for one in found) <= most
    assert sum(one.clipping is not None for one in found) <= most


def test_bets_have_the_mean_of_what_was_staked():
    """The wealth is a mean of likelihood ratios, so its mean stays that of its stakes."""
    wealth = []
    for seed in range(4_000):
        test = watched(2, scaled(1.0), sizes=(3, 2), seed=seed)
        scales = np.exp(test._scales[:, SCALES > 0.6]).mean(axis=1)  # others are too seldom large to be averaged
        wealth.append([*scales, np.exp(test._again), np.exp(test._shared), np.exp(test._shifts).mean()])
    mean, error = np.mean(wealth, axis=0), np.std(wealth, axis=0) / len(wealth) ** 0.5
    stakes = np.array([2 / 3, 2 / 3, 2 / 3, 1 / 6, 2 / 3, 0])  # 1/2 of the first step, 1/6 of the second
    assert (abs(mean - stakes) < 4 * error + 0.01).all()


def nothing_in_the_second(generator, sizes):
    return [torch.randn(size, generator=generator) * (place != 1) for place, size in enumerate(sizes)]


def the_same_in_all(generator, sizes):
    one = torch.randn(max(sizes), generator=generator)
    return [one[:size] for size in sizes]


def of_twenty_seeds():
    return lambda generator, sizes: scaled(1.0)(
        torch.Generator().manual_seed(int(torch.randint(20, (), generator=generator))), sizes
    )


@pytest.mark.parametrize(
    ("noise", "within", "told"),
    [
        (scaled(0.5), 2, "it has about 50% of the standard deviation that is claimed, in all parameters"),
        (scaled(0.9), 20, "of the standard deviation that is claimed, in all parameters"),
        (nothing_in_the_second, 2, "it has about 2% of the standard deviation that is claimed, in parameter 1"),
        (the_same_in_all, 3, "has the noise of parameter 0"),
        (of_twenty_seeds(), 21, "repeats that of step"),
    ],
)
def test_faults_are_named_within_a_few_steps(noise, within, told):
    for seed in range(3):
        test = watched(100, noise, seed=seed)
        assert test.found_at <= within
        assert told in test.fault


@pytest.mark.parametrize("noise", [scaled(0.7), nothing_in_the_second, the_same_in_all])
def test_a_fault_that_begins_late_is_found(noise):
    steps = itertools.count()
    found = watched(330, lambda *of: (scaled(1.0) if next(steps) < 300 else noise)(*of)).found_at
    assert 300 < found < 320


def test_a_repeated_step_is_named():
    residues = [scaled(1.0)(torch.Generator().manual_seed(seed), SIZES) for seed in (5, 6, 7, 8, 6)]
    test = NoiseTest(0.05, SIZES, 0)
    for one in residues:
        test.observe(one, one)
    assert (test.fault, test.found_at) == ("the noise of step 5 repeats that of step 2", 5)


@pytest.mark.parametrize("share", [0.5, -0.6])
def test_what_is_left_of_the_records_is_told_and_no_fault(share):
    for seed in range(3):
        test = watched(60, scaled(1.0), records=share, seed=seed)
        percent, more = re.search(r"hold about (\d+)% (more|less) of the records", test.clipping).groups()
        assert (more == "more") == (share > 0)
        assert int(percent) / 100 == pytest.approx(abs(share), abs=0.25)
        assert test.fault is None


def parameters_with(rows, shapes, dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    made = [torch.nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape in shapes]
    for one in made:
        one.grad_sample = torch.randn(rows, *one.shape, generator=generator).to(dtype)
    return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(("rows", "parts"), [(7, 1), (6, 2), (0, 1), (1, 1)])
@pytest.mark.parametrize("kind", [DPOptimizer, DPPerLayerOptimizer])
def test_records_are_clipped_and_summed_as_opacus_does(kind, rows, parts, dtype):
    flat = kind is DPOptimizer
    shapes = ((4, 3), (3,), () if flat else (1,))
    parameters = parameters_with(rows, shapes, dtype)
    bounds = [0.5, 0.7, 0.2]
    optimizer = kind(
        torch.optim.SGD(parameters, 0.1), noise_multiplier=1.0, max_grad_norm=1.3 if flat else bounds,
        expected_batch_size=4,
    )  # fmt: skip
    if parts > 1:
        for one in parameters:
            one.grad_sample = [*one.grad_sample.split(rows // parts)]
    gradients = [one.grad_sample for one in parameters]
    whole = float(optimizer.max_grad_norm)
    ours = clipped_sum(gradients, whole, None if flat else [one / whole for one in bounds])
    optimizer.clip_and_accumulate()
    for one, parameter in zip(ours, parameters, strict=True):
        loose = {"rtol": 0.02, "atol": 0.05} if dtype == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-5}
        torch.testing.assert_close(one, parameter.summed_grad.to(one.dtype), **loose)


@pytest.mark.parametrize("test_noise", [True, False])
@pytest.mark.parametrize("adjacency", ["substitute", "add_remove"])
def test_what_the_records_add_does_not_hide_half_the_noise(adjacency, test_noise):
    """The others' gradients have several times the noise along the canary."""
    for seed in range(5):
        torch.manual_seed(seed)
        weights = torch.nn.Parameter(torch.zeros(18))
        optimizer = DPOptimizer(
            torch.optim.SGD([weights], 0.1), noise_multiplier=0.5, max_grad_norm=1.0, expected_batch_size=40
        )
        auditor = audit_optimizer(
            optimizer, delta=1e-5, adjacency=adjacency, sample_rate=0.2, noise_multiplier=1.0, seed=seed,
            test_noise=test_noise,
        )  # fmt: skip
        for _ in itertools.takewhile(lambda _: not auditor.refuted, range(150)):
            weights.grad_sample = torch.randn(40, 18)
            optimizer.step()
            optimizer.zero_grad()
        assert auditor.refuted_at <= (5 if test_noise else 150)
