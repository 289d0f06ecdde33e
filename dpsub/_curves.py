"""From a question about DP-SGD to an interval that holds the answer: which engine, how fine, and when it is enough."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
from scipy.optimize import brentq
from scipy.special import log_ndtr
from scipy.stats import binom

from dpsub import _grid, _pld, _prv
from dpsub._gaussian import GaussianCurve, gdp_epsilon
from dpsub._pairs import Array
from dpsub._steps import REACH, deviations
from dpsub._tradeoff import tradeoff
from dpsub._training import Training, distance

NAMES = {"auto": "grid", "prv": "prv-accountant", "pld": "dp-accounting"}
TOLERANCE = 1e-3  # half the width of an interval, absolute or relative to its lower end, whichever is larger
MOST_POINTS = 2**20  # of a grid: below 2 GiB and 10 s

Interval = tuple[Array, Array]  # the lower and the upper ends of all that is asked


class Curve(Protocol):
    """δ(ε) of one training, known up to an interval."""

    def epsilon(self, delta: float) -> tuple[float, float]: ...

    def delta(self, epsilon: float) -> tuple[float, float]: ...


class Testable(Curve, Protocol):
    """One that knows the trade-off function too: all of `engine="auto"` do."""

    def tradeoff(self, fpr: Array) -> Interval: ...


class Answers(NamedTuple):
    """One interval for each curve, and what it comes from."""

    intervals: list[Interval]
    bound: str


def answers(
    training: Training,
    engine: str,
    ask: Callable[[Curve], Interval],
    *,
    excess: Callable[[Array, Array], float],
    eps_error: float,
    delta: float | None,
) -> Answers:
    """Ask every curve of the training, at growing precision and cost, until `excess` is at most 1 for all of them.

    Args:
        training: what the curves are of.
        engine: one of `NAMES`.
        ask: what to ask of a curve; every curve's interval has to hold the answer.
        excess: how many times too wide an interval is, given its ends.
        eps_error: what `engine="prv"` is made for.
        delta: the smallest δ that matters, or None for any.
    """
    if engine == "auto" and all(q == 1 for _, q in training.mechanisms):
        mus = (
            math.sqrt(sum(t / sigma**2 for (sigma, _), t in zip(training.mechanisms, row, strict=True)))
            for row in training.counts
        )
        return Answers([ask(GaussianCurve(distance(training.adjacency) * mu)) for mu in mus], "closed form")

    coarsest, make, finer = _precision(training, engine, eps_error, delta)
    found: list[Interval] = [(np.zeros(1), np.full(1, np.inf))] * len(training.counts)
    level: float | None = coarsest
    while level is not None:
        found = [_narrowed(*both) for both in zip(found, map(ask, make(level)), strict=True)]
        worst = max(excess(*interval) for interval in found)
        if worst <= 1:
            return Answers(found, NAMES[engine])
        level = finer(level, worst)
    if engine != "auto":
        return Answers(found, NAMES[engine])
    revealed = (RevealedCurve(distance(training.adjacency), *training.harshest, sum(row)) for row in training.counts)
    narrowed = [_narrowed(*both) for both in zip(found, map(ask, revealed), strict=True)]
    helped = any(np.any(new < old) for (_, new), (_, old) in zip(narrowed, found, strict=True))
    return Answers(narrowed, "revealed batches" if helped else "coarse grid")


def epsilons(training: Training, engine: str, delta: float, eps_error: float) -> Answers:
    """ε at one δ, to `eps_error`, absolute or relative."""
    return answers(
        training,
        engine,
        lambda curve: as_arrays([curve.epsilon(delta)]),
        excess=lambda low, high: float(np.max((high - low) / 2 / np.maximum(eps_error, eps_error * low))),
        eps_error=eps_error,
        delta=delta,
    )


def as_arrays(intervals: Iterable[tuple[float, float]]) -> Interval:
    lower, upper = (np.array(ends) for ends in zip(*intervals, strict=True))
    return lower, upper


def _narrowed(one: Interval, other: Interval) -> Interval:
    """Both hold the truth, so what they have in common does."""
    lower, upper = np.maximum(one[0], other[0]), np.minimum(one[1], other[1])
    if np.any(lower > upper * (1 + 1e-9) + 1e-9):
        raise ArithmeticError("two bounds contradict each other, so one is wrong: please report what was asked")
    return lower, upper


def _precision(
    training: Training, engine: str, eps_error: float, delta: float | None
) -> tuple[float, Callable[[float], Sequence[Curve]], Callable[[float, float], float | None]]:
    """The coarsest level of precision; the curves at a level; and the next, given how far off the last one was."""
    adjacency, mechanisms, counts = training.adjacency, training.mechanisms, training.counts
    if engine == "prv":
        target = 0.8 * eps_error
        return (
            max(0.1, target),
            lambda error: _prv.curves(adjacency, mechanisms, counts, error, (delta or 1e-5) / 1000),
            lambda error, worst: None if error == target else target,
        )
    steps = sum(training.most)
    reach = REACH if delta is None or engine == "pld" else deviations(steps, delta)
    scale = _grid.scale(adjacency, mechanisms, training.most)
    widest = _grid.widest(adjacency, mechanisms, reach)
    finest = (widest + 20 * math.sqrt(steps) * scale) / MOST_POINTS

    def make(mesh: float) -> Sequence[Curve]:
        if engine == "pld":
            return _pld.curves(adjacency, mechanisms, counts, mesh)
        return _grid.curves(adjacency, mechanisms, counts, max(_aligned(mesh, training), finest), reach)

    def finer(mesh: float, worst: float) -> float | None:
        if mesh <= finest or (math.isinf(worst) and widest / mesh > 2**15):  # a finer grid would reach no further
            return None
        # Errors fall with the square of the mesh.
        return max(mesh / min(max(1.2 * math.sqrt(worst), 2.0), 8.0), finest)

    return max(min(max(scale / 10, widest / 8192), widest / 1024), finest), make, finer


def _aligned(mesh: float, training: Training) -> float:
    """At least one multiple inside of -log(1 - q), where the loss ends and, for a small q, nearly all of it lies.

    Bounds are tightest with the outermost multiple three tenths of a mesh from that end.
    """
    if training.adjacency == "substitute":
        return mesh
    phases = zip(training.mechanisms, training.most, strict=True)
    ends = [(-math.log1p(-q), count) for (_, q), count in phases if q < 1]
    most = max(end * count for end, count in ends)
    end = min(end for end, count in ends if end * count > 0.01 * most)  # the other phases hardly matter
    return end / (max(math.floor(end / mesh), 1) + 0.3)


@dataclass(frozen=True)
class RevealedCurve:
    """δ(ε) against an adversary who is also told which batches the record was in: an upper bound in closed form.

    Given the number of these batches, which has a binomial law, the training is one Gaussian mechanism.
    """

    distance: float
    noise_multiplier: float
    sample_rate: float
    steps: int

    def epsilon(self, delta: float) -> tuple[float, float]:
        if self._delta(0.0) <= delta:
            return 0.0, 0.0
        enough = gdp_epsilon(self.distance * math.sqrt(self.steps) / self.noise_multiplier, delta)
        while self._delta(enough) > delta:
            enough = 1.001 * enough + 1e-6
        root = float(brentq(lambda epsilon: self._delta(epsilon) - delta, 0.0, enough, xtol=1e-9))
        return 0.0, min(root + 2e-9, enough)

    def delta(self, epsilon: float) -> tuple[float, float]:
        return 0.0, self._delta(epsilon)

    def tradeoff(self, fpr: Array) -> tuple[Array, Array]:
        epsilon = np.linspace(0, self.epsilon(1e-12)[1], 1000)
        return tradeoff(fpr, epsilon, np.array([self._delta(e) for e in epsilon])), np.ones_like(fpr)

    def _delta(self, epsilon: float) -> float:
        counts, weights, rest = self._batches
        mu = self.distance * np.sqrt(counts) / self.noise_multiplier
        log_p, log_q = log_ndtr(mu / 2 - epsilon / mu), log_ndtr(-mu / 2 - epsilon / mu)
        return float(np.exp(weights + log_p) @ -np.expm1(np.minimum(epsilon + log_q - log_p, 0.0))) + rest

    @cached_property
    def _batches(self) -> tuple[Array, Array, float]:
        """How many they can be, from 1; the log-probabilities; and the probability of what is not listed."""
        law = binom(self.steps, self.sample_rate)
        spread = 40 * law.std() + 1000
        least, most = max(math.floor(law.mean() - spread), 0), min(math.ceil(law.mean() + spread), self.steps)
        counts = np.arange(max(least, 1), most + 1.0)
        return counts, law.logpmf(counts), float(law.cdf(least - 1) + law.sf(most))
