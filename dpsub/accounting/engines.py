"""Certified intervals for questions about DP-SGD: the choice of engine, its precision, and when to stop."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Protocol, cast

import numpy as np

from dpsub.accounting import grid_engine
from dpsub.accounting.discretisation import REACH, deviations
from dpsub.accounting.dominating_pairs import Array, Pair
from dpsub.accounting.gaussian import GaussianCurve
from dpsub.accounting.grid_engine import RevealedCurve
from dpsub.accounting.phases import Training

ENGINES = ("auto", "prv")
TOLERANCE = 1e-3  # half the width of an interval, absolute or relative to its lower end, whichever is larger
MOST_POINTS = 2**20  # of a grid: less than 2 GiB and 10 s
ROUGH_POINTS = 2**16  # of a grid for `rough_epsilon`

Interval = tuple[Array, Array]  # the lower and the upper ends, one for each value asked for


class Curve(Protocol):
    """δ(ε) of one training, known up to an interval.

    Only the curves of `engine="auto"` have `deltas`, many δ to an absolute error, and the trade-off function.
    """

    def epsilon(self, delta: float) -> tuple[float, float]: ...

    def delta(self, epsilon: float) -> tuple[float, float]: ...

    def deltas(self, epsilons: Array) -> Interval: ...

    def tradeoff(self, fpr: Array) -> Interval: ...


def any_finite(low: Array, high: Array) -> float:
    """A `relative_width` for `answers` that accepts any finite bound."""
    return 0.0 if np.isfinite(high).all() else math.inf


def answers(
    training: Training,
    engine: str,
    ask: Callable[[Curve], Interval],
    *,
    relative_width: Callable[[Array, Array], float] = any_finite,
    eps_error: float = TOLERANCE,
    delta: float | None = None,
) -> list[Interval]:
    """Ask every curve of the training, at growing precision, until every interval's `relative_width` is at most 1.

    Args:
        training: the training; it has one curve for each row of its counts.
        engine: one of `ENGINES`.
        ask: the question, which a curve answers with an interval that contains the answer.
        relative_width: an interval's width, given its ends, over the width that is wanted.
        eps_error: the error of ε that `engine="prv"` is discretised for.
        delta: the smallest δ that matters, or None for any.

    Returns:
        One interval for each curve. If no grid is fine enough, they are wider than asked for.
    """
    if engine != "auto" and not all(isinstance(pair, Pair) for directions in training.pairs for pair in directions):
        raise ValueError(
            f"engine must be 'auto' with sampling='{training.sampling}', got {engine!r}: it takes Poisson only"
        )
    if engine == "auto" and all(q == 1 for _, q in training.mechanisms):
        mus = (
            math.sqrt(sum(t / sigma**2 for (sigma, _), t in zip(training.mechanisms, row, strict=True)))
            for row in training.counts
        )
        return [ask(GaussianCurve(training.distance * mu)) for mu in mus]

    intervals: list[Interval] = [(np.zeros(1), np.full(1, np.inf))] * len(training.counts)

    def ask_all(curves: Iterable[Curve]) -> float:
        """Narrow the intervals, and return the largest `relative_width`."""
        intervals[:] = [_narrowed(*both) for both in zip(intervals, map(ask, curves), strict=True)]
        return max(relative_width(*interval) for interval in intervals)

    if engine == "prv":
        from dpsub.accounting import prv_engine  # its import takes as long as all of dpsub.accounting

        target = 0.8 * eps_error
        for error in sorted({max(0.1, target), target}, reverse=True):  # a coarse grid may be enough
            curves = prv_engine.curves(training, error, (delta or 1e-5) / 1000)
            if ask_all(cast(list[Curve], curves)) <= 1 or curves[0].eps_error > 1.01 * error:  # the grid is the finest
                break
        return intervals

    reach = REACH if delta is None else deviations(sum(training.longest), delta)
    scale, widest, span = grid_engine.extent(training, reach)
    finest = span / MOST_POINTS
    # First ten cells for the standard deviation of a step's loss, but 1,024 to 8,192 for its range.
    mesh = max(min(max(scale / 10, widest / 8192), widest / 1024), finest)
    largest_width = asked = math.inf
    while True:
        aligned = max(grid_engine.aligned(mesh, training), finest)
        if aligned < asked:
            asked, largest_width = aligned, ask_all(grid_engine.curves(training, aligned, reach))
        if largest_width <= 1:
            return intervals
        if mesh <= finest or (math.isinf(largest_width) and widest / mesh > 2**15):  # a finer grid reaches no further
            break
        # Errors decrease with the square of the mesh.
        mesh = max(mesh / min(max(1.2 * math.sqrt(largest_width), 2.0), 8.0), finest)
    ask_all(RevealedCurve(training.distance, *training.harshest, sum(row)) for row in training.counts)
    return intervals


def epsilons(training: Training, engine: str, delta: float, eps_error: float) -> list[Interval]:
    """ε at one δ, to `eps_error`, absolute or relative."""
    return answers(
        training,
        engine,
        lambda curve: as_arrays([curve.epsilon(delta)]),
        relative_width=lambda low, high: float(np.max((high - low) / 2 / np.maximum(eps_error, eps_error * low))),
        eps_error=eps_error,
        delta=delta,
    )


def rough_epsilon(training: Training, delta: float) -> float:
    """An upper bound on the ε of one curve, from a grid of a few thousand points: cheap, but it can be loose."""
    reach = deviations(sum(training.longest), delta)
    scale, widest, span = grid_engine.extent(training, reach)
    mesh = max(min(scale / 10, widest / 1024), widest / 8192, span / ROUGH_POINTS)
    [curve] = grid_engine.curves(training, mesh, reach)
    revealed = RevealedCurve(training.distance, *training.harshest, sum(training.longest))
    return min(curve.epsilon(delta)[1], revealed.epsilon(delta)[1])


def as_arrays(intervals: Iterable[tuple[float, float]]) -> Interval:
    lower, upper = (np.array(ends) for ends in zip(*intervals, strict=True))
    return lower, upper


def _narrowed(known: Interval, new: Interval) -> Interval:
    """The intersection: both intervals contain the truth."""
    lower, upper = np.maximum(known[0], new[0]), np.minimum(known[1], new[1])
    if np.any(lower > upper * (1 + 1e-9) + 1e-9):
        raise ArithmeticError("two bounds contradict each other, so one is wrong: please report the arguments")
    return lower, upper
