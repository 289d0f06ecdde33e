"""Canaries that are crafted anew at each step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, Self, runtime_checkable

import torch
from torch import Tensor

from dpsub.trainers.bank import Bank, StepGradients


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

    def gradients(self, bank: Bank, step: int) -> StepGradients:
        """The gradients of the coming step.

        It may look at the current models, and draws only from streams of its own seed. The coins that say which world
        is in the slot must not influence it otherwise than through the models.

        Args:
            bank: R models in training.
            step: the number of the coming step, from 1.
        """

    def against_nothing(self, *, adjacency: str) -> Self:
        """The same z against an empty slot."""


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
