"""Banks: R models of one architecture that train side by side on the same records."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dpsub.data import Task

OPACUS_EPS = 1e-6  # Opacus clips by C / (norm + 1e-6); so does this


@dataclass(frozen=True)
class Linear:
    """A bank of linear heads with cross-entropy loss, all starting from 0.

    The parameters of R heads are one tensor (features + 1, classes, runs), the bias in the last row: all heads then
    share one matrix product with the records, and the runs, last, are contiguous.
    """

    features: int
    classes: int

    def check_fits(self, task: Task) -> None:
        if task.x_train.shape[1:] != (self.features,) or task.num_classes != self.classes:
            raise ValueError(f"model must fit the task, {task!r}, got {self!r}")

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of one model's parameters; a gradient canary is such a tensor, flattened."""
        return self.features + 1, self.classes

    @property
    def parameters(self) -> int:
        return self.shape[0] * self.shape[1]

    def initial(self, runs: int, device: torch.device) -> Tensor:
        return torch.zeros(*self.shape, runs, device=device)

    def inputs(self, x: Tensor) -> Tensor:
        """(n, features) → (n, features + 1): the records with the constant that the bias multiplies."""
        return torch.cat([x, torch.ones_like(x[:, :1])], dim=1)

    def logits(self, theta: Tensor, inputs: Tensor) -> Tensor:
        """(n, classes, runs)."""
        return (inputs @ theta.flatten(1)).view(len(inputs), *theta.shape[1:])

    def clipped_sum(
        self, theta: Tensor, inputs: Tensor, labels: Tensor, sampled: Tensor | None, max_grad_norm: float
    ) -> Tensor:
        """The sum of the sampled records' clipped gradients, shaped like `theta`.

        A record's gradient is an outer product, so its norm is ‖input‖·‖output gradient‖: no per-record gradient is
        ever formed.

        Args:
            theta: (features + 1, classes, runs).
            inputs: (n, features + 1).
            labels: (n,).
            sampled: (n, runs) bool, or None for the full batch.
            max_grad_norm: C.
        """
        output = torch.softmax(self.logits(theta, inputs), dim=1)
        output[torch.arange(len(labels), device=labels.device), labels] -= 1
        norms = (output * output).sum(dim=1).sqrt_() * inputs.norm(dim=1)[:, None]
        scale = (max_grad_norm / (norms + OPACUS_EPS)).clamp_(max=1.0)
        if sampled is not None:
            scale *= sampled
        output *= scale[:, None]
        return (inputs.T @ output.flatten(1)).view_as(theta)


def linear(task: Task) -> Linear:
    """A linear head on the task's features: (d + 1) · num_classes parameters, θ₀ = 0.

    Source: *Beyond Membership*, section 5, "fine-tuning the last layer".
    """
    if task.x_train.ndim != 2:
        raise ValueError(f"task must have flat features (n, d) for a linear head, got x_train {task.x_train.shape}")
    return Linear(features=task.x_train.shape[1], classes=task.num_classes)
