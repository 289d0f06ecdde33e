"""Architectures by name: fully connected networks and two small ConvNets."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import numpy as np

from dpsub._core import checks
from dpsub.data import Task, check_task
from dpsub.models.convolutions import Conv, MaxPool
from dpsub.models.layers import Activation, Dense, Flatten, Layer
from dpsub.models.networks import Network

MOST_WIDTH = 2**31


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
    expected = "hidden must be the hidden layers' widths, one or more"
    if not (hidden := tuple(checks.several(expected, hidden))):
        raise ValueError(f"{expected}, got none: use linear for none")
    checks.choice("activation", activation, ("tanh", "relu"))
    shape = task.x_train.shape[1:]
    widths = [int(np.prod(shape)), *(checks.whole("hidden", width, at_most=MOST_WIDTH) for width in hidden)]
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
    layers += [
        Flatten(),
        Dense(channels * sizes[-1] ** 2, width),
        Activation(activation),
        Dense(width, task.num_classes),
    ]
    return Network(f"convnet {size} {activation}", shape, task.num_classes, tuple(layers))
