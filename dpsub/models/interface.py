"""What a model has to offer for a bank of it to be trained: the protocol, and what implementations share.

Implement `Model` to train an architecture of your own. Trainers, crafters and audits use nothing else of a model.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, Self, runtime_checkable

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from dpsub.data import Task

OPACUS_EPS = 1e-6  # Opacus clips by C / (norm + 1e-6); so do banks
# Sums over records run in parts of a size that depends on shapes alone: parts of another size would round otherwise.
RECORDS_AT_ONCE = 2**24


class Span(NamedTuple):
    """The same training in fewer coordinates.

    Attributes:
        model: a smaller model.
        inputs: the records, in its coordinates.
        vectors: (k, parameters) gradients, in its coordinates.
    """

    model: Model
    inputs: Tensor
    vectors: Tensor


@runtime_checkable
class Model(Protocol):
    """An architecture of which R models, a bank, train side by side on the same records.

    `theta` is the parameters of all R models, one tensor in a layout of the model's own choice; `flat` views it as
    (runs, parameters). Cross-entropy is the loss. Two models with the same `repr` are taken for the same by stores.
    """

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one record."""
        ...

    @property
    def classes(self) -> int: ...

    @property
    def parameters(self) -> int:
        """How many numbers one model has."""
        ...

    def initial_parameters(self, runs: int, generator: torch.Generator) -> Tensor:
        """theta before the first step, on the generator's device."""
        ...

    def flat(self, theta: Tensor) -> Tensor:
        """(runs, parameters), a view: writing to it changes theta."""
        ...

    def first(self, theta: Tensor, runs: int) -> Tensor:
        """theta of the first so many models."""
        ...

    def inputs(self, x: Tensor) -> Tensor:
        """Records (n, *input_shape) as the other methods take them."""
        ...

    def logits(self, theta: Tensor, inputs: Tensor) -> Tensor:
        """(records, classes, runs)."""
        ...

    def clipped_sum(
        self,
        theta: Tensor,
        inputs: Tensor,
        labels: Tensor,
        sampled: Tensor | None,
        max_grad_norm: float,
        *,
        out: Tensor | None = None,
    ) -> Tensor:
        """The sum of the sampled records' gradients, each scaled by min(1, C / (norm + 1e-6)), shaped like theta.

        Args:
            theta: the parameters.
            inputs: (n, …), as `inputs` returns them.
            labels: (n,).
            sampled: (n, runs) bool, each model's own batch; None for the full batch.
            max_grad_norm: C; may be infinite.
            out: where the sum goes, shaped like theta; by default into new memory.
        """
        ...

    def gradient_norms(self, theta: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
        """(records, runs): the norms of the records' gradients, unclipped."""
        ...

    def module(self, parameters: ArrayLike | Tensor | None = None) -> nn.Module:
        """One model of the bank as a `torch.nn.Module`, with the parameters given, flat."""
        ...

    def prepared(self, device: torch.device, sample_rate: float) -> Self:
        """The same model, its work cut up for a device and a sample rate. Returning `self` is always safe."""
        ...

    def working_floats(self, records: tuple[int, ...], runs: int, sample_rate: float) -> int:
        """At most how many numbers a step takes beside the parameters, their sum and their noise.

        Args:
            records: (n, *input_shape).
            runs: R.
            sample_rate: q.
        """
        ...

    def within_span(self, inputs: Tensor, vectors: Tensor) -> Span | None:
        """The same training in fewer coordinates, whose scores have the same law; None, always safe, for none.

        Args:
            inputs: (n, …), as `inputs` returns them.
            vectors: (k, parameters), gradients whose products with the parameters have to stay what they are.
        """
        ...


def check_fits(model: Model, task: Task) -> None:
    """Refuse a model of another input shape or number of classes, before long work starts."""
    if torch.get_default_dtype() != torch.float32:
        raise ValueError(
            f"torch's default dtype must be float32, in which banks train, got {torch.get_default_dtype()}: "
            "torch.set_default_dtype(torch.float32)"
        )
    if not isinstance(model, Model):
        raise ValueError(
            "model must be made by dpsub.models, such as linear(task), or implement dpsub.models.Model, got a "
            f"{type(model).__name__}"
        )
    if task.x_train.shape[1:] != model.input_shape or task.num_classes != model.classes:
        raise ValueError(f"model must fit the task, {task!r}, got {model!r}")


def flat_parameters(name: str, values: ArrayLike | Tensor, count: int) -> Tensor:
    """A float32 copy: a module's parameters may become views of it."""
    try:
        vector = torch.tensor(np.asarray(values.detach().cpu() if isinstance(values, Tensor) else values, np.float32))
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(
            f"{name} must be a vector of {count} numbers, as torch.nn.utils.parameters_to_vector(module.parameters()) "
            f"makes one, got a {type(values).__name__}"
        ) from None
    if vector.shape != (count,):
        raise ValueError(f"{name} must have shape ({count},), got {tuple(vector.shape)}")
    return vector
