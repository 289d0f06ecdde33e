"""Layers of networks that train side by side. Each model has its own activations.

Inputs and outputs of R models are (records, runs, *features), or (records, 1, *features) if the models share them. A
layer has `parameters`, and `floats`, how many numbers a pass holds for one record of one model. `forward` returns the
outputs and what `backward` needs of the pass, `backward` the gradient with respect to the inputs. A layer may overwrite
the outputs of the layer before it.

The channels of a pixel lie next to each other in memory. A convolution's gradients are products of its outputs'
gradients with what its outputs see of the images.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.linalg import vector_norm
from torch.nn import functional

from dpsub.models.bank_base import WeightedSum

Kept = tuple[Tensor, ...]


@dataclass(frozen=True)
class Dense:
    """A fully connected layer: weight (features_out, fan_in), then bias (features_out,)."""

    fan_in: int
    features_out: int

    @property
    def parameters(self) -> int:
        return (self.fan_in + 1) * self.features_out

    @property
    def floats(self) -> int:
        return self.fan_in + 3 * self.features_out

    def _weight(self, theta: Tensor) -> Tensor:
        return theta[:, : -self.features_out].view(-1, self.features_out, self.fan_in)

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
            kept: what `forward` kept: its inputs, (records, runs or 1, fan_in).
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
        return nn.Linear(self.fan_in, self.features_out)


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


@dataclass(frozen=True)
class Conv:
    """A convolution of size × size images: weight (channels_out, channels_in, kernel, kernel), bias (channels_out,).

    Its inputs are images (records, runs, channels_in, size, size). A network's first layer may be given larger ones, of
    which it sees the first rows and columns; if the models share them, they may be the images' `patches`.
    """

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
        positions = self.size_out**2
        return self.channels_in * self.size**2 + (self.fan_in + 5 * self.channels_out) * positions + 2 * self.parameters

    def _weight(self, theta: Tensor) -> Tensor:
        shape = (-1, self.channels_out, self.channels_in, self.kernel, self.kernel)
        return theta[:, : -self.channels_out].view(shape)

    def _cropped(self, images: Tensor) -> Tensor:
        return images[..., : self.size, : self.size]

    def _padded(self, images: Tensor) -> Tensor:
        seen = self._cropped(images)
        return functional.pad(seen, (self.padding,) * 4) if self.padding else seen

    def patches(self, images: Tensor) -> Tensor:
        """What each output pixel sees, and a 1 for the bias: (records, fan_in + 1, rows · columns).

        Args:
            images: (records, 1, channels_in, ≥ size, ≥ size), which the models share.
        """
        patches = images.new_empty(len(images), self.fan_in + 1, self.size_out, self.size_out)
        windows = self._padded(images)[:, 0].unfold(2, self.size_out, 1).unfold(3, self.size_out, 1)
        patches[:, :-1].view_as(windows).copy_(windows)
        patches[:, -1] = 1
        return patches.flatten(2)

    def forward(self, theta: Tensor, inputs: Tensor) -> tuple[Tensor, Kept]:
        bias = theta[:, -self.channels_out :]
        if inputs.ndim == 3:  # patches
            columns = torch.cat((self._weight(theta).flatten(2), bias[..., None]), dim=2).flatten(0, 1)
            pixels = inputs.transpose(1, 2) @ columns.T
            shape = (len(inputs), self.size_out, self.size_out, len(theta), self.channels_out)
            return pixels.view(shape).permute(0, 3, 4, 1, 2), (inputs,)
        kernels = self._weight(theta).flatten(0, 1).contiguous(memory_format=torch.channels_last)
        images = self._cropped(inputs).flatten(1, 2)
        outputs = functional.conv2d(images, kernels, bias.flatten(), padding=self.padding, groups=len(theta))
        return outputs.view(len(inputs), *bias.shape, *outputs.shape[2:]), (inputs, kernels)

    def backward(self, theta: Tensor, kept: Kept, gradient: Tensor) -> Tensor:
        _, kernels = kept
        images = functional.conv_transpose2d(gradient.flatten(1, 2), kernels, padding=self.padding, groups=len(theta))
        return images.view(*gradient.shape[:2], self.channels_in, self.size, self.size)

    def gradients(self, kept: Kept, gradient: Tensor) -> tuple[Tensor, WeightedSum]:
        """As in `Dense`, with each gradient formed: it is a sum over positions, whose norm does not factor."""
        inputs = kept[0]
        if inputs.ndim == 3:  # patches
            return self._gradients_of_patches(inputs, gradient)
        records, runs = gradient.shape[:2]
        pixels = gradient.permute(0, 1, 3, 4, 2).reshape(records * runs, -1, self.channels_out)
        # A row of a patch is a piece of a row of the image. The kernel's rows all meet the same pieces, further down.
        pieces = self._padded(inputs).movedim(2, 4).unfold(3, self.kernel, 1).transpose(4, 5)
        pieces = pieces.reshape(len(pixels), -1, self.kernel * self.channels_in)
        weight = gradient.new_empty(self.kernel, len(pixels), self.channels_out, self.kernel * self.channels_in)
        for row, of_row in enumerate(weight):
            below = pieces[:, row * self.size_out :][:, : pixels.shape[1]]
            torch.bmm(pixels.transpose(1, 2), below, out=of_row)
        bias = pixels.sum(dim=1)
        squares = [vector_norm(part.flatten(1), dim=1) ** 2 for part in (*weight, bias)]

        def weighted_sum(weights: Tensor, total: Tensor) -> None:
            whole = self._weight(total)
            for row, of_row in enumerate(weight):
                found = _weighted(weights, of_row.view(records, runs, -1))
                by_column = found.view(runs, self.channels_out, self.kernel, self.channels_in)
                whole[:, :, :, row] += by_column.transpose(2, 3)
            total[:, -self.channels_out :] += _weighted(weights, bias.view(records, runs, -1))

        return torch.stack(squares).sum(dim=0).view(records, runs), weighted_sum

    def _gradients_of_patches(self, patches: Tensor, gradient: Tensor) -> tuple[Tensor, WeightedSum]:
        """One product with a record's patches serves all models."""
        records, runs = gradient.shape[:2]
        extended = torch.bmm(patches, gradient.flatten(1, 2).flatten(2).transpose(1, 2))
        extended = extended.view(records, -1, runs, self.channels_out).transpose(1, 2).reshape(records, runs, -1)

        def weighted_sum(weights: Tensor, total: Tensor) -> None:
            found = _weighted(weights, extended).view(runs, -1, self.channels_out).transpose(1, 2)
            self._weight(total).flatten(2).add_(found[..., :-1])
            total[:, -self.channels_out :] += found[..., -1]

        return vector_norm(extended, dim=2) ** 2, weighted_sum

    def module(self) -> nn.Module:
        return nn.Conv2d(self.channels_in, self.channels_out, self.kernel, padding=self.padding)


@dataclass(frozen=True)
class MaxPool:
    """The largest value of each 2 × 2 square. With channels innermost, torch's kernels for it are fast on a CPU."""

    parameters = floats = 0

    def forward(self, theta: Tensor, inputs: Tensor) -> tuple[Tensor, Kept]:
        images = inputs.flatten(1, 2)
        pooled, places = functional.max_pool2d(images, 2, return_indices=True)
        return pooled.view(*inputs.shape[:3], *pooled.shape[2:]), (images, places)

    def backward(self, theta: Tensor, kept: Kept, gradient: Tensor) -> Tensor:
        images, places = kept
        found: Tensor = torch.ops.aten.max_pool2d_with_indices_backward(
            gradient.flatten(1, 2), images, [2, 2], [2, 2], [0, 0], [1, 1], False, places
        )
        return found.view(*gradient.shape[:3], *found.shape[2:])

    def module(self) -> nn.Module:
        return nn.MaxPool2d(2)


Layer = Dense | Activation | Flatten | Conv | MaxPool


def _weighted(weights: Tensor, values: Tensor) -> Tensor:
    """The sum over records, (runs, features), of values (records, runs, features) by weights (records, runs)."""
    return torch.bmm(weights.T[:, None], values.transpose(0, 1))[:, 0]
