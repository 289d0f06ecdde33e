"""Canaries that are gradients at each step, and what fills the slot then."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol, Self, runtime_checkable

import torch
from torch import Tensor

from dpsub._core import CanaryPair, Record
from dpsub.trainers.bank import Bank


class StepGradients(NamedTuple):
    """What the canary is at one step: the clipped gradients of z and z′, of norm at most C.

    Attributes:
        z: (k,), the same for all models of the bank, or (runs, k).
        z_prime: shaped like z, or None if the slot is empty in that world.
        support: (k,) the indices of the parameters that z and z′ belong to; None for all parameters.
    """

    z: Tensor
    z_prime: Tensor | None
    support: Tensor | None = None

    @property
    def longest(self) -> Tensor:
        """The largest norm of a gradient, in any model."""
        norms = [torch.linalg.vector_norm(one, dim=-1).max() for one in (self.z, self.z_prime) if one is not None]
        return torch.stack(norms).max()


@runtime_checkable
class StepCanary(Protocol):
    """A canary that is crafted anew at each step. Implement it to audit steps with a canary of your own.

    Attributes:
        scenario, adjacency, slot, details, task: as those of `CanaryPair`.
    """

    @property
    def scenario(self) -> str: ...

    @property
    def adjacency(self) -> str: ...

    @property
    def slot(self) -> int: ...

    @property
    def details(self) -> Mapping[str, float | int | str]: ...

    @property
    def task(self) -> str | None: ...

    @property
    def fingerprint(self) -> str:
        """Hexadecimal digits that change with anything that the gradients depend on."""
        ...

    def gradients(self, bank: Bank, step: int) -> StepGradients:
        """The gradients of the coming step.

        It may look at the current models, and draws only from streams of its own seed. The coins that say which world
        is in the slot must not influence it otherwise than through the models.

        Args:
            bank: R models in training.
            step: the number of the coming step, from 1.
        """
        ...

    def against_nothing(self, *, adjacency: str) -> Self:
        """The same z against an empty slot."""
        ...


class AtEachStep(Protocol):
    """What an audit of steps asks a canary for."""

    def gradients(self, bank: Bank, step: int) -> StepGradients: ...


@dataclass(frozen=True, eq=False)
class FixedGradients:
    """The gradients of a pair, the same at all steps."""

    worlds: StepGradients

    def gradients(self, bank: Bank, step: int) -> StepGradients:
        return self.worlds


@dataclass(frozen=True, eq=False)
class FixedRecords:
    """The records of a pair. Their clipped gradients are those at the current models.

    Attributes:
        x: (1 or 2, …) the features of z and, if there is one, of z′.
        labels: theirs.
    """

    x: Tensor
    labels: tuple[int, ...]

    def gradients(self, bank: Bank, step: int) -> StepGradients:
        z, *other = (clipped_gradients(bank, self.x[i : i + 1], label) for i, label in enumerate(self.labels))
        return StepGradients(z, other[0] if other else None)


def at_each_step(canary: CanaryPair | StepCanary, bank: Bank) -> AtEachStep:
    """What a canary is at each step of this bank."""
    if not isinstance(canary, CanaryPair):
        return canary
    worlds = [canary.z] if canary.adjacency != "substitute" else [canary.z, canary.z_prime]
    records = [world for world in worlds if isinstance(world, Record)]
    if records:
        x = torch.stack([torch.tensor(record.x, device=bank.device) for record in records])
        return FixedRecords(x, tuple(record.y for record in records))
    vectors = torch.stack([torch.tensor(world, device=bank.device) for world in worlds])
    support = vectors.any(dim=0).nonzero()[:, 0]
    z, *other = vectors[:, support]
    return FixedGradients(StepGradients(z, other[0] if other else None, support))


def clipped_gradients(bank: Bank, x: Tensor, y: int) -> Tensor:
    """(runs, parameters): each model's clipped gradient of a record with the label y, without dropout.

    Args:
        bank: the models.
        x: (1, …) the features for all models, or (runs, …) each model's own.
        y: the label.
    """
    own = None if len(x) == 1 else torch.eye(bank.runs, dtype=torch.bool, device=bank.device)
    labels = torch.full((len(x),), y, device=bank.device)
    total = bank.model.clipped_sum(bank.theta, bank.model.inputs(x), labels, own, bank.spec.max_grad_norm)
    return bank.model.flat(total)


@dataclass(frozen=True, eq=False)
class StepSlot:
    """A slot that is filled anew at each step.

    Attributes:
        worlds: the gradients of z and z′ at this step.
        in_world: (runs,) 0 if z is in the model's slot at this step, 1 if z′ is.
        canary_rate: the probability that the slot is sampled.
    """

    worlds: StepGradients
    in_world: Tensor
    canary_rate: float

    def rows(self, sampled: Tensor | None) -> None:
        return None

    def add_to(self, total: Tensor, sampled: Tensor | None) -> None:
        """Add the slot's gradients to the sums of clipped gradients, (runs, parameters), in place."""
        z, z_prime, support = self.worlds
        own = torch.where(self.in_world[:, None] == 0, z, torch.zeros_like(z) if z_prime is None else z_prime)
        if sampled is not None:
            own = own * sampled[:, None]
        if support is None:
            total += own
        else:
            total[:, support] += own

    def scores(self, bank: Bank) -> Tensor:
        r"""(runs,): how much the last step's privatised sum S speaks for z.

        With d = z − z′, or d = z beside an empty slot, it is :math:`\langle d/\lVert d\rVert, S - m\rangle / C`, where
        m is the canary rate times the middle of z and z′, or 0 beside an empty slot. It is 0 if z and z′ are equal.
        With ‖z‖ = C and z′ = −z that is N(±1, σ²), and beside an empty slot N(1, σ²) against N(0, σ²), plus what the
        other records contribute.

        Source: *Tight Auditing*, Algorithm 2 and section 5.2.
        """
        z, z_prime, support = self.worlds
        total = bank.noisy_average if support is None else bank.noisy_average[:, support]
        total = total * bank.expected_batch_size
        apart = z
        if z_prime is not None:
            apart = z - z_prime
            total = total - self.canary_rate * (z + z_prime) / 2
        length = torch.linalg.vector_norm(apart, dim=-1, keepdim=True)
        direction = torch.where(length > 0, apart / length, 0.0)
        found: Tensor = (total * direction).sum(dim=1) / bank.spec.max_grad_norm
        return found

    def distance(self, bank: Bank) -> Tensor:
        """(runs,): the distance between the clipped gradients of z and z′ at this step."""
        z, z_prime, _ = self.worlds
        apart = z if z_prime is None else z - z_prime
        length: Tensor = torch.linalg.vector_norm(apart, dim=-1)
        return length.expand(len(self.in_world))

    def gradient(self, bank: Bank) -> Tensor:
        return self.worlds.z

    def product(self, bank: Bank, gradient: Tensor) -> Tensor:
        """(runs,): the inner product of z's gradient with the last step's noisy average."""
        support = self.worlds.support
        average = bank.noisy_average if support is None else bank.noisy_average[:, support]
        return (average * gradient).sum(dim=1)
