"""Certified intervals for questions about DP-SGD: the choice of engine, its precision, and when to stop."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from dpsub.accounting import grid_engine
from dpsub.accounting.discretisation import REACH, deviations
from dpsub.accounting.dominating_pairs import Array
from dpsub.accounting.gaussian import GaussianCurve
from dpsub.accounting.grid_engine import RevealedCurve
from dpsub.accounting.phases import Training, distance

NAMES = {"auto": "grid", "prv": "prv-accountant"}
TOLERANCE = 1e-3  # half the width of an interval, absolute or relative to its lower end, whichever is larger
MOST_POINTS = 2**20  # of a grid: less than 2 GiB and 10 s
ROUGH_POINTS = 2**16  # of a grid for `rough_epsilon`

Interval = tuple[Array, Array]  # the lower and the upper ends, one for each value asked for


class Curve(Protocol):
    """δ(ε) of one training, known up to an interval."""

    def epsilon(self, delta: float) -> tuple[float, float]: ...

    def delta(self, epsilon: float) -> tuple[float, float]: ...


class Testable(Curve, Protocol):
    """A curve that also knows many δ at once, to an absolute error, and the trade-off function.

    All curves of `engine="auto"` do.
    """

    def deltas(self, epsilons: Array) -> Interval: ...

    def tradeoff(self, fpr: Array) -> Interval: ...


class Answers(NamedTuple):
    """One interval for each curve, and their source: the `bound` of an `EpsilonInterval`."""

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
        training: the training; it has one curve for each row of its counts.
        engine: one of `NAMES`.
        ask: the question, which a curve answers with an interval that contains the answer.
        excess: how many times too wide an interval is, given its ends.
        eps_error: the error of ε that `engine="prv"` is discretised for.
        delta: the smallest δ that matters, or None for any.
    """
    if engine != "auto" and training.attained:
        raise ValueError(
            f"engine must be 'auto' with sampling='without_replacement', got {engine!r}: others know Poisson only"
        )
    if engine == "auto" and all(q == 1 for _, q in training.mechanisms):
        mus = (
            math.sqrt(sum(t / sigma**2 for (sigma, _), t in zip(training.mechanisms, row, strict=True)))
            for row in training.counts
        )
        return Answers([ask(GaussianCurve(distance(training.worlds) * mu)) for mu in mus], "closed form")

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
    revealed = (RevealedCurve(distance(training.worlds), *training.harshest, sum(row)) for row in training.counts)
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


def rough_epsilon(training: Training, delta: float) -> float:
    """An upper bound on the ε of one curve, from a grid of a few thousand points: cheap, but it can be loose."""
    reach = deviations(sum(training.most), delta)
    scale, widest, span = _extent(training, reach)
    mesh = max(min(scale / 10, widest / 1024), widest / 8192, span / ROUGH_POINTS)
    [curve] = grid_engine.curves(training.worlds, training.mechanisms, training.counts, mesh, reach)
    revealed = RevealedCurve(distance(training.worlds), *training.harshest, sum(training.most))
    return min(curve.epsilon(delta)[1], revealed.epsilon(delta)[1])


def as_arrays(intervals: Iterable[tuple[float, float]]) -> Interval:
    lower, upper = (np.array(ends) for ends in zip(*intervals, strict=True))
    return lower, upper


def _narrowed(one: Interval, other: Interval) -> Interval:
    """The intersection: both intervals contain the truth."""
    lower, upper = np.maximum(one[0], other[0]), np.minimum(one[1], other[1])
    if np.any(lower > upper * (1 + 1e-9) + 1e-9):
        raise ArithmeticError("two bounds contradict each other, so one is wrong: please report the arguments")
    return lower, upper


def _precision(
    training: Training, engine: str, eps_error: float, delta: float | None
) -> tuple[float, Callable[[float], Sequence[Curve]], Callable[[float, float], float | None]]:
    """The coarsest level of precision, a function from a level to its curves, and a function to the next level.

    The last takes a level and how many times too wide its intervals were. It returns None if no other level would help.
    """
    worlds, mechanisms, counts = training.worlds, training.mechanisms, training.counts
    if engine == "prv":
        from dpsub.accounting import prv_engine  # its import takes as long as all of dpsub.accounting

        target = 0.8 * eps_error
        return (
            max(0.1, target),
            lambda error: prv_engine.curves(worlds, mechanisms, counts, error, (delta or 1e-5) / 1000),
            lambda error, worst: None if error == target else target,
        )
    reach = REACH if delta is None else deviations(sum(training.most), delta)
    scale, widest, span = _extent(training, reach)
    finest = span / MOST_POINTS

    def used(mesh: float) -> float:
        return max(grid_engine.aligned(mesh, training), finest)

    def make(mesh: float) -> Sequence[Curve]:
        return grid_engine.curves(worlds, mechanisms, counts, used(mesh), reach)

    def finer(mesh: float, worst: float) -> float | None:
        if mesh <= finest or (math.isinf(worst) and widest / mesh > 2**15):  # a finer grid would not reach further
            return None
        # Errors decrease with the square of the mesh.
        following = max(mesh / min(max(1.2 * math.sqrt(worst), 2.0), 8.0), finest)
        return following if used(following) < used(mesh) else finer(following, worst)

    return max(min(max(scale / 10, widest / 8192), widest / 1024), finest), make, finer


def _extent(training: Training, reach: float) -> tuple[float, float, float]:
    """The scale of a step's losses, their width, and the width of all steps' losses together."""
    scale = grid_engine.scale(training.worlds, training.mechanisms, training.most)
    widest = grid_engine.widest(training.worlds, training.mechanisms, reach)
    return scale, widest, widest + 20 * math.sqrt(sum(training.most)) * scale


def any_bound(low: Array, high: Array) -> float:
    """An `excess` for `answers` that accepts any finite bound."""
    return 0.0 if np.isfinite(high).all() else math.inf
