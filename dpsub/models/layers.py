"""Layers of networks that train side by side. Each model has its own activations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.linalg import vector_norm

WeightedSum = Callable[[Tensor, Tensor], None]
Kept = tuple[Tensor, ...]


class Layer(Protocol):
    """A layer of R models. Inputs and outputs are (records, runs, *features), or (records, 1, *features) if shared.

    A layer may overwrite the outputs of the layer before it.
    """

    @property
    def parameters(self) -> int: ...

    @property
    def floats(self) -> int:
        """How many numbers a pass holds for one record of one model. Memory is planned by it."""

    def forward(self, theta: Tensor, inputs: Tensor) -> tuple[Tensor, Kept]:
        """The outputs, and what `backward` needs of this pass."""

    def backward(self, theta: Tensor, kept: Kept, gradient: Tensor) -> Tensor:
        """The gradient with respect to the inputs, from that with respect to the outputs."""

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

    def forward(self, theta: Tensor, inputs: Tensor) -> tuple[Tensor, Kept]:
        by_run = inputs.transpose(0, 1).expand(len(theta), -1, -1)
        bias = theta[:, None, -self.features_out :]
        return torch.baddbmm(bias, by_run, self._weight(theta).transpose(1, 2)).transpose(0, 1), (inputs,)

    def backward(self, theta: Tensor, kept: Kept, gradient: Tensor) -> Tensor:
        return torch.bmm(gradient.transpose(0, 1), self._weight(theta)).transpose(0, 1)

    def gradients(self, kept: Kept, gradient: Tensor) -> tuple[Tensor, WeightedSum]:
        """The squared norms of the records' gradients, (records, runs), and a function for their weighted sum.

        A record's gradient is the outer product of its input, extended by 1 for the bias, and its output gradient. Its
        norm is the product of the two norms.

        Args:
            kept: what `forward` kept: its inputs, (records, runs or 1, features_in).
            gradient: (records, runs, features_out), of the records' losses with respect to the layer's outputs.

        Returns:
            The squared norms, and a function (weights, total) that adds the gradients to `total` (runs, parameters) in
            place, weighted by `weights` (records, runs).
        """
        (inputs,) = kept

        def weighted_sum(weights: Tensor, total: Tensor) -> None:
            weighted = (gradient * weights[..., None]).transpose(0, 1)
            by_run = inputs.transpose(0, 1).expand(len(total), -1, -1)
            self._weight(total).baddbmm_(weighted.transpose(1, 2), by_run)
            total[:, -self.features_out :] += weighted.sum(dim=1)

        return (vector_norm(inputs, dim=2) ** 2 + 1) * vector_norm(gradient, dim=2) ** 2, weighted_sum

    def module(self) -> nn.Module:
        return nn.Linear(self.features_in, self.features_out)


@dataclass(frozen=True)
class Activation:
    """A function of each number. Both passes work in place."""

    name: str

    parameters = floats = 0

    def forward(self, theta: Tensor, inputs: Tensor) -> tuple[Tensor, Kept]:
        outputs = inputs.tanh_() if self.name == "tanh" else inputs.relu_()
        return outputs, (outputs,)

    def backward(self, theta: Tensor, kept: Kept, gradient: Tensor) -> Tensor:
        (outputs,) = kept
        if self.name == "tanh":
            torch.ops.aten.tanh_backward.grad_input(gradient, outputs, grad_input=gradient)
        else:
            torch.ops.aten.threshold_backward.grad_input(gradient, outputs, 0, grad_input=gradient)
        return gradient

    def module(self) -> nn.Module:
        return nn.Tanh() if self.name == "tanh" else nn.ReLU()


@dataclass(frozen=True)
class Flatten:
    parameters = floats = 0

    def forward(self, theta: Tensor, inputs: Tensor) -> tuple[Tensor, Kept]:
        return inputs.flatten(2), (inputs,)

    def backward(self, theta: Tensor, kept: Kept, gradient: Tensor) -> Tensor:
        return torch.empty_like(kept[0]).copy_(gradient.view_as(kept[0]))

    def module(self) -> nn.Module:
        return nn.Flatten()
