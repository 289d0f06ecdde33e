"""Dropout whose masks are drawn outside the module, so that each bank has its own stream of randomness."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

WHOLE_CHANNELS = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


class Masked(nn.Module):
    """Takes the place of a dropout layer: each call multiplies by the next mask of `masks`.

    Without masks it lets everything pass, and notes the shapes of the masks that it would have used.
    """

    def __init__(self, rate: float, *, whole_channels: bool) -> None:
        super().__init__()
        self.rate, self._whole_channels = rate, whole_channels
        self.masks: Iterator[Tensor] | None = None
        self.shapes: list[tuple[int, ...]] = []

    def forward(self, x: Tensor) -> Tensor:
        if self.masks is not None:
            return x * next(self.masks)
        self.shapes.append((x.shape[1], *[1] * (x.ndim - 2)) if self._whole_channels else tuple(x.shape[1:]))
        return x


def masked(module: nn.Module) -> list[Masked]:
    """Put a `Masked` in the place of each dropout layer, and return them in order."""
    found = []
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Dropout or isinstance(child, WHOLE_CHANNELS):
                found.append(Masked(child.p, whole_channels=type(child) is not nn.Dropout))
                setattr(parent, name, found[-1])
    return found


def draw(
    layers: Iterable[Masked], lead: tuple[int, ...], generator: torch.Generator, like: Tensor
) -> list[list[Tensor]]:
    """Masks for all calls of all layers, each with the leading dimensions `lead` (runs, records)."""
    return [
        [
            torch.empty(*lead, *shape, device=generator.device, dtype=like.dtype)
            .bernoulli_(1 - layer.rate, generator=generator)
            .div_(1 - layer.rate if layer.rate < 1 else 1)
            for shape in layer.shapes
        ]
        for layer in layers
    ]
