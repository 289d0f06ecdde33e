"""From a task and many pairs to a bank, and how its steps are scored."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpsub._core import DPSGD, Pairs
from dpsub.data import Task
from dpsub.models import Model
from dpsub.trainers.bank import Bank
from dpsub.trainers.coins import coins
from dpsub.trainers.pair_slots import GradientPairSlots, PairSlots, RecordPairSlots
from dpsub.trainers.whitening import whitened


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


class ScoredSteps:
    """A bank with many pairs that advances step by step, and sums what its privatised sums say of the pairs.

    Args:
        bank, slots: as `assemble_pairs` returns them.
        expected: whether to subtract from each sum what all records contribute on average.
        whiten: how many iterations of `whitened` each sum takes, where `expected` holds. 0 leaves it as it is.

    Attributes:
        scores: (runs, m) float64, the sum over the steps so far. Higher speaks for z.
    """

    def __init__(self, bank: Bank, slots: PairSlots, *, expected: bool, whiten: int = 0) -> None:
        self.bank, self._slots, self._expected, self._whiten = bank, slots, expected, whiten
        self._pairs = slots.with_z_prime.shape[0]
        self.scores = torch.zeros(bank.runs, self._pairs, dtype=torch.float64, device=bank.device)

    def advance(self) -> None:
        """One training step with fresh randomness: a coin of probability q for each slot, then those of `Bank`.

        The score grows by ⟨S − E, g_z − g_z′⟩/C², with the clipped gradients at the models before the step. E is what S
        is on average over batches and fair coins if `expected`, else the pair's own share of that. `whiten` puts M⁻¹
        before S − E.
        """
        bank, spec = self.bank, self.bank.spec
        before = bank.theta.clone()
        mean = self._mean() if self._expected else None
        sampled = None
        if spec.sample_rate < 1:
            sampled = coins(spec.sample_rate, self._pairs, bank.runs, bank.generator)
        bank.advance(slot_sampled=sampled)
        total = bank.last_sum
        if mean is not None:
            total -= mean
            if self._whiten:
                total = whitened(bank, self._slots, before, total, self._whiten)
        along, own = self._slots.along(bank, before, total)
        if mean is None:
            along = along - spec.sample_rate * own
        self.scores += along.double() / spec.max_grad_norm**2

    def _mean(self) -> Tensor:
        """The sum of clipped gradients, on average over batches and fair coins, at the current models."""
        bank, shared = self.bank, slice(self.bank.shared)
        norm = bank.spec.max_grad_norm
        mean = bank.model.clipped_sum(bank.theta, bank.inputs[shared], bank.labels[shared], None, norm)
        mean += self._slots.middle(bank)
        return mean.mul_(bank.spec.sample_rate)
