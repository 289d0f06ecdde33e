"""The losses of many trained models at one record, and their gradient by the record."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpsub.models import Model, losses_of
from dpsub.models.interface import theta_of

# About how many parameters are evaluated at once. A constant, since parts of another size round differently.
PARAMETERS_AT_ONCE = 2**23


class LossesAtRecord:
    """The losses of R models at records (x, y) with a fixed label. They are computed in parts, to bound the memory.

    Args:
        model: the architecture.
        weights: (runs, parameters), checked.
        y: the label.
        y_prime: another label, whose loss is subtracted.
        device: where to compute.
        keep: whether to hold the models in the layout in which they compute, for more than one call.
    """

    def __init__(
        self,
        model: Model,
        weights: NDArray[np.float32],
        y: int,
        y_prime: int | None,
        device: torch.device,
        *,
        keep: bool,
    ):
        self.model, self.device = model.prepared(device, 1.0), device
        self.y, self.y_prime = y, y_prime
        at_once = max(1, PARAMETERS_AT_ONCE // model.parameters)
        self.parts = [weights[first : first + at_once] for first in range(0, len(weights), at_once)]
        self.kept = list(self._thetas()) if keep else None

    def __call__(self, x: Tensor) -> Tensor:
        """(runs,). Only where one part holds all models is it differentiable by x; `gradient` is so in any case."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and len(self.parts) == 1):
            return torch.cat([self._losses(theta, len(part), x) for theta, part in self._both()])

    def gradient(self, x: Tensor, losses: Tensor, factors: Tensor) -> Tensor | None:
        """The gradient by x of the sum of the losses, each times its factor. None if they cannot be differentiated.

        Args:
            x: requires a gradient.
            losses: (runs,), what the call with this x returned.
            factors: (runs,).
        """
        total = torch.zeros_like(x)
        of_parts = torch.split(factors, [len(part) for part in self.parts])
        for (theta, part), own in zip(self._both(), of_parts, strict=True):
            found = losses if losses.requires_grad else self._losses(theta, len(part), x)
            if not found.requires_grad:
                return None
            (slope,) = torch.autograd.grad(found, x, own, allow_unused=True)
            if slope is None:
                return None
            total += slope
        return total

    def _losses(self, theta: Tensor, runs: int, x: Tensor) -> Tensor:
        logits = self.model.logits(theta, self.model.inputs(x[None]))[0].T
        of_label = losses_of(self.model)
        losses = of_label(logits, torch.full((runs,), self.y, device=self.device))
        if self.y_prime is None:
            return losses
        return losses - of_label(logits, torch.full((runs,), self.y_prime, device=self.device))

    def _thetas(self) -> Iterator[Tensor]:
        return (theta_of(self.model, torch.tensor(part, device=self.device)) for part in self.parts)

    def _both(self) -> Iterator[tuple[Tensor, NDArray[np.float32]]]:
        return zip(self.kept if self.kept is not None else self._thetas(), self.parts, strict=True)
