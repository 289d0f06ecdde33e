"""A bank of linear heads on digits against Opacus, one model at a time, as the papers' code trains them."""

from __future__ import annotations

import time
import warnings

import torch
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from torch import nn

import dpsub

STEPS, RUNS = 50, 256


def with_opacus(task, spec, runs: int) -> None:
    """The lean loop: Opacus's per-record gradients and optimizer, without a data loader, at full batch."""
    x, y = torch.as_tensor(task.x_train), torch.as_tensor(task.y_train)
    for _ in range(runs):
        module = GradSampleModule(nn.Linear(x.shape[1], task.num_classes))
        optimizer = DPOptimizer(
            torch.optim.SGD(module.parameters(), lr=spec.learning_rate),
            noise_multiplier=spec.noise_multiplier,
            max_grad_norm=spec.max_grad_norm,
            expected_batch_size=len(y),
        )
        for _ in range(spec.steps):
            optimizer.zero_grad(set_to_none=True)
            nn.functional.cross_entropy(module(x), y).backward()
            optimizer.step()


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    task = dpsub.data.digits()
    model = dpsub.models.linear(task)
    spec = dpsub.DPSGD(22.4, 2.0, 1.0, STEPS, 1e-3)
    canary = dpsub.crafters.gradient(task, model, spec, seed=0)

    def bank(runs: int) -> None:
        dpsub.audit(task, model, canary, spec, runs=runs, observe_every=STEPS, progress=False)

    with_opacus(task, spec, runs=1)
    bank(RUNS)
    start = time.perf_counter()
    with_opacus(task, spec, runs=8)
    opacus = (time.perf_counter() - start) / 8 / STEPS
    start = time.perf_counter()
    bank(4 * RUNS)
    own = (time.perf_counter() - start) / (4 * RUNS) / STEPS
    print(f"a step of a model: Opacus {1e6 * opacus:.0f} µs, bank {1e6 * own:.1f} µs, {opacus / own:.0f} times as fast")
