"""Layers of networks that train side by side. Each model has its own activations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.linalg import vector_norm
from torch.nn import functional
from torch.nn.grad import conv2d_weight

# With at least this many input channels, oneDNN's grouped convolution is faster than unfolding patches for products.
MANY_CHANNELS = 16

WeightedSum = Callable[[Tensor, Tensor], None]


class Layer(Protocol):
    """A layer of R models. Activations are (records, runs, *features); (records, 1, *features) if models share them."""

    @property
    def parameters(self) -> int: ...

    @property
    def floats(self) -> int:
        """How many numbers a pass holds for one record of one model. Memory is planned by it."""

    def forward(self, theta: Tensor, inputs: Tensor) -> Tensor: ...

    def module(self) -> nn.Module: ...


@dataclass(frozen=True)
class Dense:
    """A fully connected layer: weight (features_out, features_in), then bias (features_out,)."""

    features_in: int
    features_out: int

    @property
    def parameters(self) -> int:
        return (self.features_in + 1) * self.features_out

    @property
    def fan_in(self) -> int:
        return self.features_in

    @property
    def floats(self) -> int:
        return self.features_in + 3 * self.features_out

    def _weight(self, theta: Tensor) -> Tensor:
        return theta[:, : -self.features_out].view(-1, self.features_out, self.features_in)

    def forward(self, theta: Tensor, inputs: Tensor) -> Tensor:
        by_run = inputs.transpose(0, 1).expand(len(theta), -1, -1)
        bias = theta[:, None, -self.features_out :]
        return torch.baddbmm(bias, by_run, self._weight(theta).transpose(1, 2)).transpose(0, 1)

    def gradients(self, inputs: Tensor, outputs: Tensor) -> tuple[Tensor, WeightedSum]:
        """The squared norms of the records' gradients, (records, runs), and a function for their weighted sum.

        A record's gradient is the outer product of its input, extended by 1 for the bias, and its output gradient. Its
        norm is the product of the two norms.

        Args:
            inputs: (records, runs or 1, features_in).
            outputs: (records, runs, features_out), the gradients with respect to the layer's outputs.

        Returns:
            The squared norms, and a function (weights, total) that adds the gradients to `total` (runs, parameters) in
            place, weighted by `weights` (records, runs).
        """

        def weighted_sum(weights: Tensor, total: Tensor) -> None:
            weighted = (outputs * weights[..., None]).transpose(0, 1)
            by_run = inputs.transpose(0, 1).expand(len(total), -1, -1)
            self._weight(total).baddbmm_(weighted.transpose(1, 2), by_run)
            total[:, -self.features_out :] += weighted.sum(dim=1)

        return (vector_norm(inputs, dim=2) ** 2 + 1) * vector_norm(outputs, dim=2) ** 2, weighted_sum

    def module(self) -> nn.Module:
        return nn.Linear(self.features_in, self.features_out)


@dataclass(frozen=True)
class Conv:
    """A convolution of size × size images: weight (channels_out, channels_in, kernel, kernel), bias (channels_out,)."""

    channels_in: int
    channels_out: int
    kernel: int
    padding: int
    size: int

    @property
    def parameters(self) -> int:
        return (self.fan_in + 1) * self.channels_out

    @property
    def fan_in(self) -> int:
        return self.channels_in * self.kernel**2

    @property
    def size_out(self) -> int:
        return self.size + 2 * self.padding - self.kernel + 1

    @property
    def floats(self) -> int:
        return self.channels_in * self.size**2 + 5 * self.channels_out * self.size_out**2 + 2 * self.parameters

    @property
    def _shape(self) -> tuple[int, int, int, int]:
        return self.channels_out, self.channels_in, self.kernel, self.kernel

    def _weight(self, theta: Tensor) -> Tensor:
        return theta[:, : -self.channels_out].view(-1, *self._shape)

    def forward(self, theta: Tensor, inputs: Tensor) -> Tensor:
        groups = inputs.shape[1]  # 1 if the models share the images: one convolution then serves all models
        weight, bias = self._weight(theta).flatten(0, 1), theta[:, -self.channels_out :].flatten()
        images = functional.conv2d(inputs.flatten(1, 2), weight, bias, padding=self.padding, groups=groups)
        return images.view(len(inputs), len(theta), self.channels_out, self.size_out, self.size_out)

    def gradients(self, inputs: Tensor, outputs: Tensor) -> tuple[Tensor, WeightedSum]:
        """As in `Dense`, with each gradient formed: it is a sum over positions, whose norm does not factor."""
        records, runs = outputs.shape[:2]
        weight = self._by_record(inputs, outputs).view(records, runs, -1)
        bias = outputs.sum(dim=(3, 4))

        def weighted_sum(weights: Tensor, total: Tensor) -> None:
            by_run = weights.T[:, None]
            total[:, : -self.channels_out] += torch.bmm(by_run, weight.transpose(0, 1))[:, 0]
            total[:, -self.channels_out :] += torch.bmm(by_run, bias.transpose(0, 1))[:, 0]

        return (weight * weight).sum(dim=2) + (bias * bias).sum(dim=2), weighted_sum

    def _by_record(self, inputs: Tensor, outputs: Tensor) -> Tensor:
        """The gradient of each record in each model with respect to the weight: one row for each pair of the two."""
        records, runs = outputs.shape[:2]
        if inputs.shape[1] == runs and inputs.device.type == "cpu" and self.channels_in >= MANY_CHANNELS:
            weight: Tensor = conv2d_weight(  # type: ignore[no-untyped-call]
                inputs.reshape(1, -1, self.size, self.size),
                (records * runs * self.channels_out, *self._shape[1:]),
                outputs.reshape(1, -1, self.size_out, self.size_out),
                padding=self.padding,
                groups=records * runs,
            )
            return weight
        # If the models share the images, one product of a record's patches serves the gradients of all models.
        padded = functional.pad(inputs.flatten(0, 1), (self.padding,) * 4)
        windows = padded.unfold(2, self.kernel, 1).unfold(3, self.kernel, 1).permute(0, 1, 4, 5, 2, 3)
        patches = windows.reshape(len(padded), self.fan_in, -1)
        return torch.bmm(outputs.reshape(len(padded), -1, self.size_out**2), patches.transpose(1, 2))

    def module(self) -> nn.Module:
        return nn.Conv2d(self.channels_in, self.channels_out, self.kernel, padding=self.padding)


@dataclass(frozen=True)
class Activation:
    name: str

    parameters = floats = 0

    def forward(self, theta: Tensor, inputs: Tensor) -> Tensor:
        return torch.tanh(inputs) if self.name == "tanh" else torch.relu(inputs)

    def module(self) -> nn.Module:
        return nn.Tanh() if self.name == "tanh" else nn.ReLU()


@dataclass(frozen=True)
class MaxPool:
    parameters = floats = 0

    def forward(self, theta: Tensor, inputs: Tensor) -> Tensor:
        pooled = functional.max_pool2d(inputs.flatten(0, 1), 2)
        return pooled.view(*inputs.shape[:2], *pooled.shape[1:])

    def module(self) -> nn.Module:
        return nn.MaxPool2d(2)


@dataclass(frozen=True)
class Flatten:
    parameters = floats = 0

    def forward(self, theta: Tensor, inputs: Tensor) -> Tensor:
        return inputs.flatten(2)

    def module(self) -> nn.Module:
        return nn.Flatten()
