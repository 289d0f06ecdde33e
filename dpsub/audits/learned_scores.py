r"""Scores that are learned from twins: the canary's score, and the parameters along what the canary moves.

Twins start alike and have the same batches and noise. One has z in its slot, the other z′. The difference of their
parameters is the effect of the canary with almost all noise removed, so that a few pairs tell its mean. They are
trained before any model that is judged.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from hashlib import sha256
from threading import Event
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm.auto import tqdm

from dpsub._core.datasets import LONG_NAMES
from dpsub._core.random_streams import torch_seed
from dpsub.audits.executors import Executor
from dpsub.audits.observers import Observer, Watch
from dpsub.audits.plans import Arrays, Computation, Shard, Stopped, Tick
from dpsub.data import Task
from dpsub.trainers import Bank, assemble, block_size, devices
from dpsub.trainers.bank import block_bytes

if TYPE_CHECKING:
    from dpsub.audits.many_runs import ManyRuns

SCORES = ("canary", "learned")
LEAST_RUNS = 32  # pairs of twins: half for the direction, half for two coefficients
RIDGE = 1e-3  # added to the variance of each feature, which is 1: the two can be the same up to rounding
COEFFICIENTS, DIRECTIONS = "learned/coefficients", "learned/directions"  # in a store

Numbers = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Learned:
    """What was learned: at each observed step, score = coefficient · canary's score + parameters · direction.

    Attributes:
        coefficients: (repeats, steps) float32, of the canary's score.
        directions: (repeats, steps, parameters) float32.
    """

    coefficients: NDArray[np.float32]
    directions: NDArray[np.float32]

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that change with any number."""
        digest = sha256(repr(self.directions.shape).encode())
        for array in (self.coefficients, self.directions):
            digest.update(array.astype("<f4").tobytes())
        return digest.hexdigest()[:16]


@dataclass(frozen=True, eq=False)
class Learning:
    """That an audit's score is learned.

    Attributes:
        runs: how many pairs of twins it is learned from, in each repeat.
        learned: what was learned, once it is there.
    """

    runs: int
    learned: Learned | None = field(default=None, repr=False)

    @property
    def attributes(self) -> dict[str, Any]:
        known = {} if self.learned is None else {"learned_fingerprint": self.learned.fingerprint}
        return {"score": SCORES[1], "learning_runs": self.runs, **known}

    @property
    def arrays(self) -> Arrays:
        """What was learned, as a store keeps it."""
        if self.learned is None:
            return {}
        return {COEFFICIENTS: self.learned.coefficients, DIRECTIONS: self.learned.directions}

    def resumed(self, arrays: Arrays) -> Learning:
        """With what a store holds."""
        if COEFFICIENTS not in arrays:
            return self
        return replace(self, learned=Learned(arrays[COEFFICIENTS], arrays[DIRECTIONS]))


class LearnedScore(Observer):
    """A learned score of one repeat's models. It speaks for z if it is high."""

    name = "score"
    long_name = LONG_NAMES["score"]
    all_coordinates = True
    copies = 2

    def __init__(self, learned: Learned, repeat: int, displacement: bool) -> None:
        self._coefficients, self._directions = learned.coefficients[repeat], learned.directions[repeat]
        self._displacement = displacement

    def watch(self, bank: Bank, task: Task, runs: int) -> Watch:
        return _WatchLearned(bank, self._coefficients, self._directions, self._displacement)


class _WatchLearned(Watch):
    def __init__(
        self, bank: Bank, coefficients: NDArray[np.float32], directions: NDArray[np.float32], displacement: bool
    ) -> None:
        self._bank, self._displacement, self._seen = bank, displacement, 0
        self._coefficients, self._directions = coefficients.tolist(), directions

    def after_step(self) -> Tensor:
        i, self._seen = self._seen, self._seen + 1
        direction = torch.tensor(self._directions[i], device=self._bank.device)
        along = parameters(self._bank, self._displacement) @ direction
        scores: Tensor = self._coefficients[i] * self._bank.scores() + along
        return scores


def parameters(bank: Bank, displacement: bool) -> Tensor:
    """(runs, parameters): what the learned score looks at.

    For canaries scored by displacement that is θ − θ₀, since the canary's own score knows the start, and else θ.
    """
    return bank.model.flat(bank.theta - bank.theta_0 if displacement else bank.theta)


def learned(plan: ManyRuns, executor: Executor, *, progress: bool) -> Learned:
    r"""Learn the score of a plan, for each repeat and each observed step.

    The direction is the mean difference of the first half's twins. The second half gives the linear discriminant of
    two features, the canary's score and the parameters along the direction: the mean difference between twins, and
    the covariance within each world. The score has a standard deviation of 1 within a world.

    Args:
        plan: the audit.
        executor: trains the twins.
        progress: show a progress bar.

    Raises:
        ValueError: if the memory does not hold it, or training diverges.
    """
    assert plan.learning is not None
    halves = (plan.learning.runs // 2, plan.learning.runs - plan.learning.runs // 2)
    directions = np.zeros((plan.repeats, len(plan.observed), plan.model.parameters))
    found: dict[int, list[Numbers]] = {}
    total = 2 * plan.learning.runs * plan.repeats
    with tqdm(total=total, unit=" models", desc=f"{plan.title}: learning", disable=not progress) as bar:
        begin = 0
        for half, runs in enumerate(halves):
            shards = list(_blocks(plan.repeats, runs, block_size(plan.model), begin))
            results: dict[int, Numbers] = {}
            twins = Twins(plan, shards, directions if half else None)
            with closing(executor.each(twins, shards, lambda units: None)) as trained:
                for shard, numbers, _ in trained:
                    results[shard.number] = numbers
                    bar.update(2 * shard.runs)
            for shard in shards:  # in order: sums round
                if half:
                    found.setdefault(shard.repeat, []).append(results[shard.number])
                else:
                    directions[shard.repeat] += results[shard.number] / runs
            begin += -(-runs // block_size(plan.model))
    coefficients = np.empty((plan.repeats, len(plan.observed), 2))
    for repeat in range(plan.repeats):
        features = np.concatenate(found[repeat], axis=2)
        coefficients[repeat] = [discriminant(of_step) for of_step in features]
    return Learned(coefficients[..., 0].astype(np.float32), (coefficients[..., 1:] * directions).astype(np.float32))


@dataclass(frozen=True, eq=False)
class Twins(Computation):
    """Pairs of twins, block by block, and what they are trained for.

    Attributes:
        plan: the audit whose score is learned.
        shards: the blocks.
        directions: (repeats, steps, parameters), for the two features; None to find the directions.
    """

    plan: ManyRuns
    shards: list[Shard]
    directions: Numbers | None

    @property
    def matmul_precision(self) -> str:  # type: ignore[override]
        return self.plan.matmul_precision

    def run(self, shard: Shard, device: torch.device, stop: Event, tick: Tick) -> Numbers:
        first, second = self._banks(shard, device)
        of_repeat = None if self.directions is None else torch.tensor(self.directions[shard.repeat], device=device)
        displacement, seen, observed = self.plan.canaries[0].score == "displacement", [], set(self.plan.observed)
        for step in range(1, self.plan.spec.steps + 1):
            if stop.is_set():
                raise Stopped
            first.advance()
            second.advance()
            if step not in observed:
                continue
            if of_repeat is None:
                seen.append(_difference(first, second))
            else:
                direction = of_repeat[len(seen)].float()
                seen.append(torch.stack([_features(bank, direction, displacement) for bank in (first, second)]))
        found = torch.stack(seen).cpu().double().numpy()
        if not np.isfinite(found).all():
            raise ValueError("spec must be such that training does not diverge: models to learn from are not finite")
        return found

    def _banks(self, shard: Shard, device: torch.device) -> list[Bank]:
        """The models with z in their slots, and their twins with z′.

        Their randomness comes from a stream of its own, which no judged model shares.
        """
        plan, [block] = self.plan, shard.blocks
        return [
            assemble(
                plan.model,
                plan.task,
                plan.spec,
                bits=np.full(shard.runs, bit, np.int8),
                generator=torch.Generator(device).manual_seed(torch_seed(plan.seeds[shard.repeat], "learning", block)),
                canary=plan.canary(shard.repeat),
                coordinates=plan.coordinates,
            )
            for bit in (0, 1)
        ]

    def bytes_at_once(self, device: torch.device) -> int:
        """About the most memory, in bytes, that a block of twins takes with what it returns."""
        plan, most = self.plan, max(shard.runs for shard in self.shards)
        banks = 2 * block_bytes(plan.model, plan.task, plan.spec, device, most, spare=2)
        return banks + 2 * 8 * len(plan.observed) * plan.model.parameters

    def side_by_side(self, device: torch.device) -> int:
        plan, each, free = self.plan, self.bytes_at_once(device), devices.free_bytes(device)
        learned = 2 * 8 * plan.repeats * len(plan.observed) * plan.model.parameters
        if each + learned > free:
            raise ValueError(
                f"score='learned' must fit the memory: twins, and the directions of {len(plan.observed)} observed "
                f"steps in {plan.repeats} repeats, take about {(each + learned) / 2**30:.1f} GiB, and "
                f"{free / 2**30:.1f} GiB are free on {device}: observe fewer steps (observe_every), use fewer repeats, "
                "or a smaller model"
            )
        return 1 if device.type == "cuda" else min(torch.get_num_threads(), (free - learned) // each)


def discriminant(features: Numbers) -> Numbers:
    """(k,): the linear discriminant of twins, scaled to a standard deviation of 1 within a world.

    Args:
        features: (2, runs, k), of models with z and of their twins with z′. Twins share noise, so that the covariance
            is estimated in each world by itself.
    """
    apart = (features[0] - features[1]).mean(axis=0)
    covariance = np.mean([np.cov(world, rowvar=False) for world in features], axis=0)
    spread = np.sqrt(np.diag(covariance))
    there = spread > 0
    found = np.zeros(len(apart))
    if there.any():
        unit = spread[there]
        alike = covariance[np.ix_(there, there)] / np.outer(unit, unit)
        found[there] = np.linalg.solve(alike + RIDGE * np.eye(len(unit)), apart[there] / unit) / unit
    variance = float(found @ covariance @ found)
    if not variance > 0:  # nothing tells the worlds apart: the canary's score as it is
        return np.array([1.0, *np.zeros(len(apart) - 1)])
    scaled: Numbers = found / np.sqrt(variance)
    return scaled


def _blocks(repeats: int, runs: int, size: int, begin: int) -> Iterator[Shard]:
    """The blocks of pairs of each repeat, which have numbers from `begin` on."""
    number = 0
    for repeat in range(repeats):
        for i, start in enumerate(range(0, runs, size)):
            yield Shard(number, repeat, range(begin + i, begin + i + 1), start, min(start + size, runs))
            number += 1


def _difference(first: Bank, second: Bank) -> Tensor:
    """(parameters,): the sum of the pairs' differences."""
    return first.model.flat(first.theta - second.theta).double().sum(dim=0)


def _features(bank: Bank, direction: Tensor, displacement: bool) -> Tensor:
    """(runs, 2): the canary's score, and the parameters along the direction."""
    return torch.stack([bank.scores(), parameters(bank, displacement) @ direction], dim=1)
