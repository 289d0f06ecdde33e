r"""DP-SGD and DP-Adam for a bank of models, with exactly the steps that Opacus takes."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from dpsub._core import DPSGD
from dpsub.models import Model, Stochastic
from dpsub.trainers.coins import coins
from dpsub.trainers.slot import Slot


class Bank:
    """R models in training, on shared records and on the canary of each model's world.

    A step equals one of Opacus's DPOptimizer with expected_batch_size = q·n, where n counts the slot. (PrivacyEngine
    rounds q·n down to a whole number.) `assemble` makes a bank from a task and a canary.

    Args:
        model: the architecture.
        inputs: the shared records as `model.inputs` returns them, followed by the slot's records, if it has any.
        labels: the labels of `inputs`.
        shared: the number of shared records.
        slot: what fills the canary's place in each model.
        spec: the DP-SGD parameters.
        expected_batch_size: q·n.
        runs: R.
        generator: the source of random starts, batches and noise, in this order. The bank trains on its device.

    Attributes:
        theta: the parameters, in the model's own layout; `model.flat(theta)` is (runs, parameters).
        theta_0: the parameters before the first step.
    """

    def __init__(
        self,
        model: Model,
        inputs: Tensor,
        labels: Tensor,
        *,
        shared: int,
        slot: Slot,
        spec: DPSGD,
        expected_batch_size: float,
        runs: int,
        generator: torch.Generator,
    ) -> None:
        self._training = model.training(generator) if isinstance(model, Stochastic) else model
        self.model, self.inputs, self.labels, self.shared = model, inputs, labels, shared
        self.slot, self.spec, self.generator, self.runs = slot, spec, generator, runs
        self.expected_batch_size = expected_batch_size
        self.theta = model.initial_parameters(runs, generator)
        self.theta_0 = self.theta.clone()
        # All steps reuse this memory for sum and noise: allocating it costs more than filling it.
        self._sum, self._noise = torch.empty_like(self.theta), torch.empty_like(self.theta)
        self._everyone = torch.ones(shared, runs, dtype=torch.bool, device=generator.device)
        # The first torch.optim of a process imports a compiler, which takes a second. SGD does without.
        self._adam: torch.optim.Optimizer | None = None
        if spec.optimizer == "adam":
            self._adam = torch.optim.Adam([self.theta], lr=spec.learning_rate, fused=True)

    @property
    def device(self) -> torch.device:
        """The device that the bank trains on."""
        return self.generator.device

    def step(
        self,
        *,
        sampled: Tensor | None = None,
        slot_sampled: Tensor | None = None,
        noise: Tensor | None = None,
        clip: bool = True,
    ) -> None:
        """One training step with the given randomness.

        Args:
            sampled: (shared records, runs) bool, the records in each model's batch; None for all.
            slot_sampled: (runs,) bool, whether the slot is in each model's batch; None for all models. With many slots
                (m, runs).
            noise: standard normal, shaped like `theta`; None for a step without noise.
            clip: whether to clip the records' gradients.
        """
        spec = self.spec
        slot_rows = self.slot.rows(slot_sampled)
        if slot_rows is not None:
            sampled = torch.cat([self._everyone if sampled is None else sampled, slot_rows])
        total = self._training.clipped_sum(
            self.theta,
            self.inputs,
            self.labels,
            sampled,
            spec.max_grad_norm if clip else math.inf,
            out=self._sum,
        )
        self.slot.add_to(self.model.flat(total), slot_sampled)
        if noise is not None:
            total.add_(noise, alpha=spec.noise_multiplier * spec.max_grad_norm)
        self.theta.grad = total.div_(self.expected_batch_size)
        if self._adam is None:
            self.theta.add_(self.theta.grad, alpha=-spec.learning_rate)
        else:
            self._adam.step()

    def advance(self, *, slot_sampled: Tensor | None = None, noise: bool = True, clip: bool = True) -> None:
        """One training step with fresh randomness: a coin of probability q for each record and the slot, then noise.

        Args:
            slot_sampled: (runs,) bool, whether the slot is in each model's batch, if that is drawn elsewhere. With many
                slots (m, runs), always drawn elsewhere.
            noise, clip: whether to add noise, and to clip the records' gradients.
        """
        sampled = None
        if self.spec.sample_rate < 1:
            rows = self.shared + (slot_sampled is None)
            sampled = coins(self.spec.sample_rate, rows, self.runs, self.generator)
            if slot_sampled is None:
                sampled, slot_sampled = sampled[:-1], sampled[-1]
        drawn = self._noise.normal_(generator=self.generator) if noise else None
        self.step(sampled=sampled, slot_sampled=slot_sampled, noise=drawn, clip=clip)

    def train(self, *, noise: bool = True, clip: bool = True) -> Iterator[int]:
        """Train for all steps. After each step, yield the number of steps taken."""
        for step in range(1, self.spec.steps + 1):
            self.advance(noise=noise, clip=clip)
            yield step

    @property
    def noisy_average(self) -> Tensor:
        """(runs, parameters): the last step's noisy sum of clipped gradients, divided by the expected batch size."""
        if self.theta.grad is None:
            raise ValueError("noisy_average must be read after a step, got a bank before its first one")
        return self.model.flat(self.theta.grad)

    @property
    def last_sum(self) -> Tensor:
        """The last step's noisy sum of clipped gradients, shaped like `theta`: a copy."""
        if self.theta.grad is None:
            raise ValueError("last_sum must be read after a step, got a bank before its first one")
        return self.theta.grad * self.expected_batch_size

    def scores(self) -> Tensor:
        """(runs,): how much each model speaks for z, as `Slot.scores` defines it."""
        return self.slot.scores(self)

    def accuracy(self, x: Tensor, labels: Tensor, runs: int) -> Tensor:
        """(runs,): for each of the first `runs` models, the share of the records whose label has the largest logit.

        Args:
            x: (k, *input_shape) records.
            labels: (k,).
            runs: how many models to measure, from the first on.
        """
        logits = self.model.logits(self.model.first(self.theta, runs), self.model.inputs(x))
        return (logits.argmax(dim=1) == labels[:, None]).float().mean(dim=0)
