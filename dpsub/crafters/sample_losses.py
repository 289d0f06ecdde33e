"""The losses of two worlds' final models at one record, their gradient by it, and how far apart they are.

Crafting an adversarial sample minimises a separation: a function of the losses of the models trained with z, those of
the other models, and a margin. It is lower the more the models trained with z have the lower losses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpsub.models import Model, losses_of
from dpsub.models.interface import theta_of

# About how many parameters are evaluated at once. A constant, since parts of another size round differently.
PARAMETERS_AT_ONCE = 2**23
# Losses of models that agree vary by rounding alone. Without a floor a world that is told apart perfectly divides by 0.
LEAST_VARIANCE = 1e-12
Separation = Callable[[Tensor, Tensor, float], Tensor]


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
            by_x = losses if losses.requires_grad else self._losses(theta, len(part), x)
            if not by_x.requires_grad:
                return None
            (slope,) = torch.autograd.grad(by_x, x, own, allow_unused=True)
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


def difference_of_means(with_z: Tensor, others: Tensor, margin: float) -> Tensor:
    """Uniform distance expansion."""
    return with_z.mean() - others.mean()


def hinge(with_z: Tensor, others: Tensor, margin: float) -> Tensor:
    """Adaptive distance expansion: models whose loss is already a margin below the others' mean count 0."""
    return torch.relu(with_z - others.mean() + margin).mean()


def fisher(with_z: Tensor, others: Tensor, margin: float) -> Tensor:
    """Minus Fisher's criterion, with the sign of the difference of means."""
    return -_sign(with_z, others) * _criterion(with_z, others)


def bhattacharyya(with_z: Tensor, others: Tensor, margin: float) -> Tensor:
    """Minus the Bhattacharyya distance of two normals, with the sign of the difference of means."""
    a, b = _variance(with_z), _variance(others)
    spread = torch.log((a + b) / (2 * a.sqrt() * b.sqrt()))
    return -_sign(with_z, others) * (_criterion(with_z, others) / 4 + spread / 2)


def _criterion(with_z: Tensor, others: Tensor) -> Tensor:
    return (others.mean() - with_z.mean()) ** 2 / (_variance(with_z) + _variance(others))


def _variance(losses: Tensor) -> Tensor:
    return losses.var().clamp(min=LEAST_VARIANCE)


def _sign(with_z: Tensor, others: Tensor) -> float:
    """1 if the models trained with z have the lower mean loss, as they should, or the same."""
    return 1.0 if others.mean() >= with_z.mean() else -1.0


BY_NAME: dict[str, Separation] = {
    "ude": difference_of_means,
    "ade": hinge,
    "fisher": fisher,
    "bhattacharyya": bhattacharyya,
}


def need_spread(name: str) -> bool:
    """Whether a separation has no gradient at a record at which all models of a world have the same loss."""
    return name in ("fisher", "bhattacharyya")


def in_deviations(with_z: Tensor, others: Tensor) -> float:
    """The difference of the mean losses in pooled standard deviations; positive if models trained with z have less.

    It is 0 if all losses are equal, and infinite if they only differ between the worlds.
    """
    a, b = with_z.double(), others.double()
    pooled = ((len(a) - 1) * a.var() + (len(b) - 1) * b.var()) / (len(a) + len(b) - 2)
    gap = b.mean() - a.mean()
    return float(gap / pooled.sqrt()) if gap else 0.0
