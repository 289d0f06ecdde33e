r"""Learning a score from twins, before any model that is judged is trained.

Twins start alike and have the same batches and noise. One has z in its slot, the other z′. The difference of their
parameters is the effect of the canary with almost all noise removed, so that a few pairs tell its mean.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from threading import Event
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm.auto import tqdm

from dpsub._core.random_streams import torch_seed
from dpsub.audits import cluster
from dpsub.audits.learned_scores import Learned, parameters
from dpsub.audits.plans import Plan, Shard, Stopped
from dpsub.trainers import Bank, assemble, block_bytes, block_size, devices

RIDGE = 1e-3  # added to the variance of each feature, which is 1: the two can be the same up to rounding

Numbers = NDArray[np.float64]


class Lesson(NamedTuple):
    """What one block of twins is trained for: the direction, or if that is given, the two features."""

    plan: Plan
    shards: list[Shard]
    directions: Numbers | None  # (repeats, steps, parameters)

    def __call__(self, number: int, device: torch.device, stop: Event) -> Numbers:
        shard = self.shards[number]
        first, second = twins(self.plan, shard.repeat, shard.blocks[0], shard.stop - shard.start, device)
        of_repeat = None if self.directions is None else torch.tensor(self.directions[shard.repeat], device=device)
        displacement, seen, observed = _by_displacement(self.plan), [], set(self.plan.observed)
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


def twins(plan: Plan, repeat: int, block: int, runs: int, device: torch.device) -> tuple[Bank, Bank]:
    """Two banks: the models of the first have z in their slots, their twins in the second z′.

    Their randomness comes from a stream of its own, which no judged model shares.
    """
    first, second = (
        assemble(
            plan.model,
            plan.task,
            plan.spec,
            bits=np.full(runs, bit, np.int8),
            generator=torch.Generator(device).manual_seed(torch_seed(plan.seeds[repeat], "learning", block)),
            canary=plan.canaries[repeat if len(plan.canaries) > 1 else 0],
            coordinates=plan.coordinates,
        )
        for bit in (0, 1)
    )
    return first, second


def learn(plan: Plan, device: str, client: Any, *, progress: bool) -> Learned:
    r"""Learn the score of a plan, for each repeat and each observed step.

    The direction is the mean difference of the first half's twins. The second half gives the linear discriminant of
    two features, the canary's score and the parameters along the direction: the mean difference between twins, and
    the covariance within each world. The score has a standard deviation of 1 within a world.

    Args:
        plan: the audit.
        device, client: as in `audit`; the client is connected.
        progress: show a progress bar.

    Raises:
        ValueError: if the memory does not hold it, or training diverges.
    """
    assert plan.learning is not None
    halves = (plan.learning.runs // 2, plan.learning.runs - plan.learning.runs // 2)
    steps, size = len(plan.observed), block_size(plan.model)
    directions = np.zeros((plan.repeats, steps, plan.model.parameters))
    found: dict[tuple[int, int], list[Numbers]] = {}
    total = 2 * plan.learning.runs * plan.repeats
    with tqdm(total=total, unit=" models", desc=f"{plan.title}: learning", disable=not progress) as bar:
        begin = 0
        for half, runs in enumerate(halves):
            shards = list(_blocks(plan.repeats, runs, size, begin))
            lesson = Lesson(plan, shards, directions if half else None)
            results: dict[int, Numbers] = {}
            with closing(_taught(lesson, device, client)) as taught:
                for shard, numbers in taught:
                    results[shard.number] = numbers
                    bar.update(2 * (shard.stop - shard.start))
            for shard in shards:  # in order: sums round
                if half:
                    found.setdefault((half, shard.repeat), []).append(results[shard.number])
                else:
                    directions[shard.repeat] += results[shard.number] / runs
            begin += -(-runs // size)
    coefficients = np.empty((plan.repeats, steps, 2))
    for repeat in range(plan.repeats):
        features = np.concatenate(found[1, repeat], axis=2)
        coefficients[repeat] = [discriminant(of_step) for of_step in features]
    return Learned(coefficients[..., 0].astype(np.float32), (coefficients[..., 1:] * directions).astype(np.float32))


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


def _taught(lesson: Lesson, device: str, client: Any) -> Generator[tuple[Shard, Numbers]]:
    """The numbers of each block, here or on a cluster."""
    if client is not None:
        yield from cluster.results(client, lesson, _on_worker, lesson.shards, device)
        return
    where = devices.device(device)
    at_once = _workers(lesson, where)

    def teach(shard: Shard, stop: Event) -> Numbers:
        return lesson(shard.number, where, stop)

    with (
        devices.matmul_precision(lesson.plan.matmul_precision),
        closing(devices.side_by_side(teach, lesson.shards, at_once)) as results,
    ):
        yield from results


def _on_worker(lesson: Lesson, number: int, device: str) -> Numbers:
    with cluster.own_turn(lesson.plan, device) as where:
        _workers(lesson, where)
        cluster.check_limit(_block_bytes(lesson, where), where)
        return lesson(number, where, Event())


def _workers(lesson: Lesson, device: torch.device) -> int:
    """How many blocks train side by side.

    Raises:
        ValueError: if the memory does not hold one block and what is learned.
    """
    plan, each, free = lesson.plan, _block_bytes(lesson, device), devices.free_bytes(device)
    learned = 2 * 8 * plan.repeats * len(plan.observed) * plan.model.parameters
    if each + learned > free:
        raise ValueError(
            f"score='learned' must fit the memory: twins, and the directions of {len(plan.observed)} observed steps "
            f"in {plan.repeats} repeats, take about {(each + learned) / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB are "
            f"free on {device}: observe fewer steps (observe_every), use fewer repeats, or a smaller model"
        )
    return 1 if device.type == "cuda" else min(torch.get_num_threads(), (free - learned) // each)


def _block_bytes(lesson: Lesson, device: torch.device) -> int:
    """About the most memory, in bytes, that a block of twins takes with what it returns."""
    plan, most = lesson.plan, max(shard.stop - shard.start for shard in lesson.shards)
    banks = 2 * block_bytes(plan.model, plan.task, plan.spec, device, most, spare=2)
    return banks + 2 * 8 * len(plan.observed) * plan.model.parameters


def _blocks(repeats: int, runs: int, size: int, begin: int) -> Iterator[Shard]:
    """The blocks of pairs of each repeat, which have numbers from `begin` on."""
    number = 0
    for repeat in range(repeats):
        for i, start in enumerate(range(0, runs, size)):
            yield Shard(number, repeat, range(begin + i, begin + i + 1), start, min(start + size, runs))
            number += 1


def _by_displacement(plan: Plan) -> bool:
    return plan.canaries[0].score == "displacement"


def _difference(first: Bank, second: Bank) -> Tensor:
    """(parameters,): the sum of the pairs' differences."""
    return first.model.flat(first.theta - second.theta).double().sum(dim=0)


def _features(bank: Bank, direction: Tensor, displacement: bool) -> Tensor:
    """(runs, 2): the canary's score, and the parameters along the direction."""
    return torch.stack([bank.scores(), parameters(bank, displacement) @ direction], dim=1)
