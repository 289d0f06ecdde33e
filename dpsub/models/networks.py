"""Banks of networks with hidden layers, and the architectures by name: fully connected ones and two small ConvNets.

Each model has its own activations, so products are batched over models.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from dpsub._core import checks
from dpsub.data.tasks import Task, check_task
from dpsub.models.bank_base import GATHER_BELOW, Rows, Startable, WeightedSum
from dpsub.models.interface import RECORDS_AT_ONCE, flat_parameters
from dpsub.models.layers import Activation, Conv, Dense, Flatten, Kept, Layer, MaxPool

# About how many numbers one part of a step's computation holds: what suits a CPU core's cache, and what a GPU of 8 GB
# holds. On an H100 four times as many were 1.1 times as fast for the MLP of Purchase100 (8.0 ms a step of 128 models)
# and 3 times for the small ConvNet (121 ms). These are constants, because parts of another size round differently. The
# free memory decides only how many blocks train at once.
ROOM = {"cpu": 2**20, "cuda": 2**28}


@dataclass(frozen=True, eq=False)
class Network(Startable, Rows):
    """A bank of networks with cross-entropy loss.

    The parameters of R models are one tensor (runs, parameters), in the flattened order of `torch.nn.Sequential`.

    Attributes:
        name: the architecture, with everything that input shape and number of classes do not say. It is part of the
            `repr`, which is stored with every audit.
        input_shape: the shape of one record.
        classes: the number of classes.
        layers: the layers in order. The last one is a Dense.
        theta_0: (parameters,) the fixed start, read-only; None if each model starts at random, by PyTorch's default.
        room: about how many numbers one part of the computation may hold. Parts of another size round differently.
        gather: whether each model computes its own batch only. This is faster for small batches.
    """

    START: ClassVar[str] = "random"
    name: str
    input_shape: tuple[int, ...]
    classes: int
    layers: tuple[Layer, ...]
    theta_0: NDArray[np.float32] | None = None
    room: int = RECORDS_AT_ONCE
    gather: bool = False

    @property
    def parameters(self) -> int:
        return sum(layer.parameters for layer in self.layers)

    def __repr__(self) -> str:
        shape = "×".join(map(str, self.input_shape))
        return f"{self.name}({shape} to {self.classes}, {self.parameters} parameters, {self.initial} start)"

    def initial_parameters(self, runs: int, generator: torch.Generator) -> Tensor:
        """(runs, parameters): the fixed start, or PyTorch's default: weights and biases U(−1/√fan_in, 1/√fan_in)."""
        if self.theta_0 is not None:
            return torch.tensor(self.theta_0, device=generator.device).repeat(runs, 1)
        theta = torch.empty(runs, self.parameters, device=generator.device)
        for layer, part in self._parts_of(theta):
            if isinstance(layer, Dense | Conv):
                bound = 1 / math.sqrt(layer.fan_in)
                part.copy_(torch.empty_like(part).uniform_(-bound, bound, generator=generator))
        return theta

    def module(self, parameters: ArrayLike | Tensor | None = None) -> nn.Module:
        """One model of the bank as a `torch.nn.Sequential`, with the flat parameters given or its start.

        The start is random unless `theta_0` is fixed.
        """
        parameters = self.theta_0 if parameters is None else parameters
        with torch.random.fork_rng(devices=[], enabled=parameters is not None):  # a new module draws random weights
            module = nn.Sequential(*(layer.module() for layer in self.layers))
        if parameters is not None:
            vector = flat_parameters("parameters", parameters, self.parameters)
            nn.utils.vector_to_parameters(vector, module.parameters())
        return module

    def logits(self, theta: Tensor, inputs: Tensor) -> Tensor:
        """(records, classes, runs)."""
        out = theta.new_empty(len(inputs), self.classes, len(theta))
        for runs, records, values in self._shared_parts(inputs, len(theta)):
            for layer, part in self._parts_of(theta[runs]):
                values = layer.forward(part, values)[0]
            out[records, :, runs] = values.transpose(1, 2)
        return out

    def prepared(self, device: torch.device, sample_rate: float) -> Network:
        return replace(self, room=ROOM[device.type], gather=sample_rate < GATHER_BELOW)

    def working_floats(self, records: tuple[int, ...], runs: int, sample_rate: float) -> int:
        per_coin = 2 + 12 * sample_rate if self.gather else 2  # 12 for the indices of the batches
        coins = records[0] * runs
        return 3 * math.prod(records) + math.ceil(per_coin * coins) + 4 * max(self.room, RECORDS_AT_ONCE)

    @property
    def _floats(self) -> int:
        return sum(layer.floats for layer in self.layers)

    def _shared(self, inputs: Tensor) -> Tensor:
        return self._seen(inputs[:, None])

    def _own(self, inputs: Tensor, records: Tensor) -> Tensor:
        values = inputs.index_select(0, records.flatten()).view(*records.shape, *inputs.shape[1:])
        return self._seen(values) if records.shape[1] == 1 else values

    def _gradients(self, theta: Tensor, inputs: Tensor, labels: Tensor) -> tuple[Tensor, WeightedSum]:
        passed: list[tuple[Layer, Tensor, Kept]] = []
        values = inputs
        for layer, part in self._parts_of(theta):
            values, kept = layer.forward(part, values)
            passed.append((layer, part, kept))
        error = _probabilities(values)
        of_each = labels if labels.ndim == 2 else labels[:, None]
        error.scatter_add_(2, of_each.expand(error.shape[:2])[..., None], -torch.ones_like(error[..., :1]))

        gradients: list[tuple[Tensor, WeightedSum]] = []
        trained = sum(isinstance(layer, Dense | Conv) for layer in self.layers)
        for layer, part, kept in reversed(passed):
            if isinstance(layer, Dense | Conv):
                gradients.insert(0, layer.gradients(kept, error))
                if len(gradients) == trained:
                    break
            error = layer.backward(part, kept, error)

        def weighted_sum(weights: Tensor, total: Tensor) -> None:
            of_layers = (part for layer, part in self._parts_of(total) if layer.parameters)
            for part, (_, of_layer) in zip(of_layers, gradients, strict=True):
                of_layer(weights, part)

        return torch.stack([norms for norms, _ in gradients]).sum(dim=0).sqrt_(), weighted_sum

    def _parts_of(self, theta: Tensor) -> Iterator[tuple[Layer, Tensor]]:
        """Each layer with its columns of `theta`."""
        return zip(self.layers, torch.split(theta, [layer.parameters for layer in self.layers], dim=1), strict=True)

    def _seen(self, images: Tensor) -> Tensor:
        """What the first layer computes with, for inputs that models share: of images the patches."""
        first = self.layers[0]
        return first.patches(images) if isinstance(first, Conv) else images


def _probabilities(outputs: Tensor) -> Tensor:
    """Softmax of outputs (records, runs, classes), which lie in memory by run.

    On a CPU torch's softmax over a last dimension of fewer than 16 numbers takes ten times as long as over a first one.
    """
    if outputs.device.type == "cpu" and outputs.shape[2] < 16:
        probabilities = torch.softmax(outputs.permute(2, 1, 0).contiguous(), dim=0).permute(1, 2, 0).contiguous()
    else:
        probabilities = torch.softmax(outputs.transpose(0, 1), dim=2)
    return probabilities.transpose(0, 1)


def mlp(task: Task, hidden: Iterable[int] = (128,), *, activation: str = "tanh") -> Network:
    """A fully connected network. Each model of the bank has its own random start.

    Args:
        task: records of any shape; images are flattened.
        hidden: the widths of the hidden layers, one or more. With (128,), 600 features and 100 classes, as in
            Purchase100, the network has the paper's 89,828 parameters.
        activation: "tanh" or "relu".

    Returns:
        A bank. `starting_from(theta_0)` gives all its models the same start, `module(parameters)` makes a
        `torch.nn.Module` of one model, and `parameters` is the number of parameters of one model.

    Raises:
        ValueError: if a width is not a positive whole number, or an argument is out of range.

    Source: *Beyond Membership*, section 5 and Table A1; Shokri et al. (2017).
    """
    check_task(task)
    hidden = checks.several("hidden must be the hidden layers' widths", hidden)
    checks.choice("activation", activation, ("tanh", "relu"))
    shape = task.x_train.shape[1:]
    widths = [int(np.prod(shape)), *(checks.whole("hidden", width) for width in hidden)]
    layers: list[Layer] = [Flatten()] if len(shape) > 1 else []
    for inputs, outputs in pairwise(widths):
        layers += [Dense(inputs, outputs), Activation(activation)]
    layers.append(Dense(widths[-1], task.num_classes))
    name = " ".join(["mlp", "-".join(map(str, widths[1:])), activation])
    return Network(name, shape, task.num_classes, tuple(layers))


CONVNETS = {
    "small": (((16, 5, 0, True), (32, 4, 0, True)), 32),
    "large": (tuple((channels, 3, 1, last) for channels in (32, 64, 128) for last in (False, True)), 128),
}
"""The sizes of `convnet`: its convolutions as (channels, kernel, padding, whether 2 × 2 max pooling follows), and the
width of its hidden layer."""


def convnet(task: Task, *, size: str = "auto", activation: str = "tanh") -> Network:
    """A small convolutional network. Each model of the bank has its own random start.

    Args:
        task: square images (n, channels, height, width).
        size: "small" has two convolutions of 16 and 32 channels (25,386 parameters on MNIST). "large" has six of 32 to
            128 channels (550,570 parameters on CIFAR-10). "auto" is "large" for images of 32 × 32 pixels or more.
        activation: "tanh" or "relu".

    Returns:
        A bank, as from `mlp`.

    Raises:
        ValueError: if the records are not square images or are too small, or an argument is out of range.

    Source: Dörmann et al. (2021), *Not all noise is accounted equally*. Annamalai and De Cristofaro (2024) audit these
    networks, and so does the adversarial-sample paper (section 5.1).
    """
    check_task(task)
    shape = task.x_train.shape[1:]
    if len(shape) != 3 or shape[1] != shape[2]:
        raise ValueError(f"task must have square images (n, channels, height, width), got x_train {task.x_train.shape}")
    checks.choice("size", size, ("auto", *CONVNETS))
    checks.choice("activation", activation, ("tanh", "relu"))
    channels, pixels = shape[0], shape[1]
    if size == "auto":
        size = "large" if pixels >= 32 else "small"
    convolutions, width = CONVNETS[size]
    sizes = [pixels]
    for _, kernel, padding, pooled in convolutions:
        sizes.append((sizes[-1] + 2 * padding - kernel + 1) // (2 if pooled else 1))
    if sizes[-1] < 1:
        raise ValueError(f"task must have larger images for this network, got {shape[1]} × {shape[2]} pixels")
    seen = sizes[-1:]
    for (_, kernel, padding, pooled), whole in reversed(list(zip(convolutions, sizes, strict=False))):
        # Pooling drops an odd last row and column. Without padding, what these alone would see is left out, too.
        seen.insert(0, whole if padding else seen[0] * (2 if pooled else 1) + kernel - 1)
    layers: list[Layer] = []
    for (outputs, kernel, padding, pooled), part in zip(convolutions, seen, strict=False):
        # An increasing activation commutes with max pooling. Pooling first leaves it a quarter of the work.
        convolution = Conv(channels, outputs, kernel, padding, part)
        layers += [convolution, *([MaxPool()] if pooled else []), Activation(activation)]
        channels = outputs
    layers += [Flatten(), Dense(channels * sizes[-1] ** 2, width), Activation(activation)]
    layers.append(Dense(width, task.num_classes))
    return Network(f"convnet {size} {activation}", shape, task.num_classes, tuple(layers))
