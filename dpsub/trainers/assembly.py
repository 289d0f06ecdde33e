"""From a task and its canary, or many pairs, to a bank: the shared records, the slots, and the coordinates."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from dpsub._core.canary_pair import Worlds
from dpsub.accounting import DPSGD
from dpsub.data import Task
from dpsub.models import Model
from dpsub.trainers.bank import Bank, Slot, StepGradients
from dpsub.trainers.slot import GradientSlot, RecordSlot
from dpsub.trainers.step_canaries import StepCanary


def assemble(
    model: Model,
    task: Task,
    spec: DPSGD,
    *,
    bits: NDArray[np.int8],
    generator: torch.Generator | Sequence[torch.Generator],
    canary: Worlds | StepCanary | None = None,
    coordinates: str = "all",
) -> Bank:
    """A bank for a task: n − m shared records, and m slots that the canary fills.

    Args:
        model: the architecture.
        task: the n records. The canary takes the place of record `canary.slot`, pairs those of `pairs.slots`.
        spec: the DP-SGD parameters. The expected batch size is q·n: n counts the slots.
        bits: (runs,) 0 for the world with z, 1 for the world with z′. Of many pairs (runs, m).
        generator: the source of all randomness, or several, see `Bank`. The bank trains on its device.
        canary: a `CanaryPair` or `Pairs`, which fill the slots. The slot of a `StepCanary` is left empty: set
            `Bank.slot` at each step. None: all n records are shared, as for reference models.
        coordinates: "span" trains in the fewer coordinates that the records span, if the model supports it and the
            optimizer is plain SGD. Scores then have the same law, but `theta` is in other coordinates
            (`Model.within_span`). "all" trains in all coordinates.

    Raises:
        ValueError: if `spec` draws batches of fixed size whose sample rate is not that of whole batches.
    """
    n, batch = len(task.y_train), spec.sample_rate * len(task.y_train)
    spec.sampling.check_rate(spec.sample_rate, n)
    device = (generator if isinstance(generator, torch.Generator) else generator[0]).device
    model = model.prepared(device, spec.sample_rate)
    left_out = canary.slots if isinstance(canary, Worlds) else [] if canary is None else [canary.slot]
    x, y = np.delete(task.x_train, left_out, axis=0), np.delete(task.y_train, left_out)
    shared, records = len(y), canary.records if isinstance(canary, Worlds) else None
    if records is not None:
        x, y = np.concatenate([x, records[0]]), np.concatenate([y, records[1]])
    inputs, labels = model.inputs(torch.tensor(x, device=device)), torch.tensor(y, device=device)
    # Gradients (worlds, m, k), where z′ that is empty is no world; of records and of no canary there are none.
    gradients, support = torch.zeros(0, 1, 0, device=device), torch.zeros(0, dtype=torch.long, device=device)
    if isinstance(canary, Worlds) and records is None:
        gradients, support = (torch.tensor(part, device=device) for part in canary.vectors)
    if coordinates == "span" and spec.optimizer == "sgd":
        vectors = torch.zeros(len(gradients.flatten(0, 1)), model.parameters, device=device)
        vectors[:, support] = gradients.flatten(0, 1)
        if (span := model.within_span(inputs, vectors)) is not None:
            model, inputs, vectors = span
            support = vectors.any(dim=0).nonzero()[:, 0]
            gradients = vectors[:, support].view(*gradients.shape[:2], len(support))
    with_z_prime = torch.as_tensor(np.asarray(bits) != 0, device=device).view(len(bits), -1).T
    present = torch.stack([~with_z_prime, with_z_prime])
    if not isinstance(canary, Worlds):
        slot = Slot(present[:, :0])
    elif records is not None:
        slot = RecordSlot(present[: len(records[1]) // len(left_out)], inputs[shared:], labels[shared:])
    else:
        slot = GradientSlot(present[: len(gradients)], StepGradients(*gradients.squeeze(1))._replace(support=support))
    return Bank(
        model, inputs, labels, shared=shared, slot=slot, spec=spec, expected_batch_size=batch, generator=generator
    )
