"""How records are changed for a model as it is: to raise their loss, or to turn their gradient."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dpsub.crafters.reference_model import gradient_of
from dpsub.models.interface import Losses

BALLS = ("linf", "l2")
AT_ONCE = 512  # records in one backward pass
LEAST = 1e-30  # the product of two norms counts as at least this


@dataclass(frozen=True)
class Ascent:
    """Projected gradient ascent on the loss, within a ball around the record.

    Attributes:
        steps: how many.
        rate: how far x moves in one step, in the ball's norm.
        radius: of the ball.
        ball: "linf", whose steps are signs of the gradient, or "l2", whose steps point along the gradient.

    Source: Madry et al. (2018), without a random start.
    """

    steps: int
    rate: float
    radius: float
    ball: str

    def __call__(self, module: nn.Module, losses: Losses, x: Tensor, y: int) -> Tensor:
        """The changed x. Where the gradient is 0 it does not move."""
        label, away = torch.tensor([y], device=x.device), torch.zeros_like(x)
        for _ in range(self.steps):
            moved = (x + away).requires_grad_()
            (slope,) = torch.autograd.grad(losses(module(moved[None]), label)[0], moved)
            if self.ball == "linf":
                away = (away + self.rate * slope.sign()).clamp(-self.radius, self.radius)
            else:
                away = away + self.rate * slope / slope.norm().clamp(min=LEAST)
                away = away * (self.radius / away.norm().clamp(min=LEAST)).clamp(max=1)
        return x + away


@dataclass(frozen=True)
class Turning:
    """Gradient descent on |cos| of the record's gradient with the mean gradient of other records.

    Attributes:
        steps: how many.
        rate: η.

    Source: *Tight Auditing*, Algorithm 3.
    """

    steps: int
    rate: float

    def __call__(self, module: nn.Module, losses: Losses, x: Tensor, y: int, away_from: Tensor) -> Tensor:
        """The x with the least |cos| of all on the way, which is x itself if no step lowers it.

        An x without a gradient is never taken: it would be no canary.

        Args:
            module: the model.
            losses: its loss.
            x, y: the record.
            away_from: (parameters,) the mean gradient.

        Raises:
            ValueError: if x does not stay finite.
        """
        best, least = x, torch.inf
        for step in range(self.steps + 1):
            x = x.detach().requires_grad_()
            own = gradient_of(module, x, y, losses)
            norms = own.norm() * away_from.norm()
            cosine = (own @ away_from).abs() / norms.clamp(min=LEAST)
            if norms > LEAST and (here := float(cosine.detach())) < least:
                best, least = x.detach(), here
            if step < self.steps:
                (slope,) = torch.autograd.grad(cosine, x)
                x = x - self.rate * slope
                if not torch.isfinite(x).all():
                    raise ValueError(
                        f"learning_rate must be small enough that crafting does not diverge, got {self.rate:g}"
                    )
        return best


def mean_gradient(module: nn.Module, losses: Losses, x: Tensor, y: Tensor) -> Tensor:
    """(parameters,): the mean gradient of records, in the order of the module's parameters."""
    trained = [one for one in module.parameters() if one.requires_grad]
    total = [torch.zeros_like(one) for one in trained]
    for records, labels in zip(torch.split(x, AT_ONCE), torch.split(y, AT_ONCE), strict=True):
        loss = losses(module(records), labels).sum() / len(y)
        for sum_, part in zip(total, torch.autograd.grad(loss, trained, materialize_grads=True), strict=True):
            sum_ += part
    return torch.cat([part.flatten() for part in total])
