"""S2, and other canaries that are gradients: trained for, drawn once, or drawn anew at each step."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpsub._core import CanaryPair, Pairs, checks
from dpsub._core.frozen import fingerprint
from dpsub._core.random_streams import stream
from dpsub.accounting import DPSGD
from dpsub.crafters.descent import moments
from dpsub.crafters.reference_model import noiseless_training
from dpsub.crafters.slots import random_slot, shuffled_slots
from dpsub.data import Task
from dpsub.models.interface import Model, check_fits
from dpsub.trainers.bank import Bank, StepGradients

GRADIENTS = ("dirac", "constant", "random")


@checks.checked("spec", "seed")
def gradient(task: Task, model: Model, spec: DPSGD, *, seed: int) -> CanaryPair:
    r"""S2, the crafted gradient: ±C on the parameter that training moves least, 0 elsewhere.

    One model is trained on the task with clipping but without noise. Parameter j travels
    :math:`S_j = \sum_t |\theta_{t+1}^j - \theta_t^j|`. The parameter that travels least carries the canary, since the
    other records disturb it least. If each model has a start of its own, a parameter that is quiet in this training may
    travel farther in others.

    Args:
        task: the private records, which this adversary knows.
        model: the architecture to be audited.
        spec: the DP-SGD parameters of the audit. The noise multiplier is not used.
        seed: for the start and batches of the noiseless training, and for the choice of the record to replace.

    Returns:
        A substitute pair of gradients of norm C, 2C apart. `details["parameter"]` is the index among the flattened
        parameters and `details["travel"]` how far it travelled. `details["unmoved"]` counts the parameters that did not
        move: at pixels that no private record uses, the canary meets no other record, as in the worst case. In the
        trace: `travel` (parameters,); `path` (points, 3), the parameters with the least, median and most travel after
        `step` (points,) steps.

    Raises:
        ValueError: if an argument is out of range, or the training diverges.

    Source: *Beyond Membership*, section 3.2.1, Algorithm 2.
    """
    slot = random_slot(task, model, seed)
    seen = moments(spec.steps)
    travel, path = noiseless_travel(task, model, spec, seed, seen)
    parameter = int(travel.argmin())
    shown = [parameter, int(travel.median(dim=0).indices), int(travel.argmax())]
    z = np.zeros(model.parameters, dtype=np.float32)
    z[parameter] = spec.max_grad_norm
    unmoved = int((travel == 0).sum())
    return CanaryPair(
        z,
        -z,
        slot,
        "S2",
        task=task.fingerprint,
        details={"parameter": parameter, "travel": float(travel[parameter]), "unmoved": unmoved, "seed": seed},
        trace={"travel": travel.numpy(), "path": path[:, shown].numpy(), "step": seen},
    )


@checks.checked("spec", "seed")
def gradient_pairs(task: Task, model: Model, spec: DPSGD, *, pairs: int, seed: int) -> Pairs:
    """m gradient pairs, ±C on a parameter each: on the m parameters that training moves least, as `gradient` has one.

    The pairs are orthogonal, so that none disturbs another. Where private records leave parameters unmoved, as at
    pixels that none of them uses, no record disturbs a pair either.

    Args:
        task, model, spec: as in `gradient`.
        pairs: m, from 1 to n − 1 and to the number of parameters.
        seed: for the noiseless training, and for the choice of the records to replace.

    Returns:
        Pairs of gradients of norm C, 2C apart. Details: `unmoved`, the number of parameters that did not move, and
        `seed`. In the trace: `travel` (m,), how far each pair's parameter travelled, in ascending order.

    Raises:
        ValueError: if an argument is out of range, or the training diverges.

    Source: *Beyond Membership*, Algorithm 2, for the parameter that travels least; Keinan et al. (2025), Algorithm 1.

    >>> from dpsub import DPSGD, crafters, data, models
    >>> task = data.digits(n_train=100)
    >>> spec = DPSGD(1.0, 0.5, 1.0, 10, 0.1)
    >>> pairs = crafters.gradient_pairs(task, models.linear(task), spec, pairs=20, seed=0)
    >>> len(pairs), float(pairs[3].z.max()), float(pairs[3].z_prime.min())
    (20, 0.5, -0.5)
    """
    pairs, order = shuffled_slots(task, model, pairs, seed)
    if pairs > model.parameters:
        raise ValueError(f"pairs must be <= {model.parameters}, the number of parameters, got {pairs}")
    travel = noiseless_travel(task, model, spec, seed)[0].numpy()
    places = np.argsort(travel, kind="stable")[:pairs]
    z = np.eye(pairs, dtype=np.float32) * np.float32(spec.max_grad_norm)
    return Pairs(
        order[:pairs],
        z,
        -z,
        support=places,
        parameters=model.parameters,
        scenario="S2",
        details={"unmoved": int((travel == 0).sum()), "seed": seed},
        task=task.fingerprint,
        trace={"travel": travel[places]},
    )


def noiseless_travel(
    task: Task, model: Model, spec: DPSGD, seed: int, seen: Container[int] = ()
) -> tuple[Tensor, Tensor]:
    """How far each parameter of one model travels in training with clipping and without noise.

    Args:
        task, model, spec, seed: as in `gradient`.
        seen: numbers of steps.

    Returns:
        The travel (parameters,), and the parameters at the start and after the steps that are `seen`, (…, parameters).

    Raises:
        ValueError: if the training diverges.
    """
    training = noiseless_training(task, model, spec, seed)
    before = model.flat(next(training).theta)[0].clone()
    travel, path = torch.zeros_like(before), [before]
    for step, bank in enumerate(training, 1):
        theta = model.flat(bank.theta)[0].clone()
        travel += (theta - before).abs()
        before = theta
        if step in seen:
            path.append(theta)
    return travel, torch.stack(path)


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
        # Renaming the class or a field changes the repr, and so the fingerprint of audits that are already stored.
        return fingerprint(self)

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
        places, values = _unit_gradient(self.kind, self.parameters, stream(self.seed, "crafter", step))
        z = torch.tensor(values * self.max_grad_norm, dtype=torch.float32, device=bank.device)
        support = places if isinstance(places, slice) else torch.tensor(places, device=bank.device)
        return StepGradients(z, -z if self.adjacency == "substitute" else None, support)

    def against_nothing(self, *, adjacency: str) -> GradientEachStep:
        """The same z against an empty slot, for "add_remove" or "zero_out"."""
        return replace(self, adjacency=checks.choice("adjacency", adjacency, ("add_remove", "zero_out")))


@checks.checked("spec", "seed", kind=partial(checks.choice, options=GRADIENTS))
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
        A `StepCanary` under substitution. `against_nothing(adjacency="add_remove")` has z alone, as in
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
    slot = random_slot(task, model, seed)
    return GradientEachStep(kind, seed, model.parameters, spec.max_grad_norm, slot, task.fingerprint)


@checks.checked("spec", "seed", kind=partial(checks.choice, options=GRADIENTS))
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
    check_fits(model, task)
    rng = stream(seed, "crafter")
    slot = int(rng.integers(len(task.y_train)))
    places, values = _unit_gradient(kind, model.parameters, rng)
    z = np.zeros(model.parameters, dtype=np.float32)
    z[places] = values * spec.max_grad_norm
    details: dict[str, float | int | str] = {"kind": kind, "seed": seed}
    if not isinstance(places, slice):
        details["parameter"] = int(places[0])
    return CanaryPair(z, -z, slot, f"{kind} fixed", task=task.fingerprint, details=details)


def _unit_gradient(
    kind: str, parameters: int, rng: np.random.Generator
) -> tuple[NDArray[np.int64] | slice, NDArray[np.float32]]:
    """A gradient of norm 1: the indices of its nonzero coordinates, or a slice of all, and its values there."""
    if kind == "dirac":
        return rng.integers(parameters, size=1), np.ones(1, dtype=np.float32)
    if kind == "constant":
        return slice(None), np.full(parameters, 1 / math.sqrt(parameters), dtype=np.float32)
    direction = rng.standard_normal(parameters, dtype=np.float32)
    return slice(None), direction / np.float32(np.linalg.norm(direction.astype(np.float64)))
