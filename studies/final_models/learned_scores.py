r"""Scores that are learned from twins: the canary's score, and the parameters along what the canary moves.

Twins start alike and have the same batches and noise. One has z in its slot, the other z′. The difference of their
parameters is the effect of the canary with almost all noise removed, so that a few pairs tell its mean. They are
trained apart from the models that are judged.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from threading import Event

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpsub import DPSGD, CanaryPair
from dpsub._core import checks
from dpsub._core.random_streams import torch_seed
from dpsub.audits import Observer, Watch
from dpsub.data import Task
from dpsub.models import Model
from dpsub.trainers import Bank, assemble, block_size, devices

LEAST_RUNS = 32  # pairs of twins: half for the direction, half for two coefficients
RIDGE = 1e-3  # added to the variance of each feature, which is 1: the two can be the same up to rounding

Numbers = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Learned:
    """What was learned: at each observed step, score = coefficient · canary's score + parameters · direction.

    Attributes:
        coefficients: (steps,) float32, of the canary's score.
        directions: (steps, parameters) float32.
        displacement: whether the parameters are taken less their start, which canaries scored by displacement know.
    """

    coefficients: NDArray[np.float32]
    directions: NDArray[np.float32]
    displacement: bool


class LearnedScore(Observer):
    """A learned score of each model, for `dpsub.audit(metrics=[LearnedScore(learned)])`. It speaks for z if high."""

    name = "learned"
    long_name = "learned score, higher speaks for z"
    all_coordinates = True
    copies = 2

    def __init__(self, learned: Learned) -> None:
        self.learned = learned

    def watch(self, bank: Bank, task: Task, runs: int) -> Watch:
        return _WatchLearned(bank, self.learned)


class _WatchLearned(Watch):
    def __init__(self, bank: Bank, learned: Learned) -> None:
        self._bank, self._learned, self._seen = bank, learned, 0

    def after_step(self) -> Tensor:
        i, self._seen = self._seen, self._seen + 1
        direction = torch.tensor(self._learned.directions[i], device=self._bank.device)
        along = parameters(self._bank, self._learned.displacement) @ direction
        scores: Tensor = float(self._learned.coefficients[i]) * self._bank.scores() + along
        return scores


def parameters(bank: Bank, displacement: bool) -> Tensor:
    """(runs, parameters): what the learned score looks at."""
    return bank.model.flat(bank.theta - bank.theta_0 if displacement else bank.theta)


@checks.checked("spec", "seed", runs=partial(checks.whole, at_least=LEAST_RUNS), observe_every=checks.whole)
def learn(
    task: Task,
    model: Model,
    canary: CanaryPair,
    spec: DPSGD,
    *,
    runs: int,
    observe_every: int = 1,
    seed: int = 0,
    device: str = "auto",
) -> Learned:
    r"""Learn the score of an audit, for each observed step.

    The direction is the mean difference of the first half's twins. The second half gives the linear discriminant of
    two features, the canary's score and the parameters along the direction: the mean difference between twins, and
    the covariance within each world. The score has a standard deviation of 1 within a world.

    Args:
        task, model, canary, spec, observe_every, seed, device: as in `dpsub.audit`, of the audit that is judged. Twins
            have a stream of randomness of their own, which no judged model shares.
        runs: how many pairs of twins, ≥ 32.

    Raises:
        ValueError: if training diverges.
    """
    where = devices.device(device)
    observed = sorted({*range(observe_every, spec.steps + 1, observe_every), spec.steps})
    displacement, size = canary.score == "displacement", block_size(model)

    def train(block: tuple[int, int], stop: Event, directions: Numbers | None) -> Numbers:
        """Of a block of pairs, at each observed step: the sum of differences, or the features of both worlds."""
        number, count = block
        first, second = (
            assemble(
                model,
                task,
                spec,
                bits=np.full(count, bit, np.int8),
                generator=torch.Generator(where).manual_seed(torch_seed(seed, "learning", number)),
                canary=canary,
                coordinates="all",
            )
            for bit in (0, 1)
        )
        seen: list[Tensor] = []
        for step in range(1, spec.steps + 1):
            first.advance()
            second.advance()
            if step not in observed:
                continue
            if directions is None:
                seen.append(model.flat(first.theta - second.theta).double().sum(dim=0))
            else:
                direction = torch.tensor(directions[len(seen)], device=where).float()
                seen.append(torch.stack([_features(bank, direction, displacement) for bank in (first, second)]))
        found: Numbers = torch.stack(seen).cpu().double().numpy()
        if not np.isfinite(found).all():
            raise ValueError("spec must be such that training does not diverge: models to learn from are not finite")
        return found

    def trained(pairs: int, begin: int, directions: Numbers | None) -> list[Numbers]:
        blocks = list(_blocks(pairs, size, begin))
        at_once = 1 if where.type == "cuda" else torch.get_num_threads()
        with devices.matmul_precision("highest"):
            work = partial(train, directions=directions)
            found = dict(devices.side_by_side(work, blocks, at_once))
        return [found[block] for block in blocks]  # in order: sums round

    half = runs // 2
    directions = np.zeros((len(observed), model.parameters))
    for differences in trained(half, 0, None):
        directions += differences / half
    features = np.concatenate(trained(runs - half, -(-half // size), directions), axis=2)
    coefficients = np.array([discriminant(of_step) for of_step in features])
    along = (coefficients[:, 1:] * directions).astype(np.float32)
    return Learned(coefficients[:, 0].astype(np.float32), along, displacement)


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


def _blocks(pairs: int, size: int, begin: int) -> Iterator[tuple[int, int]]:
    """The blocks of pairs, which have numbers from `begin` on, and how many pairs each holds."""
    for i, start in enumerate(range(0, pairs, size)):
        yield begin + i, min(size, pairs - start)


def _features(bank: Bank, direction: Tensor, displacement: bool) -> Tensor:
    """(runs, 2): the canary's score, and the parameters along the direction."""
    return torch.stack([bank.scores(), parameters(bank, displacement) @ direction], dim=1)
