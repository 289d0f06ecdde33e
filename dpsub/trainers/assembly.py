"""From a task and its canary, or many pairs, to a bank: the shared records, the slots, and the coordinates."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from dpsub._core import DPSGD, CanaryPair, Pairs, Record
from dpsub.data import Task
from dpsub.models import Model
from dpsub.trainers.bank import Bank
from dpsub.trainers.pair_slots import GradientPairSlots, PairSlots, RecordPairSlots
from dpsub.trainers.slot import GradientSlot, NoSlot, RecordSlot, Slot

COORDINATES = ("span", "all")
"""The coordinates that a linear head can train in: those that its records span, or all."""


def assemble(
    model: Model,
    task: Task,
    spec: DPSGD,
    *,
    bits: NDArray[np.int8],
    generator: torch.Generator,
    canary: CanaryPair | None = None,
    empty_slot: int | None = None,
    coordinates: str = "all",
) -> Bank:
    """A bank for a task: n − 1 shared records, and a slot that the canary fills.

    Args:
        model: the architecture.
        task: the n records. The canary takes the place of record `canary.slot`.
        spec: the DP-SGD parameters.
        bits: (runs,) 0 for the world with z, 1 for the world with z′.
        generator: the source of all randomness, see `Bank`. The bank trains on its device.
        canary: the pair whose z or z_prime fills the slot. None: all n records are shared, as for reference models.
        empty_slot: without a canary: the index of a record to leave out. n counts its place.
        coordinates: "span" trains in the fewer coordinates that the records span, if the model supports it and the
            optimizer is plain SGD. Scores then have the same law, but `theta` is in other coordinates
            (`Model.within_span`). "all" trains in all coordinates.
    """
    device = generator.device
    model = model.prepared(device, spec.sample_rate)
    in_world = torch.as_tensor(np.asarray(bits), device=device)
    x, y = task.x_train, task.y_train
    records: list[Record] = []
    vectors = torch.zeros(0, model.parameters, device=device)
    left_out = empty_slot if canary is None else canary.slot
    if left_out is not None:
        x, y = np.delete(x, left_out, axis=0), np.delete(y, left_out)
    if canary is not None:
        worlds = [world for world in (canary.z, canary.z_prime) if world is not None]
        records = [world for world in worlds if isinstance(world, Record)]
        if not records:
            vectors = torch.stack([torch.tensor(world, device=device) for world in worlds])
    shared = len(y)
    x = np.concatenate([x, *(record.x[None] for record in records)])
    y = np.concatenate([y, np.array([record.y for record in records], dtype=np.int64)])
    inputs, labels = model.inputs(torch.tensor(x, device=device)), torch.tensor(y, device=device)
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


def assemble_pairs(
    model: Model,
    task: Task,
    spec: DPSGD,
    *,
    pairs: Pairs,
    bits: NDArray[np.int8],
    generator: torch.Generator,
) -> tuple[Bank, PairSlots]:
    """A bank for a task, n − m shared records, and m slots that the pairs fill.

    Args:
        model: the architecture.
        task: the n records. The pairs take the places of the records `pairs.slots`.
        spec: the DP-SGD parameters. The expected batch size is q·n: n counts the slots.
        pairs: what fills the slots.
        bits: (runs, m) 0 where z fills a model's slot, 1 where z′ does.
        generator: the source of all randomness, see `Bank`. The bank trains on its device, in all coordinates.
    """
    device = generator.device
    model = model.prepared(device, spec.sample_rate)
    with_z_prime = torch.as_tensor(np.ascontiguousarray(bits.T) != 0, device=device)
    x, y = np.delete(task.x_train, pairs.slots, axis=0), np.delete(task.y_train, pairs.slots)
    shared = len(y)
    if pairs.y is not None and pairs.y_prime is not None:
        x, y = np.concatenate([x, pairs.z, pairs.z_prime]), np.concatenate([y, pairs.y, pairs.y_prime])
    inputs, labels = model.inputs(torch.tensor(x, device=device)), torch.tensor(y, device=device)
    slots: PairSlots
    if pairs.of_records:
        slots = RecordPairSlots(inputs[shared:], labels[shared:], with_z_prime)
    else:
        worlds = torch.tensor(np.concatenate([pairs.z, pairs.z_prime]), device=device)
        slots = GradientPairSlots(torch.tensor(pairs.support, device=device), worlds, with_z_prime)
    bank = Bank(
        model,
        inputs,
        labels,
        shared=shared,
        slot=slots,
        spec=spec,
        expected_batch_size=spec.sample_rate * len(task.y_train),
        runs=len(bits),
        generator=generator,
    )
    return bank, slots
