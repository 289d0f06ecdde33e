"""The reference model of adversaries that choose records: trained without privacy, for its gradients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from dpsub._core import DPSGD, Record, checks
from dpsub._core.random_streams import torch_seed
from dpsub.data import Task
from dpsub.models import Model, check_fits, losses_of
from dpsub.models.differentiation import ATTENTION, Instead
from dpsub.models.interface import Losses
from dpsub.trainers import Bank, assemble
from dpsub.trainers.devices import matmul_precision

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

    def gradient(self) -> Tensor:
        """(parameters,): the gradient of the target, in the precision of theta.

        Raises:
            ValueError: if it is too short to have a direction.
        """
        found = gradient_of(self.module, self.inputs(self.z.x), self.z.y, losses_of(self.model))
        if not found.norm() > LEAST_NORM:
            raise ValueError(
                f"target must have a gradient, got private record {self.slot}, whose gradient in the reference model "
                "is 0 or nearly so: train for fewer steps or choose another target"
            )
        return found

    @property
    def details(self) -> Mapping[str, float]:
        return {"confidence": float(self.confidence[self.slot])}


def snapshots(steps: int) -> set[int]:
    """100 evenly spaced steps up to `steps`, the last one included; all steps if there are fewer than 100."""
    return set(np.linspace(0, steps, min(steps, SNAPSHOTS) + 1)[1:].round().astype(int).tolist())


def untrained(task: Task, model: Model, spec: DPSGD, seed: int) -> Bank:
    """A bank of one model before its first step, on all private records as they are.

    Raises:
        ValueError: if an argument is out of range, or model and task do not fit.
    """
    check_fits(model, task)
    if not isinstance(spec, DPSGD):
        raise ValueError(f"spec must be a dpsub.DPSGD, got a {type(spec).__name__}")
    generator = torch.Generator().manual_seed(torch_seed(checks.whole("seed", seed, at_least=0), "crafter"))
    return assemble(model, task, spec, bits=np.zeros(1, dtype=np.int8), generator=generator)


def reference(task: Task, model: Model, spec: DPSGD, *, seed: int, target: int | None = None) -> Reference:
    """Train the model that an adversary who chooses records trains for itself: without clipping and noise.

    It takes the batches, steps, learning rate and optimizer of `spec`. Crafters call it with the same arguments, so
    this is the model that they craft with.

    Args:
        task: the private records, (n, …), as they are.
        model, spec: as in `crafted_input`. The noise multiplier and the clipping bound are not used.
        seed: ≥ 0; of the start, if it is random, and of the batches.
        target: the index of the private record to be z, from 0 to n − 1. None: the one with the least confidence.

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
    slot = int(confidence.argmin()) if target is None else target
    z = Record(task.x_train[slot], int(task.y_train[slot]))
    found = Reference(model, bank.theta.double(), z, slot, confidence.numpy() / len(moments))
    try:
        gradient_of(found.module, found.inputs(z.x), z.y, losses_of(model))
    except Exception:  # it holds float32 numbers, and has trained with these
        return found._replace(theta=bank.theta)
    return found


def gradient_of(module: nn.Module, x: Tensor, y: int, losses: Losses) -> Tensor:
    """(parameters,): the gradient of one record's loss. It is differentiable by x if x requires a gradient."""
    with Instead(ATTENTION):
        loss = losses(module(x[None]), torch.tensor([y], device=x.device))[0]
    trained = [one for one in module.parameters() if one.requires_grad]
    parts = torch.autograd.grad(loss, trained, create_graph=x.requires_grad, materialize_grads=True)
    return torch.cat([part.flatten() for part in parts])


@contextmanager
def differentiable_by_records() -> Iterator[None]:
    """Torch's refusals to differentiate a module by its records, or its gradient by them, in a sentence."""
    try:
        yield
    except RuntimeError as error:
        raise ValueError(
            "model must be differentiable by its records' features, got one of which torch says: "
            f"{str(error).partition(chr(10))[0]}\nCanaries such as mislabeled need no such derivative"
        ) from error
