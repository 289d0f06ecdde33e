"""A Wide ResNet for DP-SGD, and augmentation multiplicity, as modules."""

import torch
from torch import nn
from torch.nn import functional

from dpsub import models

GROUPS = 16
BITS = 20  # of the coins that choose a shift


class StandardizedConv(nn.Module):
    """A convolution whose filters have mean 0 and a learned norm.

    Weight standardisation: Qiao et al. (2019), with the scale and gain of Brock et al. (2021).
    """

    def __init__(self, channels, channels_out, kernel, stride=1):
        super().__init__()
        shape = (channels_out, channels, kernel, kernel)
        self.weight = nn.Parameter(torch.empty(shape))
        self.gain = nn.Parameter(torch.empty(channels_out))
        self.bias = nn.Parameter(torch.empty(channels_out))
        self.stride, self.padding = stride, kernel // 2
        self.reset_parameters()

    def reset_parameters(self):
        fan_in = self.weight[0].numel()
        nn.init.normal_(self.weight, std=fan_in**-0.5)
        nn.init.ones_(self.gain)
        nn.init.zeros_(self.bias)

    def forward(self, images):
        filters = self.weight.flatten(1)
        filters = filters - filters.mean(dim=1, keepdim=True)
        squares = filters.square().sum(dim=1).clamp(min=1e-4)
        scale = self.gain / squares.sqrt()
        weight = (filters * scale[:, None]).view_as(self.weight)
        return functional.conv2d(images, weight, self.bias, self.stride, self.padding)


def before(channels, channels_out, kernel, stride=1):
    """A convolution with what comes before it."""
    return nn.Sequential(
        nn.ReLU(), nn.GroupNorm(GROUPS, channels), StandardizedConv(channels, channels_out, kernel, stride)
    )


class Block(nn.Module):
    """Two convolutions beside a skip connection, which has a convolution of its own where the size changes."""

    def __init__(self, channels, channels_out, stride, first):
        super().__init__()
        self.inner = nn.Sequential(before(channels, channels_out, 3, stride), before(channels_out, channels_out, 3))
        self.skip = before(channels, channels_out, 1, stride) if first else nn.Identity()

    def forward(self, images):
        return self.inner(images) + self.skip(images)


class WideResNet(nn.Module):
    """WRN-depth-width for images (n, 3, height, width), of a depth 6k + 4.

    As De et al. (2022) train it with DP-SGD: group norm instead of batch norm, after the activation, and standardised
    weights. WRN-16-4 has 2,753,818 parameters for ten classes.

    Source: Zagoruyko and Komodakis (2016).
    """

    def __init__(self, depth=16, width=4, classes=10):
        super().__init__()
        blocks, channels = [], 16
        for group in range(3):
            channels_out = 16 * width * 2**group
            for place in range((depth - 4) // 6):
                stride = 2 if group and not place else 1
                blocks.append(Block(channels, channels_out, stride, not place))
                channels = channels_out
        self.first = StandardizedConv(3, 16, 3)
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.GroupNorm(GROUPS, channels)
        self.out = nn.Linear(channels, classes)

    def forward(self, images):
        seen = functional.relu(self.blocks(self.first(images)))
        return self.out(self.norm(seen).mean(dim=(2, 3)))


class Augmented(nn.Module):
    """A network that trains on several augmented copies of each image.

    Each copy is shifted by up to `pad` pixels in each direction, with the image mirrored at its edges, and flipped left
    to right by a coin. The output is the mean over copies of log-softmax. With `mean_loss`, a record's loss is the mean
    of its copies' losses, so its gradient is the mean of their gradients, and this is what DP-SGD clips. The coins are
    a dropout layer's: a bank draws them from its own stream. Evaluated, the network sees the image as it is.

    Source: De et al. (2022), augmentation multiplicity.
    """

    def __init__(self, network, copies, pad=4):
        super().__init__()
        self.network, self.copies, self.pad = network, copies, pad
        self.coins = nn.Dropout(0.5)

    def extra_repr(self):
        return f"copies={self.copies}, pad={self.pad}"

    def forward(self, images):
        if not self.training:
            return functional.log_softmax(self.network(images), dim=1)
        copies = self.augmented(images)
        outputs = self.network(copies.flatten(0, 1))
        outputs = outputs.view(len(images), self.copies, -1)
        return functional.log_softmax(outputs, dim=2).mean(dim=1)

    def augmented(self, images):
        """(n, channels, size, size) to (n, copies, channels, ...)."""
        n, channels, height, width = images.shape
        ones = images.new_ones(n, self.copies, 2 * BITS + 1)
        coins = self.coins(ones) > 0
        down, right, flip = coins.split([BITS, BITS, 1], dim=2)
        rows = mirrored(self.shifted(down, height), height)
        columns = mirrored(self.shifted(right, width), width)
        columns = torch.where(flip, columns.flip(2), columns)
        seen = rows[..., None] * width + columns[:, :, None]
        shape = (n, self.copies, channels, height * width)
        pixels = images.flatten(2)[:, None].expand(shape)
        copies = pixels.gather(3, seen.flatten(2)[:, :, None].expand(shape))
        return copies.unflatten(3, (height, width))

    def shifted(self, coins, size):
        """(n, copies, size): the places that a shifted image shows."""
        powers = 2 ** torch.arange(BITS, device=coins.device)
        drawn = (coins * powers).sum(dim=2, keepdim=True)
        shift = (drawn * (2 * self.pad + 1)) >> BITS  # 0 to 2 pad
        places = torch.arange(size, device=coins.device)
        return places + shift - self.pad


def mirrored(places, size):
    """Places within the image, mirrored at its edges."""
    places = torch.where(places < 0, -1 - places, places)
    return torch.where(places < size, places, 2 * size - 1 - places)


def mean_loss(outputs, labels):
    """The loss for `Augmented`."""
    return functional.nll_loss(outputs, labels, reduction="none")


def wide_resnet(task, *, depth=16, width=4, copies=16, pad=4):
    """A bank of Wide ResNets with augmentation multiplicity.

    `bank.activations` is that of one image, so a part of a step holds up to `copies` times what the bank plans for. For
    WRN-16-4 and 16 copies these are 0.6 GB on a CPU and, by calculation, 14 GB on a GPU. To need less, use
    `dataclasses.replace(bank, activations=copies * bank.activations)`.
    """
    network = WideResNet(depth, width, task.num_classes)
    return models.from_module(
        Augmented(network, copies, pad), task, start="fresh", loss=mean_loss, name=f"WRN-{depth}-{width}"
    )
