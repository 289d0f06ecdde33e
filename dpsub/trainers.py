r"""DP-SGD and DP-Adam for a bank of models, exactly as Opacus takes each step."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpsub.canaries import CanaryPair
from dpsub.data import Task
from dpsub.dpsgd import DPSGD
from dpsub.models import Linear


class Bank:
    """R models in training: n − 1 shared records and, in the slot, the canary of each model's own world.

    Without a canary all n records are shared: the reference models that adversaries train for themselves.

    Args:
        model, task, spec: what is trained, on what, how.
        canary: the pair whose z or z_prime fills the slot; None for none.
        bits: (runs,) 0 for the world of z, 1 for that of z_prime.
        device: where.
    """

    def __init__(
        self,
        model: Linear,
        task: Task,
        spec: DPSGD,
        *,
        bits: NDArray[np.int8],
        device: torch.device,
        canary: CanaryPair | None = None,
    ) -> None:
        self.model, self.spec, self.canary, self.device = model, spec, canary, device
        self.runs = len(bits)
        others = np.arange(len(task.y_train))
        self.expected_batch_size = spec.sample_rate * len(others)
        if canary is not None:
            others = np.delete(others, canary.slot)
        self.inputs = model.inputs(torch.as_tensor(task.x_train[others], device=device))
        self.labels = torch.as_tensor(task.y_train[others], device=device)

        self.theta = model.initial(self.runs, device)
        self.theta_0 = self.theta.clone()
        if spec.optimizer == "adam":
            self.optimizer: torch.optim.Optimizer = torch.optim.Adam([self.theta], lr=spec.learning_rate)
        else:
            self.optimizer = torch.optim.SGD([self.theta], lr=spec.learning_rate)

        if canary is not None:
            self.z = torch.as_tensor(canary.z, device=device)
            worlds = torch.stack([self.z, torch.as_tensor(canary.z_prime, device=device)])
            chosen = worlds[torch.as_tensor(bits, dtype=torch.int64, device=device)]
            self.slot_gradients = chosen.T.reshape(*model.shape, self.runs)

    def step(self, *, sampled: Tensor | None, slot_sampled: Tensor | None, noise: Tensor | None) -> None:
        """One step of training with the randomness given.

        Args:
            sampled: (records, runs) bool, which shared records are in each model's batch; None for all.
            slot_sampled: (runs,) bool, whether the slot is; None for always.
            noise: standard normal, shaped like `theta`; None for a step without noise.
        """
        spec = self.spec
        total = self.model.clipped_sum(self.theta, self.inputs, self.labels, sampled, spec.max_grad_norm)
        if self.canary is not None:
            total += self.slot_gradients if slot_sampled is None else self.slot_gradients * slot_sampled
        if noise is not None:
            total.add_(noise, alpha=spec.noise_multiplier * spec.max_grad_norm)
        self.theta.grad = total.div_(self.expected_batch_size)
        self.optimizer.step()

    def train(self, generator: torch.Generator, *, private: bool = True) -> Iterator[int]:
        """Train for all steps with fresh randomness, yielding the number of steps taken after each."""
        q = self.spec.sample_rate
        noise = torch.empty_like(self.theta) if private else None
        for step in range(1, self.spec.steps + 1):
            sampled = slot_sampled = None
            if q < 1:
                coins = torch.rand(len(self.labels) + 1, self.runs, generator=generator, device=self.device) < q
                sampled, slot_sampled = coins[:-1], coins[-1]
            if noise is not None:
                noise.normal_(generator=generator)
            self.step(sampled=sampled, slot_sampled=slot_sampled, noise=noise)
            yield step

    def scores(self) -> Tensor:
        """(runs,): how much each model speaks for z, by theory: training descends, so z pushes θ towards −z.

        Source: *Beyond Membership*, Algorithm 1, line 23, which prints the opposite sign.
        """
        displacement = (self.theta_0 - self.theta).flatten(0, 1)
        return (self.z / self.spec.max_grad_norm) @ displacement
