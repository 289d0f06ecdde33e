r"""Scores that are learned from twins: the canary's score, and the parameters along what the canary moves.

Twins start alike and have the same batches and noise. One has z in its slot, the other z′. The difference of their
parameters is the effect of the canary with almost all noise removed, so that a few pairs tell its mean. They are
trained apart from the models that are judged.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from dpsub._core.random_streams import torch_seed
from dpsub.audits import Observer, Watch
from dpsub.trainers import assemble, block_size, devices

RIDGE = 1e-3  # added to the variance of each feature, which is 1: the two can be the same up to rounding


@dataclass(frozen=True, eq=False)
class Learned:
    """At each observed step, score = coefficient · canary's score + parameters · direction."""

    coefficients: np.ndarray  # (steps,) float32
    directions: np.ndarray  # (steps, parameters) float32
    displacement: bool  # the parameters are taken less their start, which canaries scored by displacement know


class LearnedScore(Observer):
    """A learned score of each model, for `dpsub.audit(metrics=[LearnedScore(learned)])`. It speaks for z if high."""

    name = "learned"
    long_name = "learned score, higher speaks for z"
    all_coordinates = True
    copies = 2

    def __init__(self, learned):
        self.learned = learned

    def watch(self, bank, task, runs):
        return _WatchLearned(bank, self.learned)


class _WatchLearned(Watch):
    def __init__(self, bank, learned):
        self._bank, self._learned, self._seen = bank, learned, 0

    def after_step(self):
        i, self._seen = self._seen, self._seen + 1
        direction = torch.tensor(self._learned.directions[i], device=self._bank.device)
        along = _parameters(self._bank, self._learned.displacement) @ direction
        return float(self._learned.coefficients[i]) * self._bank.scores() + along


def _parameters(bank, displacement):
    """(runs, parameters): what the learned score looks at."""
    return bank.model.flat(bank.theta - bank.theta_0 if displacement else bank.theta)


def learn(task, model, canary, spec, *, runs, observe_every=1, seed=0, device="auto"):
    """Learn the score of an audit, for each observed step, from so many pairs of twins.

    The direction is the mean difference of the first half's twins. The second half gives the linear discriminant of
    two features, the canary's score and the parameters along the direction. All other arguments are those of
    `dpsub.audit`, of the audit that is judged; twins have a stream of randomness of their own.
    """
    where = devices.device(device)
    observed = sorted({*range(observe_every, spec.steps + 1, observe_every), spec.steps})
    displacement, size = canary.score == "displacement", block_size(model)

    def train(block, stop, directions):
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
        seen = []
        for step in range(1, spec.steps + 1):
            first.advance()
            second.advance()
            if step not in observed:
                continue
            if directions is None:
                seen.append(model.flat(first.theta - second.theta).double().sum(dim=0))
            else:
                direction = torch.tensor(directions[len(seen)], device=where).float()
                features = [(bank.scores(), _parameters(bank, displacement) @ direction) for bank in (first, second)]
                seen.append(torch.stack([torch.stack(of_world, dim=1) for of_world in features]))
        found = torch.stack(seen).cpu().double().numpy()
        if not np.isfinite(found).all():
            raise ValueError("spec must be such that training does not diverge: models to learn from are not finite")
        return found

    def trained(pairs, begin, directions):
        blocks = [(begin + i, min(size, pairs - start)) for i, start in enumerate(range(0, pairs, size))]
        at_once = 1 if where.type == "cuda" else torch.get_num_threads()
        with devices.matmul_precision("highest"):
            found = dict(devices.side_by_side(partial(train, directions=directions), blocks, at_once))
        return [found[block] for block in blocks]  # in order: sums round

    half = runs // 2
    directions = np.zeros((len(observed), model.parameters))
    for differences in trained(half, 0, None):
        directions += differences / half
    features = np.concatenate(trained(runs - half, -(-half // size), directions), axis=2)
    coefficients = np.array([discriminant(of_step) for of_step in features])
    along = (coefficients[:, 1:] * directions).astype(np.float32)
    return Learned(coefficients[:, 0].astype(np.float32), along, displacement)


def discriminant(features):
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
    return found / np.sqrt(variance)
