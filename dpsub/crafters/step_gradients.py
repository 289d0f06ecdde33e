"""Canaries that are gradients, for audits of single steps: the same at each step, or drawn anew."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256

import numpy as np
import torch
from numpy.typing import NDArray

from dpsub._core import DPSGD, CanaryPair, checks
from dpsub._core.random_streams import stream
from dpsub.data import Task
from dpsub.models import Model, check_fits
from dpsub.trainers import Bank, StepGradients

GRADIENTS = ("dirac", "constant", "random")


@dataclass(frozen=True)
class GradientEachStep:
    """A gradient of norm C that is drawn anew at each step. `gradient_each_step` makes it.

    Attributes:
        kind: "dirac", "constant" or "random".
        seed: of the draws.
        parameters: of one model.
        max_grad_norm: C.
        slot: the index of the private record that the canary replaces.
        task: the fingerprint of the task.
        adjacency: "substitute", where z′ = −z; otherwise the slot of z′ is empty.
    """

    kind: str
    seed: int
    parameters: int
    max_grad_norm: float
    slot: int
    task: str
    adjacency: str = "substitute"

    @property
    def scenario(self) -> str:
        return f"{self.kind} anew"

    @property
    def details(self) -> Mapping[str, float | int | str]:
        return {"kind": self.kind, "seed": self.seed}

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that change with anything that determines the canaries."""
        return sha256(repr(self).encode()).hexdigest()[:16]

    def gradients(self, bank: Bank, step: int) -> StepGradients:
        """The gradients z and z′ of a step. They depend on the seed and the step alone.

        Args:
            bank: the models before the step, in all coordinates.
            step: from 1.

        Raises:
            ValueError: if the bank's models have another number of parameters.
        """
        if bank.model.parameters != self.parameters:
            raise ValueError(
                f"bank must have models of {self.parameters} parameters, got {bank.model.parameters}: craft for its "
                'model, and assemble it with coordinates="all"'
            )
        places, values = _drawn(self.kind, self.parameters, stream(self.seed, "crafter", step))
        z = torch.tensor(values * self.max_grad_norm, dtype=torch.float32, device=bank.device)
        support = None if places is None else torch.tensor(places, device=bank.device)
        return StepGradients(z, -z if self.adjacency == "substitute" else None, support)

    def against_nothing(self, *, adjacency: str) -> GradientEachStep:
        """The same z against an empty slot, for "add_remove" or "zero_out"."""
        return replace(self, adjacency=checks.choice("adjacency", adjacency, ("add_remove", "zero_out")))


def gradient_each_step(task: Task, model: Model, spec: DPSGD, *, kind: str, seed: int) -> GradientEachStep:
    r"""A gradient canary that is drawn anew at each step: z = C·g and z′ = −C·g with ‖g‖ = 1.

    `fixed_gradient` draws one such gradient for all steps. `gradient` (S2) is a fixed Dirac too, but chooses the
    parameter that training moves least.

    Args:
        task: the private records. The canary takes the place of a random one.
        model: the architecture to be audited.
        spec: its `max_grad_norm` is C. Nothing else is used.
        kind: "dirac": 1 at one random parameter, 0 elsewhere. "random": a uniformly random direction. "constant": the
            same value at all parameters; nothing is drawn, so it is the same at each step.
        seed: for the draws of each step and the choice of the record to replace.

    Returns:
        A `dpsub.trainers.StepCanary` under substitution. `against_nothing(adjacency="add_remove")` has z alone, as in
        the paper. Each step draws from a stream of its own, which is independent of the audit's streams.

    Raises:
        ValueError: if an argument is out of range.

    Source: *Tight Auditing*, section 5.3 and appendix C.2, where a Dirac that is drawn anew does best.

    >>> from dpsub import DPSGD, crafters, data, models
    >>> task = data.digits(n_train=20)
    >>> spec = DPSGD(1.0, 0.5, 1.0, 10, 0.1)
    >>> canary = crafters.gradient_each_step(task, models.linear(task), spec, kind="dirac", seed=0)
    >>> canary.scenario, canary.against_nothing(adjacency="add_remove").adjacency
    ('dirac anew', 'add_remove')
    """
    kind, seed = _checked(task, model, spec, kind, seed)
    slot = int(stream(seed, "crafter").integers(len(task.y_train)))
    return GradientEachStep(kind, seed, model.parameters, spec.max_grad_norm, slot, task.fingerprint)


def fixed_gradient(task: Task, model: Model, spec: DPSGD, *, kind: str, seed: int) -> CanaryPair:
    r"""A gradient canary that is the same at each step: z = C·g and z′ = −C·g with ‖g‖ = 1.

    Nothing is trained to choose it. `gradient` (S2) instead puts a Dirac on the parameter that training moves least,
    where the other records disturb it least. `gradient_each_step` draws anew at each step.

    Args:
        task, model, spec: as in `gradient_each_step`.
        kind: "dirac": 1 at one random parameter, 0 elsewhere. "random": a uniformly random direction. "constant": the
            same value at all parameters.
        seed: for the gradient and the choice of the record to replace.

    Returns:
        A substitute pair of gradients of norm C, 2C apart. Details: `kind`, `seed`, and `parameter`, the index of a
        Dirac.

    Raises:
        ValueError: if an argument is out of range.

    Source: *Tight Auditing*, section 5.3 and appendix C.2.

    >>> from dpsub import DPSGD, crafters, data, models
    >>> task = data.digits(n_train=20)
    >>> spec = DPSGD(1.0, 0.5, 1.0, 10, 0.1)
    >>> pair = crafters.fixed_gradient(task, models.linear(task), spec, kind="dirac", seed=0)
    >>> float(pair.z.max()), int((pair.z != 0).sum())
    (0.5, 1)
    """
    kind, seed = _checked(task, model, spec, kind, seed)
    rng = stream(seed, "crafter")
    slot = int(rng.integers(len(task.y_train)))
    places, values = _drawn(kind, model.parameters, rng)
    z = np.zeros(model.parameters, dtype=np.float32)
    z[slice(None) if places is None else places] = values * spec.max_grad_norm
    details: dict[str, float | int | str] = {"kind": kind, "seed": seed}
    if places is not None:
        details["parameter"] = int(places[0])
    return CanaryPair(z, -z, slot, f"{kind} fixed", task=task.fingerprint, details=details)


def _drawn(
    kind: str, parameters: int, rng: np.random.Generator
) -> tuple[NDArray[np.int64] | None, NDArray[np.float32]]:
    """A gradient of norm 1: the indices of the parameters where it is not 0, or None for all, and its values there."""
    if kind == "dirac":
        return rng.integers(parameters, size=1), np.ones(1, dtype=np.float32)
    if kind == "constant":
        return None, np.full(parameters, 1 / math.sqrt(parameters), dtype=np.float32)
    direction = rng.standard_normal(parameters, dtype=np.float32)
    return None, direction / np.float32(np.linalg.norm(direction.astype(np.float64)))


def _checked(task: Task, model: Model, spec: DPSGD, kind: str, seed: int) -> tuple[str, int]:
    check_fits(model, task)
    if not isinstance(spec, DPSGD):
        raise ValueError(f"spec must be a dpsub.DPSGD, got a {type(spec).__name__}")
    return checks.choice("kind", kind, GRADIENTS), checks.whole("seed", seed, at_least=0)
