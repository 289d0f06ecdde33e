"""The losses of two worlds' final models at one record, their gradient by it, and how far apart they are.

Crafting an adversarial sample minimises one of the `OBJECTIVES`, functions of the losses of the models trained with z,
those of the other models, and a margin. The `separation` of the two groups is reported instead: it rises where an
objective falls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from dpsub.models.interface import Model, losses_of, theta_of

# About how many parameters are evaluated at once. A constant, since parts of another size round differently.
PARAMETERS_AT_ONCE = 2**23
# A floor for variances: where all models of a world have the same loss, only rounding is left to divide by.
LEAST_VARIANCE = 1e-12


def thetas_of(model: Model, weights: ArrayLike, device: torch.device) -> Iterator[Tensor]:
    """Models (runs, parameters) in parts that bound the memory, in the layout in which they compute."""
    for part in torch.split(torch.as_tensor(weights), max(1, PARAMETERS_AT_ONCE // model.parameters)):
        yield theta_of(model, part.to(device))


def losses_at(model: Model, thetas: Sequence[Tensor], x: Tensor, y: int, y_prime: int | None) -> Tensor:
    """(runs,): the losses of R models at one record with the label y, or that less the loss with the label y_prime.

    They are differentiable by x. Where models are in several parts, the gradient computes each part once more, so that
    one part at a time is in memory.
    """

    def losses(theta: Tensor, x: Tensor) -> Tensor:
        logits = model.logits(theta, model.inputs(x[None]))[0].T

        def of_label(label: int) -> Tensor:
            return losses_of(model)(logits, torch.full((len(logits),), label, device=x.device))

        return of_label(y) if y_prime is None else of_label(y) - of_label(y_prime)

    if len(thetas) == 1:
        return losses(thetas[0], x)
    return torch.cat([checkpoint(losses, theta, x, use_reentrant=False) for theta in thetas])


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


OBJECTIVES: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "ude": difference_of_means,
    "ade": hinge,
    "fisher": fisher,
    "bhattacharyya": bhattacharyya,
}


def separation(with_z: Tensor, others: Tensor) -> float:
    """The difference of the mean losses in pooled standard deviations; positive if models trained with z have less.

    It is 0 if all losses are equal, and infinite if they only differ between the worlds.
    """
    a, b = with_z.double(), others.double()
    pooled = ((len(a) - 1) * a.var() + (len(b) - 1) * b.var()) / (len(a) + len(b) - 2)
    gap = b.mean() - a.mean()
    return float(gap / pooled.sqrt()) if gap else 0.0
