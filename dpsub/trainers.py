r"""DP-SGD and DP-Adam for a bank of models, exactly as Opacus takes each step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpsub._networks import RECORDS_AT_ONCE
from dpsub.canaries import CanaryPair, Record
from dpsub.data import Task
from dpsub.dpsgd import DPSGD
from dpsub.models import Linear, Model

# About how many numbers a part of one step's computation holds: what a CPU core's cache likes, and, not measured yet,
# what should fill a GPU. It is not planned from the memory there is, since parts of another size round otherwise: that
# plans how many blocks train.
ROOM = {"cpu": 2**20, "cuda": 2**28}
# Below this sample rate networks compute each model's own batch; above it, all records, those not sampled weighing 0.
GATHER_BELOW = 0.5


class Bank:
    """R models in training: n − 1 shared records and, in the slot, the canary of each model's own world.

    Without a canary all n records are shared: the reference models that adversaries train for themselves. A step is
    DPOptimizer's with expected_batch_size = q·n. (PrivacyEngine rounds that down to a whole number.)

    Args:
        model, task, spec: what is trained, on what, how.
        bits: (runs,) 0 for the world of z, 1 for that of z_prime.
        generator: where random starts, batches and noise come from, in this order; its device is where it all happens.
        canary: the pair whose z or z_prime fills the slot; None for none.
        within_span: train a linear head by plain SGD in the coordinates that its records span, where these are fewer:
            scores have the same law, and `theta` is in other coordinates (`Linear.within_span`).

    Attributes:
        theta: the parameters, in the model's own layout; `model.flat(theta)` is (runs, parameters).
        theta_0: as they were before the first step.
    """

    def __init__(
        self,
        model: Model,
        task: Task,
        spec: DPSGD,
        *,
        bits: NDArray[np.int8],
        generator: torch.Generator,
        canary: CanaryPair | None = None,
        within_span: bool = False,
    ) -> None:
        self.spec, self.canary, self.generator, self.device = spec, canary, generator, generator.device
        self.runs, self.room = len(bits), ROOM[self.device.type]
        worlds = [] if canary is None else [world for world in (canary.z, canary.z_prime) if world is not None]
        x, y = [task.x_train], [task.y_train]
        if canary is not None:
            x, y = [np.delete(task.x_train, canary.slot, axis=0)], [np.delete(task.y_train, canary.slot)]
        self.others = len(y[0])
        self.expected_batch_size = spec.sample_rate * len(task.y_train)
        for world in worlds:
            if isinstance(world, Record):
                x.append(world.x[None])
                y.append(np.array([world.y]))
        self.inputs = model.inputs(torch.as_tensor(np.concatenate(x), device=self.device))
        self.labels = torch.as_tensor(np.concatenate(y), device=self.device)

        gradients = [torch.as_tensor(world, device=self.device) for world in worlds if not isinstance(world, Record)]
        vectors = torch.stack(gradients) if gradients else torch.zeros(0, model.parameters, device=self.device)
        if within_span and isinstance(model, Linear) and spec.optimizer == "sgd":
            smaller = model.within_span(self.inputs, vectors)
            if smaller is not None:
                model, self.inputs, vectors = smaller
        self.model: Model = model

        in_world = torch.as_tensor(np.asarray(bits) != 0, device=self.device)
        self.worlds = torch.stack([~in_world, in_world])
        # A gradient canary is 0 but in a few places, where it is added and read.
        self.support = vectors.any(dim=0).nonzero()[:, 0]
        self.gradients = vectors[:, self.support]
        self.slot_gradients = self.gradients[in_world.long()] if gradients else self.gradients
        self.everyone = torch.ones(self.others, self.runs, dtype=torch.bool, device=self.device)

        self.theta = model.initial_parameters(self.runs, generator)
        self.theta_0 = self.theta.clone()
        # Each step's sum and noise go to the same places: new memory costs more than what is written into it.
        self._sum, self._noise = torch.empty_like(self.theta), torch.empty_like(self.theta)
        if spec.optimizer == "adam":
            self.optimizer: torch.optim.Optimizer = torch.optim.Adam([self.theta], lr=spec.learning_rate, fused=True)
        else:
            self.optimizer = torch.optim.SGD([self.theta], lr=spec.learning_rate)

    @property
    def has_record(self) -> bool:
        return self.canary is not None and isinstance(self.canary.z, Record)

    def step(
        self,
        *,
        sampled: Tensor | None = None,
        slot_sampled: Tensor | None = None,
        noise: Tensor | None = None,
        clip: bool = True,
    ) -> None:
        """One step of training with the randomness given.

        Args:
            sampled: (n − 1 or, without a canary, n; runs) bool, the other records in each model's batch; None for all.
            slot_sampled: (runs,) bool, whether the slot is; None for always.
            noise: standard normal, shaped like `theta`; None for a step without noise.
            clip: whether to clip the records' gradients.
        """
        spec = self.spec
        if self.has_record:
            slot = self.worlds[: len(self.inputs) - self.others]
            slot = slot if slot_sampled is None else slot & slot_sampled
            sampled = torch.cat([self.everyone if sampled is None else sampled, slot])
        total = self.model.clipped_sum(
            self.theta,
            self.inputs,
            self.labels,
            sampled,
            spec.max_grad_norm if clip else math.inf,
            gather=spec.sample_rate < GATHER_BELOW,
            room=self.room,
            out=self._sum,
        )
        if len(self.support):
            slot_gradients = (
                self.slot_gradients if slot_sampled is None else self.slot_gradients * slot_sampled[:, None]
            )
            self.model.flat(total)[:, self.support] += slot_gradients
        if noise is not None:
            total.add_(noise, alpha=spec.noise_multiplier * spec.max_grad_norm)
        self.theta.grad = total.div_(self.expected_batch_size)
        self.optimizer.step()

    def advance(self, *, noise: bool = True, clip: bool = True) -> None:
        """One step with fresh randomness: a coin of probability q for each record, the slot included, then noise."""
        sampled = slot_sampled = None
        if self.spec.sample_rate < 1:
            coins = _coins(self.spec.sample_rate, self.others + 1, self.runs, self.generator)
            sampled, slot_sampled = coins[:-1], coins[-1]
        drawn = self._noise.normal_(generator=self.generator) if noise else None
        self.step(sampled=sampled, slot_sampled=slot_sampled, noise=drawn, clip=clip)

    def train(self, *, noise: bool = True, clip: bool = True) -> Iterator[int]:
        """Train for all steps, yielding the number of steps taken after each."""
        for step in range(1, self.spec.steps + 1):
            self.advance(noise=noise, clip=clip)
            yield step

    def scores(self) -> Tensor:
        """(runs,): how much each model speaks for z, by theory.

        Training descends, so a gradient z pushes θ towards −z: (z/C)·(θ₀ − θ). A record is known better by the model
        that saw it: logit(z; θ) − logit(z′; θ).

        Source: *Beyond Membership*, Algorithm 1, line 23, which prints the opposite sign for gradients.
        """
        if self.has_record:
            canaries = slice(self.others, None)
            logits = _logit(self.model.logits(self.theta, self.inputs[canaries]), self.labels[canaries])
            return logits[0] - logits[1] if len(logits) > 1 else logits[0]
        displacement = self.model.flat(self.theta_0 - self.theta)[:, self.support]
        return displacement @ (self.gradients[0] / self.spec.max_grad_norm)

    def watch_gradient(self) -> Callable[[], Tensor]:
        """Ask before a step; what is returned gives after it (runs,) the privatised sum's product with z's gradient.

        z's gradient is the canary's own or, of a record, its clipped gradient at the parameters before the step. In
        units of C²: whoever's slot holds a z of norm C, and is sampled, sees 1 + N(0, σ²) and what the other records
        add.

        Source: *Tight Auditing of DP ML*, Algorithm 2, the observation O[t].
        """
        unit = self.expected_batch_size / self.spec.max_grad_norm**2
        if not self.has_record:
            return lambda: self._privatised()[:, self.support] @ self.gradients[0] * unit
        direction = self._canary_gradient(0)
        return lambda: (self._privatised() * direction).sum(dim=1) * unit

    def distance(self) -> Tensor:
        """(runs,): ‖g_z − g_z′‖/2C of the two canaries' gradients, a record's clipped, at the parameters as they are.

        At most 1, or 0.5 where one world is empty: what the accountants assume at every step.
        """
        if self.has_record:
            apart = self._canary_gradient(0)
            if len(self.inputs) - self.others > 1:
                apart -= self._canary_gradient(1, out=self._noise)  # between steps, nobody needs the noise
        else:
            apart = (self.gradients[0] - self.gradients[1]).expand(self.runs, -1)
        norms: Tensor = torch.linalg.vector_norm(apart, dim=1)
        return norms / (2 * self.spec.max_grad_norm)

    def _canary_gradient(self, world: int, out: Tensor | None = None) -> Tensor:
        """(runs, parameters): the clipped gradient of z, 0, or z′, 1, a record, in each model."""
        one = slice(self.others + world, self.others + world + 1)
        inputs, labels = self.inputs[one], self.labels[one]
        total = self.model.clipped_sum(self.theta, inputs, labels, None, self.spec.max_grad_norm, out=out)
        return self.model.flat(total)

    def _privatised(self) -> Tensor:
        assert self.theta.grad is not None
        return self.model.flat(self.theta.grad)

    def accuracy(self, x: Tensor, labels: Tensor, runs: int) -> Tensor:
        """(runs,) of the first models: the share of these records whose label has the largest logit."""
        logits = self.model.logits(self.model.first(self.theta, runs), self.model.inputs(x), self.room)
        return (logits.argmax(dim=1) == labels[:, None]).float().mean(dim=0)


def block_size(model: Model) -> int:
    """How many models train as one block: 128, fewer where the parameters of so many would take over half a GiB.

    Randomness comes in such blocks, so it depends on the model alone, never on the machine.
    """
    most = 2**27 // model.parameters
    return 1 << max(0, min(7, most.bit_length() - 1))


def block_bytes(model: Model, task: Task, spec: DPSGD, device: torch.device, runs: int) -> int:
    """About the most memory that the training of so many models as one block takes."""
    of_theta = 7 if spec.optimizer == "adam" else 5  # θ, θ₀, the sum, noise, one to spare; Adam's two averages
    x, coins = task.x_train.size, len(task.y_train) * runs
    linear = isinstance(model, Linear)
    copies_of_x = 12 if linear else 3  # a span is found in float64
    per_coin = 2 if linear or spec.sample_rate >= GATHER_BELOW else 2 + 12 * spec.sample_rate  # indices of batches
    floats = of_theta * model.parameters * runs + copies_of_x * x + math.ceil(per_coin * coins)
    return 4 * (floats + 4 * max(ROOM[device.type], RECORDS_AT_ONCE))


def _coins(q: float, rows: int, runs: int, generator: torch.Generator) -> Tensor:
    """(rows, runs) bool, True with probability q, to the nearest 2⁻³²; a float32 draw would only know 2⁻²⁴."""
    words = torch.empty((rows * runs + 1) // 2, dtype=torch.int64, device=generator.device)
    words.random_(-(2**63), None, generator=generator)
    halves = words.view(torch.int32)[: rows * runs].view(rows, runs)
    return halves < _threshold(q)


def _threshold(q: float) -> int:
    """Below which a uniform int32 lies with probability q."""
    return min(round(q * 2**32) - 2**31, 2**31 - 1)


def _logit(logits: Tensor, labels: Tensor) -> Tensor:
    """(records, classes, runs) → (records, runs): log p/(1 − p) of each record's label, without forming p."""
    own = labels[:, None, None].expand(-1, 1, logits.shape[2])
    others = logits.scatter(1, own, -torch.inf).logsumexp(dim=1)
    return logits.gather(1, own)[:, 0] - others
