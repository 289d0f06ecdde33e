import numpy as np
import pytest
import torch

from dpsub import DPSGD, data, models
from dpsub.trainers import assemble


@pytest.mark.parametrize("rows", [0, 2])
def test_a_head_within_the_span_of_its_records_trains_the_same(rows):
    """Injected noise, seen in the smaller coordinates, leads to the same logits and products."""
    rng = np.random.default_rng(0)
    task = data.from_arrays(rng.random((20, 50)), rng.integers(0, 4, 20), num_classes=4)
    model, spec = models.linear(task), DPSGD(0.5, 1.0, 1.0, 6, 0.3)
    vectors = torch.zeros(2, *model.shape)
    vectors[0, :rows, 1], vectors[1, :rows, 2] = 0.7, -0.4
    bank = assemble(model, task, spec, bits=np.zeros(3, np.int8), generator=torch.Generator())
    small, inputs, moved = model.within_span(bank.inputs, vectors.flatten(1))
    assert inputs.shape == (20, 20 + rows)
    assert small.parameters == (20 + rows) * 4
    torch.testing.assert_close(inputs.norm(dim=1), bank.inputs.norm(dim=1))

    basis = torch.linalg.lstsq(inputs.double(), bank.inputs.double()).solution  # (20 + rows, 51), where rows = 0
    if rows:
        basis = torch.zeros(20 + rows, 51, dtype=torch.float64)
        basis[:rows, :rows] = torch.eye(rows)
        rest = bank.inputs.double().clone()
        rest[:, :rows] = 0
        basis[rows:] = torch.linalg.solve(inputs[:, rows:].double(), rest)
    torch.testing.assert_close(basis @ basis.T, torch.eye(20 + rows, dtype=torch.float64), atol=1e-4, rtol=0)

    theta, noise = torch.zeros(*small.shape, 3), torch.randn(6, *model.shape, 3, generator=bank.generator)
    for step in range(6):
        bank.step(noise=noise[step])
        total = small.clipped_sum(theta, inputs, bank.labels, None, 1.0)
        total += 0.5 * torch.einsum("sd,dkr->skr", basis.float(), noise[step])
        theta -= 0.3 * total / 20
    torch.testing.assert_close(small.logits(theta, inputs), model.logits(bank.theta, bank.inputs), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(moved @ theta.flatten(0, 1), vectors.flatten(1) @ bank.theta.flatten(0, 1))


def test_a_span_that_saves_nothing_is_not_taken(bench_of):
    _, model, _, inputs, _ = bench_of("linear")
    assert model.within_span(inputs, torch.ones(1, model.parameters)) is None
    assert model.within_span(torch.cat([inputs] * 4), torch.zeros(1, model.parameters)) is None
