"""From a task and a canary to a bank: who is shared, what fills the slot, and in which coordinates to train."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from dpsub._core import DPSGD, CanaryPair, Record
from dpsub.data import Task
from dpsub.models import Model
from dpsub.trainers.bank import Bank
from dpsub.trainers.slot import GradientSlot, NoSlot, RecordSlot, Slot

COORDINATES = ("span", "all")


def assemble(
    model: Model,
    task: Task,
    spec: DPSGD,
    *,
    bits: NDArray[np.int8],
    generator: torch.Generator,
    canary: CanaryPair | None = None,
    coordinates: str = "all",
) -> Bank:
    """A bank whose n − 1 shared records are the task's, without the canary's slot.

    Args:
        model, task, spec: the architecture, the records, the DP-SGD parameters.
        bits: (runs,) 0 for the world of z, 1 for that of z_prime.
        generator: see `Bank`; its device is where it all happens.
        canary: the pair whose z or z_prime fills the slot. None: all n records are shared, as for reference models.
        coordinates: "span" trains in the fewer coordinates that the records span, where the model offers that and the
            optimizer is plain SGD: scores have the same law, and `theta` is in other coordinates
            (`Model.within_span`). "all" does not.
    """
    device = generator.device
    model = model.prepared(device, spec.sample_rate)
    in_world = torch.as_tensor(np.asarray(bits), device=device)
    x, y = task.x_train, task.y_train
    records: list[Record] = []
    vectors = torch.zeros(0, model.parameters, device=device)
    if canary is not None:
        x, y = np.delete(x, canary.slot, axis=0), np.delete(y, canary.slot)
        worlds = [world for world in (canary.z, canary.z_prime) if world is not None]
        records = [world for world in worlds if isinstance(world, Record)]
        if not records:
            vectors = torch.stack([torch.as_tensor(world, device=device) for world in worlds])
    shared = len(y)
    x = np.concatenate([x, *(record.x[None] for record in records)])
    y = np.concatenate([y, np.array([record.y for record in records], dtype=np.int64)])
    inputs, labels = model.inputs(torch.as_tensor(x, device=device)), torch.as_tensor(y, device=device)
    if coordinates == "span" and spec.optimizer == "sgd":
        span = model.within_span(inputs, vectors)
        if span is not None:
            model, inputs, vectors = span
    slot: Slot = NoSlot()
    if records:
        slot = RecordSlot.of(inputs[shared:], labels[shared:], in_world)
    elif canary is not None:
        slot = GradientSlot.of(vectors, in_world)
    return Bank(
        model,
        inputs,
        labels,
        shared=shared,
        slot=slot,
        spec=spec,
        expected_batch_size=spec.sample_rate * len(task.y_train),
        runs=len(bits),
        generator=generator,
    )
