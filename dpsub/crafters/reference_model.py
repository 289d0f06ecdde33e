"""Models that adversaries train for themselves, without privacy.

The reference model shows which record has the least confidence and where gradients point. A pretrained start makes the
gradients of ordinary records short.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from threading import Event
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from dpsub._core import CanaryPair, Record, checks
from dpsub._core.random_streams import torch_seed
from dpsub.accounting import DPSGD
from dpsub.crafters.descent import moments
from dpsub.crafters.slots import check_auxiliary
from dpsub.data import Task
from dpsub.models.differentiation import ATTENTION, Instead
from dpsub.models.interface import Losses, Model, check_fits, losses_of, theta_of
from dpsub.trainers import Bank, assemble
from dpsub.trainers.devices import matmul_precision, side_by_side
from dpsub.trainers.slot import loss_products

CANDIDATES_AT_ONCE = 4096
LEAST_NORM = 1e-30  # a shorter gradient has no reliable direction
Details = Mapping[str, float | int | str]
Trace = Mapping[str, NDArray[Any]]


class Reference(NamedTuple):
    """A model trained without privacy, and the target z: by default the private record with the least confidence.

    Attributes:
        task: the private records.
        model: the architecture.
        theta: the parameters of the one model. Crafters compute in its precision: float64, since the gradient of a
            well-learned record is a difference of nearly equal numbers; float32 where the module or its loss cannot
            compute in float64.
        z: the target.
        slot: the target's index among the private records.
        confidence: (n,) the probability that the model gave to each private record's label, averaged over training.
        seed: of the training.
    """

    task: Task
    model: Model
    theta: Tensor
    z: Record
    slot: int
    confidence: NDArray[np.float64]
    seed: int

    @property
    def module(self) -> nn.Module:
        """The trained model, in the precision of theta."""
        with torch.random.fork_rng(devices=[]):  # a new module draws random weights first
            return self.model.module(self.model.flat(self.theta)[0]).to(self.theta.dtype)

    def inputs(self, x: ArrayLike) -> Tensor:
        """Records in the precision of theta, as the model takes them."""
        return self.model.inputs(torch.tensor(x, dtype=self.theta.dtype))

    @property
    def has_gradient(self) -> bool:
        """Whether the target's gradient has a direction. Losses may ignore a label."""
        return bool(self.model.gradient_norms(self.theta, *self.batch_of_z) > LEAST_NORM)

    @property
    def batch_of_z(self) -> tuple[Tensor, Tensor]:
        """z as the model takes it, (1, …), and its label (1,)."""
        return self.inputs(self.z.x[None]), torch.tensor([self.z.y])

    def gradient(self) -> Tensor:
        """(parameters,): the gradient of the target, in the order of `module` and the precision of theta.

        Raises:
            ValueError: if it is too short to have a direction.
        """
        if not self.has_gradient:
            raise ValueError(
                f"target must have a gradient, got private record {self.slot}, whose gradient in the reference model "
                "is 0 or nearly so: train for fewer steps, or choose another target, of a label that the loss does not "
                "ignore"
            )
        x, y = torch.tensor(self.z.x[None], dtype=self.theta.dtype), torch.tensor([self.z.y])
        return gradient_of(self.module, losses_of(self.model), x, y)

    def pair(self, scenario: str, z_prime: Record, details: Details, trace: Trace) -> CanaryPair:
        """The canary of the target and another record, with what the reference says of the target."""
        details = {"confidence": float(self.confidence[self.slot]), **details, "seed": self.seed}
        trace = {"confidence": self.confidence, **trace}
        return CanaryPair(
            self.z, z_prime, self.slot, scenario, details=details, task=self.task.fingerprint, trace=trace
        )

    def with_target(self, slot: int) -> Reference:
        """The same model, with another private record as its target."""
        return self._replace(z=Record(self.task.x_train[slot], int(self.task.y_train[slot])), slot=int(slot))

    def targets(self, slots: Iterable[int]) -> Iterator[Reference]:
        """The same model, with each of these private records as its target, but those without a gradient."""
        return (candidate for candidate in map(self.with_target, slots) if candidate.has_gradient)


def noiseless_training(task: Task, model: Model, spec: DPSGD, seed: int, *, clip: bool = True) -> Iterator[Bank]:
    """One model in training on all private records without noise: its bank before the first step and after each.

    Raises:
        ValueError: if model and task do not fit, or the training diverges.
    """
    check_fits(model, task)
    generator = torch.Generator().manual_seed(torch_seed(seed, "crafter"))
    bank = assemble(model, task, spec, bits=np.zeros(1, dtype=np.int8), generator=generator)
    with matmul_precision("highest"):
        yield bank
        for _ in bank.train(noise=False, clip=clip):
            yield bank
        if not torch.isfinite(bank.model.logits(bank.theta, bank.inputs)).all():
            without = "noise" if clip else "clipping and noise"
            raise ValueError(f"spec must be such that training without {without} does not diverge, got {spec}")


@checks.checked("spec", "seed")
def reference(task: Task, model: Model, spec: DPSGD, *, seed: int, target: int | None = None) -> Reference:
    """Train the model that an adversary who chooses records trains for itself: without clipping and noise.

    It takes the batches, steps, learning rate and optimizer of `spec`. Crafters call it with the same arguments, so
    this is the model that they craft with.

    Args:
        task: the private records, (n, …), as they are.
        model, spec: as in `crafted_input`. The noise multiplier and the clipping bound are not used.
        seed: ≥ 0; of the start, if it is random, and of the batches.
        target: the index of the private record to be z, from 0 to n − 1. None: the one with the least confidence, of
            those that have a gradient.

    Returns:
        A `Reference`: `module`, the trained model as a `torch.nn.Module`, in float64 if it can be; `z`, the target, and
        `slot`, its index; `confidence` (n,), the probability of each private record's label, averaged over at most 100
        evenly spaced steps; `gradient()`, (parameters,), that of the target's loss at the end.

    Raises:
        ValueError: if an argument is out of range, model and task do not fit, or the training diverges.

    Source: *Beyond Membership*, section 3.2.2, "least confidence over training".

    >>> from dpsub import DPSGD, crafters, data, models
    >>> task = data.from_arrays([[0.0, 3.0], [1.0, 2.0], [1.0, 5.0]], [0, 1, 1])
    >>> found = crafters.reference(task, models.linear(task), DPSGD(1.0, 1.0, 1.0, 10, 0.1), seed=0)
    >>> found.slot, found.confidence.shape, tuple(found.gradient().shape)
    (0, (3,), (6,))
    """
    training = noiseless_training(task, model, spec, seed, clip=False)
    bank = next(training)
    if target is not None:
        target = checks.whole("target", target, at_least=0, at_most=len(task.y_train) - 1)
    seen = moments(spec.steps)
    confidence = torch.zeros(len(task.y_train), dtype=torch.float64)
    for step, _ in enumerate(training, 1):
        if step in seen:
            logits = bank.model.logits(bank.theta, bank.inputs)[..., 0]
            confidence += torch.softmax(logits, dim=1).gather(1, bank.labels[:, None])[:, 0]
    slots = confidence.argsort(stable=True).tolist() if target is None else [target]
    first = Record(task.x_train[slots[0]], int(task.y_train[slots[0]]))
    for theta in (bank.theta.double(), bank.theta):  # float32, in which it has trained, if float64 fails
        trained = Reference(task, model, theta, first, slots[0], confidence.numpy() / (len(seen) - 1), seed)
        with suppress(Exception):
            return next(trained.targets(slots), trained)
    return trained


def gradient_of(module: nn.Module, losses: Losses, x: Tensor, y: Tensor) -> Tensor:
    """(parameters,): the gradient of the sum of the records' losses. It is differentiable by x if x requires that."""
    with Instead(ATTENTION):
        loss = losses(module(x), y).sum()
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    parts = torch.autograd.grad(loss, trained, create_graph=x.requires_grad, materialize_grads=True)
    return torch.cat([part.flatten() for part in parts])


def clipped_path(task: Task, model: Model, spec: DPSGD, seed: int, count: int) -> Tensor:
    """(count, parameters): one model in a training with clipping, without noise, at even spaces from the start on."""
    training, seen = noiseless_training(task, model, spec, seed), moments(spec.steps, count)[:-1]
    return torch.stack([model.flat(bank.theta)[0].clone() for step, bank in enumerate(training) if step in seen])


class Geometry(NamedTuple):
    """The gradients of k candidates, compared with the target's gradient.

    Attributes:
        cosine: (k,) cosine with the target's gradient; 0 for a candidate whose gradient is 0.
        ratio: (k,) norm divided by the norm of the target's gradient.
        norm: the norm of the target's gradient.
    """

    cosine: NDArray[np.float64]
    ratio: NDArray[np.float64]
    norm: float

    def details(self, chosen: int) -> Mapping[str, float]:
        """The entries for `CanaryPair.details`, for the candidate that was chosen."""
        return {"norm": self.norm, "norm_ratio": float(self.ratio[chosen]), "cosine": float(self.cosine[chosen])}


def compare_gradients(trained: Reference, x: NDArray[np.float32], y: NDArray[np.int64]) -> Geometry:
    """Compare the gradients of k records (x, y) with the gradient of the target."""
    model, theta = trained.model, trained.theta
    norm = float(trained.gradient().norm())
    direction = model.clipped_sum(theta, *trained.batch_of_z, None, math.inf)  # the same gradient, shaped like theta
    products, norms = [], []
    for start in range(0, len(y), CANDIDATES_AT_ONCE):
        part = slice(start, start + CANDIDATES_AT_ONCE)
        records = trained.inputs(x[part]), torch.tensor(y[part])
        products.append(loss_products(model, theta, *records, direction))
        norms.append(model.gradient_norms(theta, *records))
    product, lengths = (torch.cat(parts)[:, 0].double().numpy() for parts in (products, norms))
    cosine = product / np.maximum(lengths * norm, np.finfo(float).tiny)
    return Geometry(cosine=cosine, ratio=lengths / norm, norm=norm)


def crafted_pair(
    craft: Callable[[Reference], CanaryPair], slots: Iterable[int], target: Any, task: Task, *setting: Any, seed: int
) -> CanaryPair:
    """The pair of records that is crafted for a target, or for the most exposed one.

    A target's exposure is the distance of the clipped gradients of its z and z′ in units of C, averaged over ten
    moments of a training with clipping and without noise.

    Args:
        craft: a pair from a reference with its target.
        slots: the private records that may be the most exposed target.
        target: as in `reference`, or "most_exposed".
        task, setting, seed: the task, and the model and spec; as in `reference`.
    """
    if target != "most_exposed":
        return craft(reference(task, *setting, seed=seed, target=target))
    model, spec = setting
    pairs = [craft(candidate) for candidate in reference(task, model, spec, seed=seed).targets(slots)]
    path = clipped_path(task, model, spec, seed, 10)
    theta, signs = theta_of(model, path), torch.tensor([[1.0], [-1.0]]).expand(-1, len(path))
    exposure = np.full(len(task.y_train), np.nan)
    for pair in pairs:
        x, y = map(torch.tensor, pair.records or ())
        apart = model.flat(model.clipped_sum(theta, model.inputs(x), y, signs, spec.max_grad_norm))
        exposure[pair.slot] = apart.norm(dim=1).mean() / spec.max_grad_norm
    found = max(pairs, key=lambda pair: float(exposure[pair.slot]))
    return replace(found, trace={**found.trace, "exposure": exposure})


@checks.checked("seed", "learning_rate", epochs=checks.whole, batch_size=checks.whole)
def pretrained_start(
    task: Task,
    model: Model,
    *,
    seed: int,
    epochs: int = 5,
    batch_size: int = 32,
    learning_rate: float = 0.01,
) -> NDArray[np.float32]:
    """The worst-case start: parameters trained without privacy on the auxiliary records.

    A model that starts there has learnt what private records like these teach. Their gradients are short, and the
    gradient of a canary that differs from them is not. The accountant's ε holds for every start, so an auditor may
    choose this one. It trains without dropout.

    Args:
        task: its auxiliary records are trained on, its private records are not. If the canary is an auxiliary record,
            as of `in_distribution` and `natural`, the start has learnt it as well.
        model: the architecture. It starts at its fixed start, or at one random start drawn from the seed.
        seed: of the start and of the order of the records.
        epochs: passes over the auxiliary records. 5 are published, for MNIST. Few records need more.
        batch_size: the records of one step of plain SGD. The last batch of an epoch may have fewer.
        learning_rate: η > 0 on the batch's mean loss.

    Returns:
        (parameters,) float32 in the order of `model.flat`, as `model.starting_from` takes them.

    Raises:
        ValueError: if an argument is out of range, the model does not fit the task, or the auxiliary records are
            missing or private. If the training diverges, `starting_from` refuses what it returns.

    Source: Annamalai and De Cristofaro (2024), section 4.1; *Adversarial Sample-Based Approach*, section 5.4,
    "worst case initialization".

    >>> from dpsub import crafters, data, models
    >>> task = data.digits(n_train=50)
    >>> model = models.mlp(task, (8,))
    >>> start = crafters.pretrained_start(task, model, seed=0, epochs=1)
    >>> start.shape, model.starting_from(start).initial[:5]
    ((522,), 'fixed')
    """
    check_fits(model, task)
    check_auxiliary(task, "to train on")
    generator = torch.Generator().manual_seed(torch_seed(seed, "crafter", 2))
    theta, losses = model.initial_parameters(1, generator), losses_of(model)
    x, y = model.inputs(torch.tensor(task.x_aux)), torch.tensor(task.y_aux)

    def train(theta: Tensor, stop: Event) -> Tensor:
        optimizer = torch.optim.SGD([theta.requires_grad_()], lr=learning_rate)
        for _ in range(epochs):
            for batch in torch.split(torch.randperm(len(y), generator=generator), batch_size):
                optimizer.zero_grad()
                torch.autograd.backward(losses(model.logits(theta, x[batch])[..., 0], y[batch]).mean())
                optimizer.step()
        return model.flat(theta.detach())[0]

    with matmul_precision("highest"):
        [(_, start)] = side_by_side(train, [theta], 1)  # on one thread: the start does not depend on their number
    return start.numpy().copy()
