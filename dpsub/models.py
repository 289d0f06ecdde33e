"""Banks: R models of one architecture that train side by side on the same records."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from dpsub import _checks
from dpsub._layers import Activation, Conv, Dense, Flatten, Layer, MaxPool
from dpsub._networks import OPACUS_EPS, RECORDS_AT_ONCE, Network, flat_parameters
from dpsub.data import Task


@dataclass(frozen=True)
class Linear:
    """A bank of linear heads with cross-entropy loss, all starting from 0.

    The parameters of R heads are one tensor (features + 1, classes, runs), the bias in the last row: all heads then
    share one matrix product with the records, and the runs, last, are contiguous.
    """

    features: int
    classes: int

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (self.features,)

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of one model's parameters; a gradient canary is such a tensor, flattened."""
        return self.features + 1, self.classes

    @property
    def parameters(self) -> int:
        return self.shape[0] * self.shape[1]

    def initial_parameters(self, runs: int, generator: torch.Generator) -> Tensor:
        return torch.zeros(*self.shape, runs, device=generator.device)

    def flat(self, theta: Tensor) -> Tensor:
        """(runs, parameters), a view."""
        return theta.flatten(0, 1).T

    def first(self, theta: Tensor, runs: int) -> Tensor:
        return theta[..., :runs]

    def inputs(self, x: Tensor) -> Tensor:
        """(n, features) → (n, features + 1): the records with the constant that the bias multiplies."""
        return torch.cat([x, torch.ones_like(x[:, :1])], dim=1)

    def module(self, parameters: ArrayLike | Tensor | None = None) -> nn.Module:
        """One model of the bank as a `torch.nn.Linear`, with the parameters given or zeros."""
        module = nn.Linear(self.features, self.classes)
        vector = np.zeros(self.parameters) if parameters is None else parameters
        theta = flat_parameters("parameters", vector, self.parameters).view(self.shape)
        module.load_state_dict({"weight": theta[:-1].T, "bias": theta[-1]})
        return module

    def logits(self, theta: Tensor, inputs: Tensor, room: int = RECORDS_AT_ONCE) -> Tensor:
        """(n, classes, runs)."""
        return (inputs @ theta.flatten(1)).view(len(inputs), *theta.shape[1:])

    def clipped_sum(
        self,
        theta: Tensor,
        inputs: Tensor,
        labels: Tensor,
        sampled: Tensor | None,
        max_grad_norm: float,
        *,
        gather: bool = False,
        room: int = RECORDS_AT_ONCE,
        out: Tensor | None = None,
    ) -> Tensor:
        """The sum of the sampled records' clipped gradients, shaped like `theta`.

        A record's gradient is an outer product, so its norm is ‖input‖·‖output gradient‖: no per-record gradient is
        ever formed. All models share the records, so that one large product with all of them, most weighted 0 where
        batches are small, is faster than small ones.

        Args:
            theta: (features + 1, classes, runs).
            inputs: (n, features + 1).
            labels: (n,).
            sampled: (n, runs) bool, or None for the full batch.
            max_grad_norm: C.
            gather, room: of no use here.
            out: where the sum goes, shaped like `theta`; by default into new memory.
        """
        total = (torch.zeros_like(theta) if out is None else out.zero_()).flatten(1)
        at_once = max(1, RECORDS_AT_ONCE // (4 * total.shape[1]))
        for start in range(0, len(inputs), at_once):
            records = slice(start, start + at_once)
            x, y = inputs[records], labels[records]
            output, norms = self._gradients(theta, x, y)
            scale = (max_grad_norm / (norms + OPACUS_EPS)).clamp_(max=1.0)
            if sampled is not None:
                scale *= sampled[records]
            output *= scale[:, None]
            total.addmm_(x.T, output.flatten(1))
        return total.view_as(theta)

    def gradient_norms(self, theta: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
        """(records, runs): the norms of the records' gradients, unclipped."""
        return self._gradients(theta, inputs, labels)[1]

    def _gradients(self, theta: Tensor, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The gradients by the outputs, (records, classes, runs), and the norms of those by the parameters."""
        output = torch.softmax(self.logits(theta, inputs), dim=1)
        output[torch.arange(len(labels), device=labels.device), labels] -= 1
        return output, (output * output).sum(dim=1).sqrt_() * inputs.norm(dim=1)[:, None]

    def within_span(self, inputs: Tensor, vectors: Tensor) -> tuple[Linear, Tensor, Tensor] | None:
        """The same training in fewer coordinates, those that the records and `vectors` span.

        Under plain gradient descent from 0 a head's parameters are a combination of its inputs, of the canary, and of
        noise that looks the same in every orthonormal basis. Its coordinates outside the span never meet a record: a
        head on the coordinates within it has scores of the same law, exactly.

        Args:
            inputs: (n, features + 1).
            vectors: (k, parameters), gradients whose products with the parameters are to stay what they are.

        Returns:
            A smaller model, the inputs and the vectors in its coordinates; None if there are no fewer.
        """
        gradients = vectors.view(len(vectors), *self.shape)
        touched = gradients.any(dim=2).any(dim=0)
        rows = int(touched.sum())
        if rows + len(inputs) >= inputs.shape[1]:
            return None
        rest = inputs.double().masked_fill(touched, 0)
        triangle = torch.linalg.qr(rest.T, mode="r").R
        inside = torch.cat([inputs[:, touched].double(), triangle.T], dim=1).to(inputs.dtype)
        small = Linear(features=inside.shape[1] - 1, classes=self.classes)
        moved = torch.zeros(len(vectors), *small.shape, device=vectors.device)
        moved[:, :rows] = gradients[:, touched]
        return small, inside, moved.flatten(1)


Model = Linear | Network


def check_fits(model: Model, task: Task) -> None:
    """Refuse a model of another input shape or number of classes, before long work starts."""
    if torch.get_default_dtype() != torch.float32:
        raise ValueError(
            f"torch's default dtype must be float32, in which banks train, got {torch.get_default_dtype()}: "
            "torch.set_default_dtype(torch.float32)"
        )
    if not isinstance(model, Model):
        raise ValueError(f"model must be made by dpsub.models, linear(task) for one, got a {type(model).__name__}")
    if task.x_train.shape[1:] != model.input_shape or task.num_classes != model.classes:
        raise ValueError(f"model must fit the task, {task!r}, got {model!r}")


def linear(task: Task) -> Linear:
    """A linear head on the task's features: (d + 1) · num_classes parameters, θ₀ = 0.

    Source: *Beyond Membership*, section 5, "fine-tuning the last layer".
    """
    if task.x_train.ndim != 2:
        raise ValueError(f"task must have flat features (n, d) for a linear head, got x_train {task.x_train.shape}")
    return Linear(features=task.x_train.shape[1], classes=task.num_classes)


def mlp(task: Task, hidden: Iterable[int] = (128,), *, activation: str = "tanh") -> Network:
    """A fully connected network, each model with a random start of its own.

    Args:
        task: records of any shape; images are flattened.
        hidden: the hidden layers' widths, one or more. With (128,) and Purchase100's 600 features and 100 classes the
            network has the paper's 89,828 parameters.
        activation: "tanh" or "relu".

    Returns:
        A bank; `starting_from(theta_0)` starts all its models at the same parameters, `module(parameters)` makes a
        `torch.nn.Module` of one, and `parameters` counts them.

    Raises:
        ValueError: if a width is not a positive whole number, or an argument is out of range.

    Source: *Beyond Membership*, section 5 and Table A1; Shokri et al. (2017).
    """
    if isinstance(hidden, str) or not isinstance(hidden, Iterable) or not (hidden := tuple(hidden)):
        raise ValueError(f"hidden must be the hidden layers' widths, one or more, got {hidden!r}; without any: linear")
    _checks.choice("activation", activation, ("tanh", "relu"))
    shape = task.x_train.shape[1:]
    widths = [int(np.prod(shape)), *(_checks.whole("hidden", width) for width in hidden)]
    layers: list[Layer] = [Flatten()] if len(shape) > 1 else []
    for inputs, outputs in pairwise(widths):
        layers += [Dense(inputs, outputs), Activation(activation)]
    layers.append(Dense(widths[-1], task.num_classes))
    name = " ".join(["mlp", "-".join(map(str, widths[1:])), activation])
    return Network(name, shape, task.num_classes, tuple(layers))


# Convolutions as (channels, kernel, padding, whether a 2 × 2 maximum follows), and the hidden layer's width.
CONVNETS = {
    "small": (((16, 5, 0, True), (32, 4, 0, True)), 32),
    "large": (tuple((channels, 3, 1, last) for channels in (32, 64, 128) for last in (False, True)), 128),
}


def convnet(task: Task, *, size: str = "auto", activation: str = "tanh") -> Network:
    """A small convolutional network, each model with a random start of its own.

    Args:
        task: square images (n, channels, height, width).
        size: "small", two convolutions of 16 and 32 channels (25,386 parameters on MNIST); "large", six of 32 to 128
            (550,570 on CIFAR-10); "auto", large from 32 pixels on.
        activation: "tanh" or "relu".

    Returns:
        A bank, as `mlp` does.

    Raises:
        ValueError: if the records are not square images, or too small.

    Source: Dörmann et al. (2021), *Not all noise is accounted equally*, the networks on which Annamalai and De
    Cristofaro (2024) and, after them, the adversarial-sample paper (section 5.1) audit.
    """
    shape = task.x_train.shape[1:]
    if len(shape) != 3 or shape[1] != shape[2]:
        raise ValueError(f"task must have square images (n, channels, height, width), got x_train {task.x_train.shape}")
    _checks.choice("size", size, ("auto", *CONVNETS))
    _checks.choice("activation", activation, ("tanh", "relu"))
    channels, pixels = shape[0], shape[1]
    if size == "auto":
        size = "large" if pixels >= 32 else "small"
    convolutions, width = CONVNETS[size]
    layers: list[Layer] = []
    for outputs, kernel, padding, pooled in convolutions:
        convolution = Conv(channels, outputs, kernel, padding, pixels)
        # Pooling before a rising activation is pooling after it, for a quarter of the work.
        layers += [convolution, *([MaxPool()] if pooled else []), Activation(activation)]
        channels, pixels = outputs, convolution.size_out // (2 if pooled else 1)
        if pixels < 1:
            raise ValueError(f"task must have larger images for this network, got {shape[1]} × {shape[2]} pixels")
    layers += [Flatten(), Dense(channels * pixels**2, width), Activation(activation), Dense(width, task.num_classes)]
    return Network(f"convnet {size} {activation}", shape, task.num_classes, tuple(layers))
