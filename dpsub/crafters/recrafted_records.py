"""Canaries that are records, crafted anew at each step for the models as they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpsub._core import checks
from dpsub._core.frozen import Frozen, read_only
from dpsub._core.random_streams import stream
from dpsub.crafters.record_descents import Ascent, Turning, mean_gradient
from dpsub.models import losses_of
from dpsub.trainers import Bank, StepGradients
from dpsub.trainers.step_canaries import clipped_gradients


@dataclass(frozen=True, eq=False)
class RecordEachStep(Frozen):
    """A record that is crafted anew at each step. `record_each_step` makes it.

    Attributes:
        kind: "mislabeled", "blank", "adversarial" or "crafted".
        x, y: the records that it starts from.
        classes: the number of classes.
        change: how it changes the record for a model; None: not at all.
        target: the index of the record to start from; None: a random one at each step.
        seed: of the draws.
        slot: the index of the private record that the canary replaces.
        task: the fingerprint of the task.
        adjacency: "substitute", where z′ is z with another label; otherwise the slot of z′ is empty.
    """

    kind: str
    x: NDArray[np.float32] = field(repr=False)
    y: NDArray[np.int64] = field(repr=False)
    classes: int
    change: Ascent | Turning | None
    target: int | None
    seed: int
    slot: int
    task: str
    adjacency: str = "substitute"

    def __post_init__(self) -> None:
        object.__setattr__(self, "x", read_only(self.x))
        object.__setattr__(self, "y", read_only(self.y))

    @property
    def scenario(self) -> str:
        return self.kind

    @property
    def details(self) -> Mapping[str, float | int | str]:
        found: dict[str, float | int | str] = {"kind": self.kind, "seed": self.seed, "records": len(self.y)}
        if self.target is not None:
            found["target"] = self.target
        if self.change is not None:
            found |= {"crafting_steps": self.change.steps, "crafting_rate": self.change.rate}
        if isinstance(self.change, Ascent):
            found |= {"ball": self.change.ball, "radius": self.change.radius}
        return found

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that change with anything that determines the canaries."""
        digest = sha256(repr((self, self.x.shape)).encode())
        digest.update(self.x.astype("<f4").tobytes())
        digest.update(self.y.astype("<i8").tobytes())
        return digest.hexdigest()[:16]

    def record(self, bank: Bank, step: int) -> tuple[Tensor, int]:
        """The record of a step: features (1, …), or (runs, …) if each model has its own; and its label.

        Args:
            bank: the models before the step, in all coordinates.
            step: from 1.

        Raises:
            ValueError: if the bank's models take records of another shape, or crafting diverges.
        """
        if bank.model.input_shape != self.x.shape[1:]:
            raise ValueError(
                f"bank must have models of records {self.x.shape[1:]}, got {bank.model.input_shape}: craft for its "
                'model, and assemble it with coordinates="all"'
            )
        rng = stream(self.seed, "crafter", step)
        drawn, other = int(rng.integers(len(self.y))), int(rng.integers(1, self.classes))
        start = drawn if self.target is None else self.target
        x, y = torch.tensor(self.x[start], device=bank.device), int(self.y[start])
        if self.kind == "mislabeled":
            y = (y + other) % self.classes
        elif self.kind == "blank":
            y = int(rng.integers(self.classes))
        if self.change is None:
            return x[None], y
        return torch.stack([self._changed(bank, parameters, x, y) for parameters in bank.model.flat(bank.theta)]), y

    def _changed(self, bank: Bank, parameters: Tensor, x: Tensor, y: int) -> Tensor:
        module, losses = bank.model.module(parameters).to(bank.device), losses_of(bank.model)
        if isinstance(self.change, Ascent):
            return self.change(module, losses, x, y)
        assert self.change is not None
        others = torch.tensor(self.x, device=bank.device), torch.tensor(self.y, device=bank.device)
        return self.change(module, losses, x, y, mean_gradient(module, losses, *others))

    def gradients(self, bank: Bank, step: int) -> StepGradients:
        """The clipped gradients of z and z′ at the current models, as training on these records would add them.

        Args:
            bank, step: as in `record`.

        Raises:
            ValueError: as in `record`.
        """
        x, y = self.record(bank, step)
        z = clipped_gradients(bank, x, y)
        if self.adjacency != "substitute":
            return StepGradients(z, None)
        farthest, z_prime = torch.full_like(z[:, 0], -1), z
        for label in range(self.classes):
            if label != y:
                other = clipped_gradients(bank, x, label)
                distance = torch.linalg.vector_norm(other - z, dim=1)
                z_prime = torch.where((distance > farthest)[:, None], other, z_prime)
                farthest = torch.maximum(farthest, distance)
        return StepGradients(z, z_prime)

    def against_nothing(self, *, adjacency: str) -> RecordEachStep:
        """The same z against an empty slot, for "add_remove" or "zero_out"."""
        return replace(self, adjacency=checks.choice("adjacency", adjacency, ("add_remove", "zero_out")))
