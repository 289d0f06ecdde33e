"""Models that adversaries train for themselves, without privacy.

The reference model shows which record is least sure and where gradients point. A pretrained start makes the gradients
of ordinary records short.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from threading import Event
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn
from torch.func import functional_call, jvp

from dpsub._core import DPSGD, CanaryPair, Record, checks
from dpsub._core.random_streams import torch_seed
from dpsub.crafters.slots import check_auxiliary
from dpsub.data import Task
from dpsub.models import Model, check_fits, losses_of
from dpsub.models.differentiation import ATTENTION, Instead
from dpsub.models.interface import Losses
from dpsub.trainers import Bank, assemble
from dpsub.trainers.devices import matmul_precision, side_by_side

SNAPSHOTS = 100
AT_ONCE = 4096  # records
LEAST_NORM = 1e-30  # a shorter gradient has no reliable direction


class Reference(NamedTuple):
    """A model trained without privacy, and the target z: by default the private record it was least sure of.

    Attributes:
        model: the architecture.
        theta: the parameters of the one model, in float64: the gradient of a well-learned record is a difference of
            nearly equal numbers. In float32 where the module or its loss holds float32 numbers that it cannot mix with
            others. Crafters compute in this precision.
        z: the target.
        slot: the target's index among the private records.
        confidence: (n,) the probability that the model gave to each private record's label, averaged over training.
    """

    model: Model
    theta: Tensor
    z: Record
    slot: int
    confidence: NDArray[np.float64]

    @property
    def module(self) -> nn.Module:
        with torch.random.fork_rng(devices=[]):  # a new module draws random weights first
            return self.model.module(self.model.flat(self.theta)[0]).to(self.theta.dtype)

    def inputs(self, x: ArrayLike) -> Tensor:
        """Records in the precision of theta."""
        return torch.tensor(x, dtype=self.theta.dtype)

    @property
    def has_gradient(self) -> bool:
        """Whether the target's gradient has a direction. Losses may ignore a label."""
        return bool(self._gradient().norm() > LEAST_NORM)

    def _gradient(self) -> Tensor:
        return gradient_of(self.module, self.inputs(self.z.x), self.z.y, losses_of(self.model))

    def gradient(self) -> Tensor:
        """(parameters,): the gradient of the target, in the precision of theta.

        Raises:
            ValueError: if it is too short to have a direction.
        """
        if not self.has_gradient:
            raise ValueError(
                f"target must have a gradient, got private record {self.slot}, whose gradient in the reference model "
                "is 0 or nearly so: train for fewer steps, or choose another target, of a label that the loss does not "
                "ignore"
            )
        return self._gradient()

    def pair(
        self,
        task: Task,
        scenario: str,
        z_prime: Record,
        *,
        seed: int,
        details: Mapping[str, float | int | str],
        trace: Mapping[str, NDArray[Any]],
    ) -> CanaryPair:
        """The canary of the target and another record, with what the reference says of the target."""
        return CanaryPair(
            z=self.z,
            z_prime=z_prime,
            slot=self.slot,
            scenario=scenario,
            task=task.fingerprint,
            details={"confidence": float(self.confidence[self.slot]), **details, "seed": seed},
            trace={"confidence": self.confidence, **trace},
        )

    def with_target(self, task: Task, slot: int) -> Reference:
        """The same model, with another private record as its target."""
        return self._replace(z=Record(task.x_train[slot], int(task.y_train[slot])), slot=int(slot))


def snapshots(steps: int, most: int = SNAPSHOTS) -> set[int]:
    """100 evenly spaced steps up to `steps`, the last one included; all steps if there are fewer than 100."""
    return set(np.linspace(0, steps, min(steps, most) + 1)[1:].round().astype(int).tolist())


def untrained(task: Task, model: Model, spec: DPSGD, seed: int) -> Bank:
    """A bank of one model before its first step, on all private records as they are.

    Raises:
        ValueError: if model and task do not fit.
    """
    check_fits(model, task)
    generator = torch.Generator().manual_seed(torch_seed(seed, "crafter"))
    return assemble(model, task, spec, bits=np.zeros(1, dtype=np.int8), generator=generator)


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
    bank = untrained(task, model, spec, seed)
    last = len(task.y_train) - 1
    if target is not None:
        target = checks.whole("target", target, at_least=0, at_most=last)
    confidence = torch.zeros(len(task.y_train), dtype=torch.float64)
    moments = snapshots(spec.steps)
    with matmul_precision("highest"):
        for step in bank.train(noise=False, clip=False):
            if step in moments:
                logits = bank.model.logits(bank.theta, bank.inputs)[..., 0]
                confidence += torch.softmax(logits, dim=1).gather(1, bank.labels[:, None])[:, 0]
    if not torch.isfinite(bank.theta).all() or not torch.isfinite(confidence).all():
        raise ValueError(f"spec must be such that training without clipping and noise does not diverge, got {spec}")
    slots = confidence.argsort(stable=True).tolist() if target is None else [target]
    z = Record(task.x_train[slots[0]], int(task.y_train[slots[0]]))
    for theta in (bank.theta.double(), bank.theta):  # modules may hold float32 numbers, and have trained with these
        trained = Reference(model, theta, z, slots[0], confidence.numpy() / len(moments))
        with suppress(Exception):
            return next((one for slot in slots if (one := trained.with_target(task, slot)).has_gradient), trained)
    return trained


def gradient_of(module: nn.Module, x: Tensor, y: int, losses: Losses) -> Tensor:
    """(parameters,): the gradient of one record's loss. It is differentiable by x if x requires a gradient."""
    with Instead(ATTENTION):
        loss = losses(module(x[None]), torch.tensor([y], device=x.device))[0]
    trained = [value for value in module.parameters() if value.requires_grad]
    parts = torch.autograd.grad(loss, trained, create_graph=x.requires_grad, materialize_grads=True)
    return torch.cat([part.flatten() for part in parts])


@contextmanager
def differentiable_by_records() -> Iterator[None]:
    """Torch's refusals to differentiate a module by its records, or its gradient by them, in a sentence."""
    try:
        yield
    except RuntimeError as error:
        why = f"of which torch says: {str(error).partition(chr(10))[0]}"
        if "not have been used in the graph" in why or "does not require grad" in why:
            why = "whose outputs have no derivative by them, as where records are token ids"
        raise ValueError(
            f"model must be differentiable by its records' features, got one {why}\n"
            "Canaries such as mislabeled need no such derivative"
        ) from error


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
        return {
            "norm": self.norm,
            "norm_ratio": float(self.ratio[chosen]),
            "cosine": float(self.cosine[chosen]),
        }


def compare_gradients(reference: Reference, x: ArrayLike, y: ArrayLike) -> Geometry:
    """Compare the gradients of k records (x, y) with the gradient of the target.

    A record's inner product with the target's gradient is the derivative of its loss in that direction. Where torch has
    that derivative, no record's gradient is formed.
    """
    model, module = reference.model, reference.module
    target = reference.gradient()
    norm = float(target.norm())
    parameters = {name: value.detach() for name, value in module.named_parameters() if value.requires_grad}
    pieces = torch.split(target, [value.numel() for value in parameters.values()])
    towards = {name: piece.view_as(parameters[name]) for name, piece in zip(parameters, pieces, strict=True)}
    products, norms = [], []
    for records, labels in zip(
        torch.split(torch.tensor(x), AT_ONCE), torch.split(torch.tensor(y), AT_ONCE), strict=True
    ):
        inputs = records.to(reference.theta.dtype)

        def losses(parameters: dict[str, Tensor], inputs: Tensor = inputs, labels: Tensor = labels) -> Tensor:
            return losses_of(model)(functional_call(module, parameters, (inputs,)), labels)

        try:
            with Instead(ATTENTION):
                products.append(jvp(losses, (parameters,), (towards,))[1])
        except NotImplementedError:  # an operation that torch cannot differentiate forward
            own = (
                gradient_of(module, *record, losses_of(model)) for record in zip(inputs, labels.tolist(), strict=True)
            )
            products.append(torch.stack([gradient @ target for gradient in own]))
        norms.append(model.gradient_norms(reference.theta, model.inputs(inputs), labels)[:, 0])
    length = torch.cat(norms).double().numpy()
    cosine = torch.cat(products).double().numpy() / np.maximum(length * norm, np.finfo(float).tiny)
    return Geometry(cosine=cosine, ratio=length / norm, norm=norm)


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
        ValueError: if an argument is out of range, the model does not fit the task, the auxiliary records are missing
            or private, or the training diverges.

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
    theta, losses = model.initial_parameters(1, generator).requires_grad_(), losses_of(model)
    x, y = model.inputs(torch.tensor(task.x_aux)), torch.tensor(task.y_aux)
    optimizer = torch.optim.SGD([theta], lr=learning_rate)

    def train(epochs: int, stop: Event) -> None:
        for _ in range(epochs):
            for batch in torch.split(torch.randperm(len(y), generator=generator), batch_size):
                optimizer.zero_grad()
                torch.autograd.backward(losses(model.logits(theta, x[batch])[..., 0], y[batch]).mean())
                optimizer.step()

    with matmul_precision("highest"):
        list(side_by_side(train, [epochs], 1))  # on one thread, so that the start does not depend on their number
    start = model.flat(theta.detach())[0]
    if not torch.isfinite(start).all():
        raise ValueError(f"learning_rate must be small enough that training does not diverge, got {learning_rate:g}")
    return start.numpy().copy()
