r"""DP-SGD and DP-Adam for a bank of models, with exactly the steps that Opacus takes; and how large a bank may be."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from dpsub.accounting import DPSGD
from dpsub.data import Task
from dpsub.models.interface import Model, Stochastic
from dpsub.models.mkl_kernels import begin_computing
from dpsub.trainers.batches import drawing


class StepGradients(NamedTuple):
    """What the canary is at one step: the clipped gradients of z and z′, of norm at most C.

    Attributes:
        z: (k,), the same for all models of the bank, or (runs, k). In the slots of m pairs (m, k).
        z_prime: shaped like z, or None if the slot is empty in that world.
        support: (k,) the indices of the parameters that z and z′ belong to; by default all parameters.
    """

    z: Tensor
    z_prime: Tensor | None = None
    support: Tensor | slice = slice(None)

    @property
    def worlds(self) -> list[Tensor]:
        """z, and z′ if the slot is not empty in that world."""
        return [self.z] if self.z_prime is None else [self.z, self.z_prime]

    @property
    def longest(self) -> Tensor:
        """The largest norm of a gradient, in any model."""
        return torch.stack([torch.linalg.vector_norm(gradient, dim=-1).max() for gradient in self.worlds]).max()


@dataclass(frozen=True, eq=False)
class Slot:
    """The places of m pairs in the batches of R models. This base class has m = 0, as for reference models.

    A `RecordSlot` has rows among the bank's inputs; training computes and clips their gradients. A `GradientSlot` adds
    its gradients to the sum of clipped gradients.

    Attributes:
        present: (worlds, m, runs) bool: which models have z, and which have z′, in each place. Only z if z′ is
            empty.
        support: the parameters that `gradient` belongs to.
    """

    present: Tensor

    @property
    def support(self) -> Tensor | slice:
        return slice(None)

    def in_batch(self, sampled: Tensor | None) -> Tensor:
        """(worlds, m, runs) bool: which models have z, and which have z′, in their batch.

        Args:
            sampled: (m, runs) bool, whether each place is in each model's batch, or (runs,) for one; None for all.
        """
        if sampled is None:
            return self.present
        sampled, shape = sampled if sampled.ndim > 1 else sampled[None], self.present.shape[1:]
        if sampled.shape != shape:  # one coin would serve all pairs
            raise ValueError(f"slot_sampled must have shape {tuple(shape)}, got {tuple(sampled.shape)}")
        return self.present & sampled

    def rows(self, sampled: Tensor | None) -> Tensor | None:
        """(records of the slot, runs) bool: which of them are in each model's batch; None if it holds no records."""
        return None

    def add_to(self, total: Tensor, sampled: Tensor | None) -> None:
        """Add the slot's gradients to the sums of clipped gradients, (runs, parameters), in place."""

    def scores(self, bank: Bank) -> Tensor:
        """(runs, m): how much each model speaks for z. Higher speaks for z, by theory and not by looking at data."""
        raise ValueError("canary must be given to score models, got a bank without one")

    def gradient(self, bank: Bank, world: int = 0) -> Tensor:
        """A copy of the clipped gradient of z, or of z′ if world is 1, at the current models: (k,) or (runs, k)."""
        if self.present.shape[1] != 1:
            raise ValueError(f"canary must be one pair to observe its gradient, got {self.present.shape[1]} pairs")
        return self._gradient(bank, world)

    def _gradient(self, bank: Bank, world: int) -> Tensor:
        raise NotImplementedError

    def product(self, bank: Bank, gradient: Tensor) -> Tensor:
        """(runs,): the product of a `gradient` with the last step's noisy average."""
        average = bank.noisy_average[:, self.support]
        return average @ gradient if gradient.ndim == 1 else (average * gradient).sum(dim=1)

    def at_step(self, bank: Bank) -> StepGradients:
        """The clipped gradients of z and z′ at the current models."""
        worlds = (self.gradient(bank, world) for world in range(len(self.present)))
        return StepGradients(*worlds)._replace(support=self.support)

    def distance(self, bank: Bank) -> Tensor:
        """(runs,): the distance between the clipped gradients of z and z′ at the current models."""
        apart = self.gradient(bank)
        if len(self.present) > 1:
            apart -= self.gradient(bank, 1)  # in place: gradients of records are as large as theta
        length: Tensor = torch.linalg.vector_norm(apart, dim=-1)
        return length.expand(bank.runs)


class Bank:
    """R models in training, on shared records and on the canary of each model's world.

    A step equals one of Opacus's DPOptimizer with expected_batch_size = q·n, where n counts the slot. (PrivacyEngine
    rounds q·n down to a whole number.) `assemble` makes a bank from a task and a canary.

    Args:
        model: the architecture.
        inputs: the shared records as `model.inputs` returns them, followed by the slot's records, if it has any.
        labels: the labels of `inputs`.
        shared: the number of shared records.
        slot: what fills the canary's place in each of R models.
        spec: the DP-SGD parameters.
        expected_batch_size: q·n.
        generator: the source of random starts, batches and noise, in this order. The bank trains on its device. Of
            several, each serves as many of the models, in order, as it would serve a bank of these alone; the first one
            alone serves what a `Stochastic` model draws.

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
        generator: torch.Generator | Sequence[torch.Generator],
    ) -> None:
        begin_computing()
        self._sources = [generator] if isinstance(generator, torch.Generator) else list(generator)
        self.generator, alone = self._sources[0], len(self._sources) == 1
        self.runs = runs = slot.present.shape[2]
        self._training = model.training(self.generator) if isinstance(model, Stochastic) else model
        self.model, self.inputs, self.labels, self.shared = model, inputs, labels, shared
        self.slot, self.spec, self.expected_batch_size = slot, spec, expected_batch_size
        self._draws = [drawing(spec.sampling, spec.sample_rate) for _ in self._sources]
        starts = [model.initial_parameters(runs // len(self._sources), source) for source in self._sources]
        self.theta = starts[0]
        if not alone:  # the starts overwrite another one, which has the layout for all models
            self.theta = self._fill(model.initial_parameters(runs, torch.Generator(self.device)), starts)
            self._of_one_source = starts[0]  # memory for the noise of one generator
        self.theta_0 = self.theta.clone()
        # All steps reuse this memory for sum and noise: allocating it costs more than filling it.
        self._sum, self._noise = torch.empty_like(self.theta), torch.empty_like(self.theta)
        self._everyone = torch.ones(shared, runs, dtype=torch.bool, device=self.device)
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
            slot_sampled: (m, runs) bool, whether each pair's slot is in each model's batch, or (runs,) for one pair;
                None for all.
            noise: standard normal, shaped like `theta`; None for a step without noise.
            clip: whether to clip the records' gradients.
        """
        # θ ← θ − η·(Σᵢ bᵢ·clip(gᵢ) + z or z′ + σC·N(0, 1)) / (q·n), where bᵢ says whether record i is in the batch and
        # clip(g) = g·min(1, C/(‖g‖ + 10⁻⁶)). One call computes the sums of all models. Records in the slot are the last
        # rows of the inputs. Their bᵢ also say which world a model is in, so that both worlds share the computation.
        # The sum, its noisy version and the average are one tensor, changed in place.
        spec = self.spec
        slot_rows = self.slot.rows(slot_sampled)
        if slot_rows is not None:
            sampled = torch.cat([self._everyone if sampled is None else sampled, slot_rows])
        norm = spec.max_grad_norm if clip else math.inf
        total = self._training.clipped_sum(self.theta, self.inputs, self.labels, sampled, norm, out=self._sum)
        self.slot.add_to(self.model.flat(total), slot_sampled)
        if noise is not None:
            total.add_(noise, alpha=spec.noise_multiplier * spec.max_grad_norm)
        self._average = total.div_(self.expected_batch_size)
        if self._adam is None:
            self.theta.add_(self._average, alpha=-spec.learning_rate)
        else:
            self.theta.grad = self._average
            self._adam.step()

    def advance(self, *, slot_sampled: Tensor | None = None, noise: bool = True, clip: bool = True) -> None:
        """One training step with fresh randomness: the batch, of records and the slot, as `spec` draws it, then noise.

        Args:
            slot_sampled: as in `step`, if it is drawn elsewhere, as it may be for Poisson batches.
            noise, clip: whether to add noise, and to clip the records' gradients.
        """
        sampled, slot_sampled = self._batch(slot_sampled)
        drawn = self._normals() if noise else None
        self.step(sampled=sampled, slot_sampled=slot_sampled, noise=drawn, clip=clip)

    def _normals(self) -> Tensor:
        if len(self._sources) == 1:
            return self._noise.normal_(generator=self.generator)
        return self._fill(self._noise, (self._of_one_source.normal_(generator=source) for source in self._sources))

    def _fill(self, whole: Tensor, parts: Iterable[Tensor]) -> Tensor:
        """Fill a tensor for all models with those for the models of each generator."""
        own = torch.split(self.model.flat(whole), self.runs // len(self._sources))
        for rows, part in zip(own, parts, strict=True):
            rows.copy_(self.model.flat(part))
        return whole

    def _batch(self, slot_sampled: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """Which shared records are in each model's next batch, and which slots; None where all are."""
        q, shared = self.spec.sample_rate, self.shared
        if q == 1:
            return None, slot_sampled
        sampling = self.spec.sampling
        if slot_sampled is not None and not sampling.own_coins:
            raise ValueError(
                f"spec must have sampling='poisson' where slots are drawn apart from the batches, got '{sampling}'"
            )
        rows = round(self.expected_batch_size / q)
        if sampling.own_coins:
            # A bank without pairs draws one coin that it does not use. Without it, its random numbers would change.
            rows = shared + (max(1, self.slot.present.shape[1]) if slot_sampled is None else 0)
        each = self.runs // len(self._sources)
        batches = (draw(rows, each, source) for draw, source in zip(self._draws, self._sources, strict=True))
        batch = torch.cat(list(batches), dim=1)
        return batch[:shared], batch[shared:] if slot_sampled is None else slot_sampled

    def train(self, *, noise: bool = True, clip: bool = True) -> Iterator[int]:
        """Train for all steps. After each step, yield the number of steps taken."""
        for step in range(1, self.spec.steps + 1):
            self.advance(noise=noise, clip=clip)
            yield step

    @property
    def noisy_average(self) -> Tensor:
        """(runs, parameters): the last step's noisy sum of clipped gradients, divided by the expected batch size.

        There is none before the first step.
        """
        return self.model.flat(self._average)

    @property
    def last_sum(self) -> Tensor:
        """The last step's noisy sum of clipped gradients, shaped like `theta`: a copy."""
        return self._average * self.expected_batch_size

    def scores(self) -> Tensor:
        """(runs,), or (runs, m) of many pairs: how much each model speaks for z, as `Slot.scores` defines it."""
        return self.slot.scores(self).squeeze(1)

    def accuracy(self, x: Tensor, labels: Tensor, runs: int) -> Tensor:
        """(runs,): for each of the first `runs` models, the share of the records whose label has the largest logit.

        Args:
            x: (k, *input_shape) records.
            labels: (k,).
            runs: how many models to measure, from the first on.
        """
        logits = self.model.logits(self.model.first(self.theta, runs), self.model.inputs(x))
        return (logits.argmax(dim=1) == labels[:, None]).float().mean(dim=0)


def block_size(model: Model) -> int:
    """The number of models in a block: 128, or the largest power of two whose parameters fit half a GiB, at least 1.

    Each block has its own stream of randomness. The size therefore depends on the model alone, never on the machine.
    """
    most = 2**27 // model.parameters
    return 1 << max(0, min(7, most.bit_length() - 1))


def blocks_together(model: Model, device: torch.device) -> int:
    """How many blocks train as one bank: one, but more of linear heads on a GPU, which are too small to keep it busy.

    Each block keeps its own stream of randomness. As products of another size round differently, the number depends on
    the model and the kind of device alone, never on the machine.
    """
    if device.type != "cuda" or not getattr(model, "one_product", False) or isinstance(model, Stochastic):
        return 1
    return max(1, min(16, 2**25 // (block_size(model) * model.parameters)))


def block_bytes(model: Model, task: Task, spec: DPSGD, device: torch.device, runs: int, *, spare: int = 1) -> int:
    """About the most memory, in bytes, that training `runs` models as one block takes.

    `spare` is the number of further copies of the parameters to plan for, which observers hold.
    """
    of_theta = spare + (6 if spec.optimizer == "adam" else 4)  # θ, θ₀, the sum, the noise; Adam's two averages
    model = model.prepared(device, spec.sample_rate)
    floats = model.working_floats(task.x_train.shape, runs, spec.sample_rate)
    if not spec.sampling.own_coins:
        floats += 8 * len(task.x_train) * runs  # keys, two orders and their copy, of 64 bits each
    return 4 * (of_theta * model.parameters * runs + floats)
