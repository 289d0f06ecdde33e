"""What an auditor of an optimizer knows of the records, and what it leaves to the test of the noise."""

import itertools
import math

import numpy as np
import pytest
import torch
from opacus.optimizers import DPOptimizer, DPPerLayerOptimizer

from dpsub._core.noise_test import Summary
from dpsub.opacus import audit_optimizer
from dpsub.opacus.audited_steps import clipped_sum
from dpsub.opacus.auditors import noise_statistics


def test_tensors_are_looked_at_as_arrays_are():
    shapes = ((3, 4), (), (300,), (2,))
    rng = np.random.default_rng(0)
    sizes, places = [math.prod(shape) for shape in shapes], np.array([0, 11, 12, 100, 312, 314])
    residue, records = rng.normal(size=(2, sum(sizes)))
    seen = noise_statistics(torch.tensor(residue), torch.tensor(records), 0.5, sizes, torch.tensor(places))
    for found, right in zip(seen, Summary.of(residue / 0.5, records / 0.5, sizes, places), strict=True):
        np.testing.assert_allclose(found, right)


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
    for one, parameter in zip(ours.split([one.numel() for one in parameters]), parameters, strict=True):
        loose = {"rtol": 0.02, "atol": 0.05} if dtype == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-5}
        torch.testing.assert_close(one, parameter.summed_grad.reshape(-1).to(one.dtype), **loose)


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
