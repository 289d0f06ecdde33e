"""The slot: the one place in every batch that differs between the two worlds, and what a distinguisher sees of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

if TYPE_CHECKING:
    from dpsub.trainers.bank import Bank


class Slot(Protocol):
    """What fills one place in the batches of R models, each with the canary of its own world.

    A slot of records takes rows among the bank's inputs, whose gradients training computes and clips. A slot of
    gradients adds to the sum of clipped gradients.
    """

    def rows(self, sampled: Tensor | None) -> Tensor | None:
        """Which of the slot's records each model sees in this batch.

        Args:
            sampled: (runs,) bool, whose slot is in the batch; None for all.

        Returns:
            (records of the slot, runs) bool, or None if it holds no records.
        """
        ...

    def add_to(self, total: Tensor, sampled: Tensor | None) -> None:
        """Add the slot's gradients to the sums of clipped gradients, (runs, parameters), in place."""
        ...

    def scores(self, bank: Bank) -> Tensor:
        """(runs,): how much each model speaks for z, by theory."""
        ...

    def gradient(self, bank: Bank) -> Tensor:
        """z's gradient as training would clip it, at the parameters as they are: as `product` takes it."""
        ...

    def product(self, bank: Bank, gradient: Tensor) -> Tensor:
        """(runs,): the product of a z's gradient, from `gradient`, with the last step's noisy average."""
        ...

    def distance(self, bank: Bank) -> Tensor:
        """(runs,): how far apart the two canaries' gradients lie, clipped, at the parameters as they are."""
        ...


class NoSlot:
    """No canary: all records are shared. Adversaries train such reference models for themselves."""

    def rows(self, sampled: Tensor | None) -> None:
        return None

    def add_to(self, total: Tensor, sampled: Tensor | None) -> None:
        return

    def scores(self, bank: Bank) -> Tensor:
        raise ValueError("canary must be given for models to be scored: this bank has none")

    gradient = distance = scores

    def product(self, bank: Bank, gradient: Tensor) -> Tensor:
        return self.scores(bank)


@dataclass(frozen=True, eq=False)
class GradientSlot:
    """Gradients of the adversary's choice, which enter the sum as they are.

    Attributes:
        support: (k,) the parameters at which z or z′ is not 0.
        gradients: (2, k) z and z′ there.
        in_world: (runs,) 0 or 1: which of the two fills each model's slot.
    """

    support: Tensor
    gradients: Tensor
    in_world: Tensor

    @classmethod
    def of(cls, vectors: Tensor, bits: Tensor) -> GradientSlot:
        """From z and z′, (2, parameters), and the models' bits."""
        support = vectors.any(dim=0).nonzero()[:, 0]
        return cls(support, vectors[:, support], bits.long())

    def rows(self, sampled: Tensor | None) -> None:
        return None

    def add_to(self, total: Tensor, sampled: Tensor | None) -> None:
        own = self.gradients[self.in_world]
        total[:, self.support] += own if sampled is None else own * sampled[:, None]

    def scores(self, bank: Bank) -> Tensor:
        """Training descends, so a gradient z pushes θ towards −z: (z/C)·(θ₀ − θ).

        Source: *Beyond Membership*, Algorithm 1, line 23, which prints the opposite sign.
        """
        displacement = bank.model.flat(bank.theta_0 - bank.theta)[:, self.support]
        return displacement @ (self.gradients[0] / bank.spec.max_grad_norm)

    def gradient(self, bank: Bank) -> Tensor:
        return self.gradients[0]

    def product(self, bank: Bank, gradient: Tensor) -> Tensor:
        return bank.noisy_average[:, self.support] @ gradient

    def distance(self, bank: Bank) -> Tensor:
        apart = (self.gradients[0] - self.gradients[1]).expand(len(self.in_world), -1)
        return _norms(apart)


@dataclass(frozen=True, eq=False)
class RecordSlot:
    """Records, z alone or z and z′, whose gradients training computes and clips.

    Attributes:
        inputs: (1 or 2, …) z and, where the other world's slot is not empty, z′, as the model takes them.
        labels: (1 or 2,).
        worlds: (1 or 2, runs) bool: which models train with z, and which with z′.
    """

    inputs: Tensor
    labels: Tensor
    worlds: Tensor

    @classmethod
    def of(cls, inputs: Tensor, labels: Tensor, bits: Tensor) -> RecordSlot:
        """From z and, unless that slot is empty, z′, and the models' bits."""
        with_z_prime = bits != 0
        return cls(inputs, labels, torch.stack([~with_z_prime, with_z_prime][: len(inputs)]))

    def rows(self, sampled: Tensor | None) -> Tensor:
        return self.worlds if sampled is None else self.worlds & sampled

    def add_to(self, total: Tensor, sampled: Tensor | None) -> None:
        return

    def scores(self, bank: Bank) -> Tensor:
        """A record is known better by the model that saw it: logit(z; θ) − logit(z′; θ); an empty z′ contributes 0."""
        logits = _logit(bank.model.logits(bank.theta, self.inputs), self.labels)
        return logits[0] - logits[1] if len(self.labels) > 1 else logits[0]

    def gradient(self, bank: Bank) -> Tensor:
        return self._clipped(bank, 0)

    def product(self, bank: Bank, gradient: Tensor) -> Tensor:
        return (bank.noisy_average * gradient).sum(dim=1)

    def distance(self, bank: Bank) -> Tensor:
        apart = self._clipped(bank, 0)
        for z_prime in range(1, len(self.labels)):
            apart -= self._clipped(bank, z_prime)
        return _norms(apart)

    def _clipped(self, bank: Bank, which: int) -> Tensor:
        """(runs, parameters): the clipped gradient of z, 0, or z′, 1, in each model."""
        one = slice(which, which + 1)
        total = bank.model.clipped_sum(bank.theta, self.inputs[one], self.labels[one], None, bank.spec.max_grad_norm)
        return bank.model.flat(total)


def _norms(vectors: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(vectors, dim=1)
    return norms


def _logit(logits: Tensor, labels: Tensor) -> Tensor:
    """(records, classes, runs) → (records, runs): log p/(1 − p) of each record's label, without forming p."""
    own = labels[:, None, None].expand(-1, 1, logits.shape[2])
    others = logits.scatter(1, own, -torch.inf).logsumexp(dim=1)
    return logits.gather(1, own)[:, 0] - others
