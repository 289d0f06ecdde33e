"""The protocol that a model implements to be trained as a bank, and what can be asked of any model that does.

Implement `Model` to train your own architecture. Trainers, crafters and audits use a model through this protocol only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, Self, runtime_checkable

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn
from torch.nn import functional

from dpsub._core import checks
from dpsub.data.tasks import Task, check_task
from dpsub.models.mkl_kernels import begin_computing

OPACUS_EPS = 1e-6  # Opacus scales gradients by C / (norm + 1e-6), and so do banks
# Sums over records run in parts. Their size depends on shapes alone, because parts of another size round differently.
RECORDS_AT_ONCE = 2**24

Losses = Callable[[Tensor, Tensor], Tensor]  # from outputs (records, classes) and labels (records,) to (records,)


class Span(NamedTuple):
    """The same training in fewer coordinates.

    Attributes:
        model: a smaller model.
        inputs: the records in its coordinates.
        vectors: (k, parameters) gradients in its coordinates.
    """

    model: Model
    inputs: Tensor
    vectors: Tensor


@runtime_checkable
class Model(Protocol):
    """An architecture. R models of it, a bank, train side by side on the same records.

    `theta` holds the parameters of all R models in one tensor, in a layout of the model's choice. `flat` views it as
    (runs, parameters). The loss is cross-entropy, or the model's attribute `losses`. If it has the
    attribute `one_product = True`, several blocks of models train at once on a GPU. Stored audits identify a model by
    its `repr`: two models that train differently need different ones.
    """

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one record."""

    @property
    def classes(self) -> int:
        """The number of classes."""

    @property
    def parameters(self) -> int:
        """The number of parameters of one model."""

    def initial_parameters(self, runs: int, generator: torch.Generator) -> Tensor:
        """theta before the first step, on the generator's device. A random start is drawn from the generator."""

    def flat(self, theta: Tensor) -> Tensor:
        """(runs, parameters), a view: writing to it changes theta."""

    def first(self, theta: Tensor, runs: int) -> Tensor:
        """theta of the first `runs` models."""

    def inputs(self, x: Tensor) -> Tensor:
        """Records (n, *input_shape) in the form that the other methods take as `inputs`."""

    def logits(self, theta: Tensor, inputs: Tensor) -> Tensor:
        """(records, classes, runs)."""

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
            sampled: (n, runs) bool, the records in each model's batch; None for the full batch. If it is not bool, it
                holds finite weights of the records, of either sign.
            max_grad_norm: C; may be infinite.
            out: memory for the sum, shaped like theta; by default new.
        """

    def gradient_norms(self, theta: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
        """(records, runs): the norms of the records' gradients before clipping."""

    def module(self, parameters: ArrayLike | Tensor | None = None) -> nn.Module:
        """One model of the bank as a `torch.nn.Module`, with the flat parameters given."""

    def prepared(self, device: torch.device, sample_rate: float) -> Self:
        """The same model, with its computation arranged for a device and sample rate. It is safe to return `self`."""

    def working_floats(self, records: tuple[int, ...], runs: int, sample_rate: float) -> int:
        """An upper estimate of the numbers that a step holds beside the parameters, gradient sum and noise.

        Args:
            records: (n, *input_shape).
            runs: R.
            sample_rate: q.
        """

    def within_span(self, inputs: Tensor, vectors: Tensor) -> Span | None:
        """The same training in fewer coordinates, with scores of the same law. It is safe to return None.

        Args:
            inputs: (n, …), as `inputs` returns them.
            vectors: (k, parameters), gradients whose inner products with the parameters must be preserved.
        """


@runtime_checkable
class Stochastic(Protocol):
    """A model with randomness of its own while it trains, such as dropout. Implementing this is optional."""

    def training(self, generator: torch.Generator) -> Model:
        """The model whose `clipped_sum` trains, with randomness from the generator. Everything else is without."""


def cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    """(records,): the loss of each record."""
    return functional.cross_entropy(outputs, labels, reduction="none")


def losses_of(model: Model) -> Losses:
    """The loss that a model trains with: its attribute `losses`, or cross-entropy."""
    return getattr(model, "losses", cross_entropy)


def check_fits(model: Model, task: Task) -> None:
    """Check a task, and that a model fits it, before long work starts.

    Raises:
        ValueError: if task is no `Task` or model no `Model`, or if the model has another input shape or number of
            classes.
    """
    check_task(task)
    check_model(model)
    if task.x_train.shape[1:] != model.input_shape or task.num_classes != model.classes:
        raise ValueError(f"model must fit the task, {task!r}, got {model!r}")


def check_model(model: Model) -> None:
    """Check that a model is a bank.

    Raises:
        ValueError: if it is no `Model`.
    """
    if not isinstance(model, Model):
        raise ValueError(
            f"model must be a bank, got a {type(model).__name__}: make one with dpsub.models, such as linear(task), or "
            "from_module(module, task) of a torch.nn.Module, or implement dpsub.models.Model"
        )


def numbers(name: str, values: object, **expected: Any) -> NDArray[np.float32]:
    """An array or tensor on any device as finite float32, checked as `checks.array` does; no copy if none is needed."""
    given = values.detach().cpu() if isinstance(values, Tensor) else values
    return checks.array(name, given, kind=np.float32, **expected)


def flat_parameters(name: str, values: object, count: int) -> Tensor:
    """Flat parameters (count,) as float32: a copy, since a module's parameters may become views of it."""
    return torch.tensor(numbers(name, values, shape=(count,)))


def final_weights(model: Model, weights: object) -> NDArray[np.float32]:
    """(runs, parameters), of one model or more."""
    return numbers("weights", weights, shape=("runs", model.parameters))


def theta_of(model: Model, weights: Tensor) -> Tensor:
    """The bank of these models, in the layout that the model's own methods take, in the precision of `weights`.

    Raises:
        ValueError: as in `outputs_of`.
    """
    check_model(model)
    _check_rows("weights", weights, "runs", (model.parameters,))
    begin_computing()
    theta = model.initial_parameters(len(weights), torch.Generator(weights.device)).to(weights.dtype)
    model.flat(theta).copy_(weights)
    return theta


def outputs_of(model: Model, weights: Tensor, x: Tensor) -> Tensor:
    """What trained models answer: their outputs before the softmax, without dropout.

    Args:
        model: the architecture.
        weights: (runs, parameters), the flat parameters of trained models, such as the variable "weights" of an audit.
        x: (records, *input_shape), of the dtype and on the device of `weights`. The answers are differentiable by it.

    Returns:
        (runs, records, classes).

    Raises:
        ValueError: if weights or records are no tensors, or do not fit the model.

    >>> import torch
    >>> from dpsub import data, models
    >>> from dpsub.models.interface import outputs_of
    >>> task = data.digits(n_train=50)
    >>> model = models.mlp(task, (8,))
    >>> weights = model.initial_parameters(3, torch.Generator())
    >>> outputs_of(model, weights, torch.tensor(task.x_train[:2])).shape
    torch.Size([3, 2, 10])
    """
    theta = theta_of(model, weights)
    _check_rows("x", x, "records", model.input_shape)
    model = model.prepared(weights.device, 1.0)
    return model.logits(theta, model.inputs(x)).permute(2, 0, 1)


def _check_rows(name: str, value: Tensor, rows: str, shape: tuple[int, ...]) -> None:
    """Check that a tensor has rows of this shape: another one might be broadcast."""
    if not isinstance(value, Tensor):
        raise ValueError(f"{name} must be a torch.Tensor, got a {type(value).__name__}: use torch.tensor({name})")
    if value.shape[1:] != shape or not value.ndim:
        raise ValueError(f"{name} must have shape ({', '.join(map(str, (rows, *shape)))}), got {tuple(value.shape)}")
