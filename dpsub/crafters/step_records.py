"""Canaries that are records, crafted anew at each step for the models as they are.

A record is changed to raise its loss, or to turn its gradient.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dpsub._core import checks
from dpsub._core.frozen import fingerprint
from dpsub._core.random_streams import stream
from dpsub.accounting import DPSGD
from dpsub.crafters.descent import descend, feature_gradient
from dpsub.crafters.reference_model import gradient_of
from dpsub.crafters.slots import check_not_private, random_slot
from dpsub.data import Task
from dpsub.data.tasks import Records
from dpsub.models.interface import Losses, Model, losses_of
from dpsub.trainers.bank import Bank, StepGradients
from dpsub.trainers.step_canaries import clipped_gradients

OPTIONS = {  # of record_each_step, by kind
    "mislabeled": {"target"},
    "blank": set(),
    "adversarial": {"steps", "learning_rate", "radius", "target"},
    "crafted": {"steps", "learning_rate", "target"},
}
RADIUS = 8 / 255  # as is usual for pixels from 0 to 1
AT_ONCE = 512  # records in one backward pass
TINY = 1e-30  # the floor of norms and their products in divisors


@checks.checked(
    "spec",
    "seed",
    "steps",
    "learning_rate",
    kind=partial(checks.choice, options=tuple(OPTIONS)),
    radius=partial(checks.real, above=0),
)
def record_each_step(
    task: Task,
    model: Model,
    spec: DPSGD,
    *,
    kind: str,
    seed: int,
    steps: int | None = None,
    learning_rate: float | None = None,
    radius: float | None = None,
    target: int | None = None,
) -> RecordEachStep:
    r"""A record canary that is crafted anew at each step, for each model as it is before the step.

    It starts from a record that is not private: an auxiliary one, or a test record if the task has no auxiliary ones.
    Under substitution z′ is the same record with the label whose clipped gradient at the current model is farthest from
    z's. The paper has no such pair; it audits z against nothing.

    Args:
        task: the private records, one of which the canary replaces, and the others to start from.
        model: the architecture to be audited.
        spec: checked only. Gradients are clipped to the bound of the training that is audited.
        kind: "mislabeled": a record with a random wrong label. "blank": all features 0, and a random label.
            "adversarial": projected gradient ascent on the loss of a record's own label. "crafted": a record with its
            own label, changed until its gradient is as orthogonal as possible to the mean gradient of all records that
            are not private (the paper's Algorithm 3). The private ones' gradients stay unseen.
        seed: for the draws of each step and the choice of the record to replace.
        steps: ≥ 1, of "adversarial" (by default 10) and "crafted" (by default 20). The paper gives none of these
            numbers. "crafted" keeps the best of its steps, where Algorithm 3 returns the last.
        learning_rate: > 0. Of "adversarial": how far a step moves the record, by default a quarter of the radius. Of
            "crafted": η, by default 10.
        radius: > 0; by how much "adversarial" changes a feature at most. By default the features' range times 8/255.
            The features are not kept within their range.
        target: the index of the record to start from, among the auxiliary (or test) records. By default a random one at
            each step.

    Returns:
        A `StepCanary` under substitution. `against_nothing(adjacency="add_remove")` is the paper's.
        Details: `kind`, `seed`, `records`, the number of records to start from, and what was chosen above, as
        `crafting_steps`, `crafting_rate`, `radius` and `target`. Each step draws from a stream of its own,
        which is independent of the audit's streams.

    Raises:
        ValueError: if an argument is out of range or not one of this kind; if there are neither auxiliary nor test
            records, or some of them are private ones; if the model cannot be differentiated by its records.

    Source: *Tight Auditing*, section 5.3, Algorithm 3 and appendix C.3.

    >>> from dpsub import DPSGD, crafters, data, models
    >>> task = data.digits(n_train=20)
    >>> spec = DPSGD(1.0, 0.5, 1.0, 10, 0.1)
    >>> canary = crafters.record_each_step(task, models.linear(task), spec, kind="crafted", seed=0)
    >>> canary.details["crafting_steps"], canary.details["crafting_rate"]
    (20, 10.0)
    """
    slot = random_slot(task, model, seed)
    given = {"steps": steps, "learning_rate": learning_rate, "radius": radius, "target": target}
    for name, value in given.items():
        if value is not None and name not in OPTIONS[kind]:
            raise ValueError(f"{name} must be left out for kind {kind!r}, got {value!r}")
    x, y = np.zeros((1, *task.x_train.shape[1:]), dtype=np.float32), np.zeros(1, dtype=np.int64)
    if kind != "blank":
        x, y = _starting_records(task)
    if target is not None:
        target = checks.whole("target", target, at_least=0, at_most=len(y) - 1)
    change: Ascent | Turning | None = None
    if kind == "crafted":
        change = Turning(steps or 20, learning_rate or 10.0)
    elif kind == "adversarial":
        radius = radius or RADIUS * float(np.ptp(x))
        if not radius:
            raise ValueError("radius must be given where all features of all records are equal, got None")
        change = Ascent(steps or 10, learning_rate or radius / 4, radius)
    return RecordEachStep(kind, x, y, task.num_classes, change, target, seed, slot, task.fingerprint)


def _starting_records(task: Task) -> Records:
    """The features and labels of the auxiliary records, or of the test records if there are none."""
    part = "aux" if len(task.y_aux) else "test"
    if not len(task.y_aux) and not len(task.y_test):
        raise ValueError(
            "task must have auxiliary or test records to start from, got neither: give x_aux and y_aux, or craft with "
            "kind='blank'"
        )
    check_not_private(task, part)
    return (task.x_aux, task.y_aux) if part == "aux" else (task.x_test, task.y_test)


@dataclass(frozen=True, eq=False)
class RecordEachStep:
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

    @property
    def scenario(self) -> str:
        return self.kind

    @property
    def details(self) -> Mapping[str, float | int | str]:
        about: dict[str, float | int | str] = {"kind": self.kind, "seed": self.seed, "records": len(self.y)}
        if self.target is not None:
            about["target"] = self.target
        return about if self.change is None else about | self.change.details

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that change with anything that determines the canaries."""
        # Renaming a class or a field changes the repr, and so the fingerprint of audits that are already stored.
        return fingerprint((self, self.x.shape), self.x, self.y)

    def record(self, bank: Bank, step: int) -> tuple[Tensor, int]:
        """The record of a step: features (1, …), or (runs, …) if each model has its own; and its label.

        Args:
            bank: the models before the step, in all coordinates.
            step: from 1.

        Raises:
            ValueError: if crafting diverges.
        """
        rng = stream(self.seed, "crafter", step)  # Every kind draws both numbers, so that all start alike.
        drawn, label_shift = int(rng.integers(len(self.y))), int(rng.integers(1, self.classes))
        start = drawn if self.target is None else self.target
        x, y = torch.tensor(self.x[start], device=bank.device), int(self.y[start])
        if self.kind == "mislabeled":
            y = (y + label_shift) % self.classes
        elif self.kind == "blank":
            y = int(rng.integers(self.classes))
        if self.change is None:
            return x[None], y
        modules = (bank.model.module(parameters).to(bank.device) for parameters in bank.model.flat(bank.theta))
        losses, label, others = losses_of(bank.model), torch.tensor([y]).to(x.device), (self.x, self.y)
        return torch.stack([self.change(module, losses, x, label, others) for module in modules]), y

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


@dataclass(frozen=True)
class Ascent:
    """Projected gradient ascent on the loss, by the signs of the gradient, within a box around the record.

    Attributes:
        steps: the number of steps.
        rate: how far each feature moves in one step.
        radius: how far it moves in all, at most.

    Source: Madry et al. (2018), without a random start.
    """

    steps: int
    rate: float
    radius: float

    @property
    def details(self) -> dict[str, float | int | str]:
        return {"crafting_steps": self.steps, "crafting_rate": self.rate, "radius": self.radius}

    def __call__(self, module: nn.Module, losses: Losses, x: Tensor, y: Tensor, others: Records) -> Tensor:
        """The changed x. The other records are not used. Where the gradient is 0, x does not move."""
        away = torch.zeros_like(x)
        for _ in range(self.steps):
            moved = (x + away).requires_grad_()
            slope = feature_gradient(losses(module(moved[None]), y)[0], moved)
            away = (away + self.rate * slope.sign()).clamp(-self.radius, self.radius)
        return x + away


@dataclass(frozen=True)
class Turning:
    """Gradient descent on |cos| of the record's gradient with the mean gradient of other records.

    Attributes:
        steps: the number of steps.
        rate: η.

    Source: *Tight Auditing*, Algorithm 3.
    """

    steps: int
    rate: float

    @property
    def details(self) -> dict[str, float | int | str]:
        return {"crafting_steps": self.steps, "crafting_rate": self.rate}

    def __call__(self, module: nn.Module, losses: Losses, x: Tensor, y: Tensor, others: Records) -> Tensor:
        """The x with the smallest |cos| along the descent; x itself if no step lowers it.

        An x without a gradient is skipped, since it would be no canary.

        Args:
            module: the model.
            losses: its loss.
            x, y: the record, and its label as (1,).
            others: features and labels of the records from whose mean gradient to turn away.

        Raises:
            ValueError: if x does not stay finite.
        """
        parts = zip(*(torch.split(torch.tensor(part, device=x.device), AT_ONCE) for part in others), strict=True)
        mean_gradient = torch.stack([gradient_of(module, losses, *part) for part in parts]).sum(dim=0) / len(others[1])

        def cosine(x: Tensor) -> tuple[Tensor, Tensor]:
            own = gradient_of(module, losses, x[None], y)
            norms = own.norm() * mean_gradient.norm()
            return (own @ mean_gradient).abs() / norms.clamp(min=TINY), norms

        best, least = x, math.inf
        for _, here, value, norms in descend(x, cosine, self.steps, self.rate):
            if norms > TINY and value < least:
                best, least = here, value
        return best
