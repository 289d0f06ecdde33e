"""Dropout whose masks are drawn outside the module, so that each bank has its own stream of randomness."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
# Of how many dimensions inputs are whose first one torch takes for the channels to drop. Otherwise it is the second.
CHANNELS_FIRST: dict[type, int] = {nn.Dropout1d: 2, nn.Dropout3d: 4}


class Masked(nn.Module):
    """Takes the place of a dropout layer: each call multiplies by the next mask of `masks`.

    Without masks it lets everything pass, and notes the shapes of the masks that it would have used. They are noted for
    one record, and have all dimensions: layers may see records in another dimension than the first.
    """

    def __init__(self, rate: float, kind: type) -> None:
        super().__init__()
        self.rate, self._kind = rate, kind
        self.masks: Iterator[Tensor] | None = None
        self.shapes: list[tuple[int, ...]] = []

    def forward(self, x: Tensor) -> Tensor:
        if self.masks is not None:
            return x * next(self.masks)
        own = x.ndim if self._kind is nn.Dropout else 1 if x.ndim == CHANNELS_FIRST.get(self._kind) else 2
        self.shapes.append((*x.shape[:own], *[1] * (x.ndim - own)))
        return x


def masked(module: nn.Module) -> list[Masked]:
    """Put a `Masked` in the place of each dropout layer, and return them in order."""
    found = []
    for parent in list(module.modules()):
        for name, child in list(parent._modules.items()):  # named_children names a layer once
            if isinstance(child, DROPOUTS) and type(child) in DROPOUTS:
                found.append(Masked(child.p, type(child)))
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
