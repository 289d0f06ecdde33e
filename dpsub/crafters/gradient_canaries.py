"""S2: canaries that are gradients."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dpsub._core import DPSGD, CanaryPair, checks
from dpsub._core.random_streams import stream
from dpsub.crafters.reference_model import snapshots, untrained
from dpsub.data import Task
from dpsub.models import Model
from dpsub.trainers.devices import matmul_precision


def gradient(task: Task, model: Model, spec: DPSGD, *, seed: int) -> CanaryPair:
    r"""S2, the crafted gradient: ±C on the parameter that training moves least, 0 elsewhere.

    One model is trained on the task with clipping but without noise. Parameter j travels
    :math:`S_j = \sum_t |\theta_{t+1}^j - \theta_t^j|`. The parameter that travels least carries the canary, since the
    other records disturb it least.

    Args:
        task: the private records, which this adversary knows.
        model: the architecture to be audited.
        spec: the DP-SGD parameters of the audit. The noise multiplier is not used.
        seed: for the start and batches of the noiseless training, and for the choice of the record to replace.

    Returns:
        A substitute pair of gradients of norm C, 2C apart. `details["parameter"]` is the index among the flattened
        parameters and `details["travel"]` how far it travelled. `details["unmoved"]` counts the parameters that did not
        move: at pixels that no private record uses, the canary meets no other record, as in the worst case. In the
        trace: `travel` (parameters,); `path` (points, 3), the parameters with the least, median and most travel after
        `step` (points,) steps.

    Raises:
        ValueError: if an argument is out of range, or the training diverges.

    Source: *Beyond Membership*, section 3.2.1, Algorithm 2.
    """
    seed = checks.whole("seed", seed, at_least=0)
    rng = stream(seed, "crafter")
    travelled, moments, path = noiseless_travel(task, model, spec, seed)
    parameter = int(travelled.argmin())
    shown = [parameter, int(travelled.median(dim=0).indices), int(travelled.argmax())]

    z = np.zeros(model.parameters, dtype=np.float32)
    z[parameter] = spec.max_grad_norm
    return CanaryPair(
        z=z,
        z_prime=-z,
        slot=int(rng.integers(len(task.y_train))),
        scenario="S2",
        task=task.fingerprint,
        details={
            "parameter": parameter,
            "travel": float(travelled[parameter]),
            "unmoved": int((travelled == 0).sum()),
            "seed": seed,
        },
        trace={
            "travel": travelled.numpy(),
            "path": path[:, shown].numpy(),
            "step": np.array([0, *sorted(moments)]),
        },
    )


def noiseless_travel(task: Task, model: Model, spec: DPSGD, seed: int) -> tuple[Tensor, set[int], Tensor]:
    """How far each parameter of one model travels in training with clipping and without noise.

    Returns:
        The travel (parameters,); moments of the training, as numbers of steps; and the parameters at the start and at
        these moments, (moments + 1, parameters).

    Raises:
        ValueError: if an argument is out of range, or the training diverges.
    """
    bank = untrained(task, model, spec, seed)
    travel = torch.zeros_like(bank.theta)
    before = bank.theta.clone()
    moments = snapshots(spec.steps)
    path = [model.flat(before)[0].clone()]
    with matmul_precision("highest"):
        for step in bank.train(noise=False):
            travel += (bank.theta - before).abs()
            before.copy_(bank.theta)
            if step in moments:
                path.append(model.flat(before)[0].clone())
    if not torch.isfinite(travel).all():
        raise ValueError(f"spec must be such that training without noise does not diverge, got {spec}")
    return model.flat(travel)[0], moments, torch.stack(path)
