r"""The adversaries' canaries."""

from __future__ import annotations

import numpy as np
import torch

from dpsub import _checks
from dpsub._devices import matmul_precision
from dpsub._random import stream, torch_seed
from dpsub.canaries import CanaryPair
from dpsub.data import Task, check_task
from dpsub.dpsgd import DPSGD
from dpsub.models import Model, check_fits
from dpsub.trainers import Bank


def gradient(task: Task, model: Model, spec: DPSGD, *, seed: int) -> CanaryPair:
    r"""S2, the crafted gradient: ±C on the parameter that training moves least, 0 elsewhere.

    One model is trained on the task with clipping but without noise; :math:`S_j = \sum_t |\theta_{t+1}^j - \theta_t^j|`
    is how far each parameter travels, and the least travelled carries the canary, where the other records disturb it
    least.

    Args:
        task: the private records D, known to this adversary.
        model: what will be trained.
        spec: how it will be trained; its noise multiplier is not used.
        seed: for the batches of the noiseless training, and for the record that gives up its place.

    Returns:
        A substitute pair of gradients of norm C, 2C apart; `details["parameter"]` is the index in the flattened
        parameters and `details["travel"]` how far it moved.

    Source: *Beyond Membership*, section 3.2.1, Algorithm 2.
    """
    seed = _checks.whole("seed", seed, at_least=0)
    rng = stream(seed, "crafter")
    check_task(task)
    check_fits(model, task)
    generator = torch.Generator().manual_seed(torch_seed(seed, "crafter"))
    bank = Bank(model, task, spec, bits=np.zeros(1, dtype=np.int8), generator=generator)

    travel = torch.zeros_like(bank.theta)
    before = bank.theta.clone()
    with matmul_precision("highest"):
        for _ in bank.train(private=False):
            travel += (bank.theta - before).abs()
            before.copy_(bank.theta)
    if not torch.isfinite(travel).all():
        raise ValueError(f"spec must be such that training without noise does not diverge, got {spec}")
    travelled = model.flat(travel)[0]
    parameter = int(travelled.argmin())

    z = np.zeros(model.parameters, dtype=np.float32)
    z[parameter] = spec.max_grad_norm
    return CanaryPair(
        z=z,
        z_prime=-z,
        slot=int(rng.integers(len(task.y_train))),
        scenario="S2",
        task=task.fingerprint,
        details={"parameter": parameter, "travel": float(travelled[parameter]), "seed": seed},
    )
