r"""ε and δ of Poisson-subsampled DP-SGD under add/remove and substitute adjacency.

One step with noise multiplier σ and sample rate q is dominated, for the replacement of one record, by the pair

.. math:: (1-q)\,N(0,\sigma^2) + q\,N(1,\sigma^2) \quad\text{against}\quad (1-q)\,N(0,\sigma^2) + q\,N(-1,\sigma^2),

and for its addition or removal by N(0, σ²) and one of these. The book proves it (*What does my ε protect?*, "Opposite
gradients are the worst case"); compositions of dominating pairs dominate (Zhu, Dong and Wang, 2022, Theorem 10).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, Protocol, overload

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import ndtri

from dpsub import _checks, _grid, _pld, _prv, _sums
from dpsub._gaussian import GaussianCurve, gdp_delta, gdp_epsilon, gdp_mu

__all__ = [
    "EpsilonInterval",
    "delta",
    "epsilon",
    "epsilon_interval",
    "gdp_delta",
    "gdp_epsilon",
    "gdp_mu",
    "group_privacy_epsilon",
    "noise_multiplier",
    "worst_case_epsilon",
]

ENGINES = ("auto", "prv", "pld")
TOLERANCE = 1e-3  # half the width of an interval, absolute or relative to its lower end, whichever is larger

Array = NDArray[np.float64]
Counts = Sequence[int] | NDArray[np.integer]


class Curve(Protocol):
    """δ(ε) of one mechanism, known up to an interval; the ends are those of `EpsilonInterval`."""

    def epsilon(self, delta: float) -> tuple[float, float]: ...

    def delta(self, epsilon: float) -> tuple[float, float]: ...


class EpsilonInterval(NamedTuple):
    """ε lies between `lower` and `upper`; `estimate` is halfway. Arrays where several step counts were asked for."""

    lower: float | Array
    estimate: float | Array
    upper: float | Array


@overload
def epsilon(
    *, noise_multiplier: float, sample_rate: float, steps: int, delta: float, adjacency: str, engine: str = ...
) -> float: ...
@overload
def epsilon(
    *,
    noise_multiplier: float,
    sample_rate: float,
    steps: Counts,
    delta: float,
    adjacency: str,
    engine: str = ...,
) -> Array: ...
def epsilon(
    *,
    noise_multiplier: float,
    sample_rate: float,
    steps: int | Counts,
    delta: float,
    adjacency: str,
    engine: str = "auto",
) -> float | Array:
    r"""The ε that DP-SGD guarantees: the certified upper end of `epsilon_interval`.

    Args:
        noise_multiplier: σ > 0; the noise's standard deviation divided by max_grad_norm.
        sample_rate: 0 < q ≤ 1; each record enters each batch with this probability, independently.
        steps: ≥ 1; one number, or a sequence of them: one ε each, from one discretisation.
        delta: 0 < δ < 1.
        adjacency: "substitute" (one record replaced), "add_remove" (one record added or removed) or "zero_out" (one
            record replaced by nothing: the same ε as add/remove).
        engine: "auto" is the closed form at q = 1, and elsewhere dpsub's own grid, which is the cheapest that certifies
            the tolerance, at any δ; "pld" is dp-accounting's privacy loss distribution, "prv" prv-accountant, the
            paper's. Neither can certify a δ near 1e-11, or 1e-13.

    Returns:
        ε, a float for one number of steps, else an array of their shape. `inf` where no finite ε can be certified
        (a δ below 1e-40, or losses of one step beyond 600): never a cap.

    Raises:
        ValueError: if an argument is out of range.

    Source: *Beyond Membership*, sections 2.1 and 5; the pair of one step is in the module's description.

    >>> round(epsilon(noise_multiplier=48.4033203125, sample_rate=1, steps=500, delta=1e-5, adjacency="substitute"), 3)
    3.995
    """
    return epsilon_interval(
        noise_multiplier=noise_multiplier,
        sample_rate=sample_rate,
        steps=steps,
        delta=delta,
        adjacency=adjacency,
        engine=engine,
    ).upper


def epsilon_interval(
    *,
    noise_multiplier: float,
    sample_rate: float,
    steps: int | Counts,
    delta: float,
    adjacency: str,
    engine: str = "auto",
) -> EpsilonInterval:
    r"""Lower end, estimate and upper end of ε, with upper − estimate ≤ max(1e-3, 1e-3·ε) where that can be certified.

    The arguments are those of `epsilon`. Where the tolerance would take a grid of more than four million points the
    interval is wider, and says so by its width.

    >>> low, estimate, high = epsilon_interval(
    ...     noise_multiplier=12.115, sample_rate=0.25, steps=500, delta=1e-5, adjacency="substitute")
    >>> low <= estimate <= high and high - estimate <= 4e-3
    True
    """
    sigma, q = _checks.mechanism(noise_multiplier, sample_rate)
    counts, single = _step_counts(steps)
    delta = _checks.probability("delta", delta)
    _checks.adjacency(adjacency)
    _checks.choice("engine", engine, ENGINES)

    intervals = _narrowest(
        _refinements(sigma, q, counts, adjacency, engine, delta),
        lambda curve: curve.epsilon(delta),
        TOLERANCE,
    )
    lower, upper = (np.array(ends) for ends in zip(*intervals, strict=True))
    estimate = np.where(np.isfinite(upper), (lower + upper) / 2, np.inf)
    if single:
        return EpsilonInterval(float(lower[0]), float(estimate[0]), float(upper[0]))
    return EpsilonInterval(lower, estimate, upper)


def delta(
    *, noise_multiplier: float, sample_rate: float, steps: int, epsilon: float, adjacency: str, engine: str = "auto"
) -> float:
    r"""The δ that DP-SGD guarantees at a given ε, rounded up: a certified upper bound.

    The arguments are those of `epsilon`, with `epsilon` ≥ 0 in the place of `delta`.

    >>> round(delta(noise_multiplier=48.4033203125, sample_rate=1, steps=500, epsilon=4.0, adjacency="substitute"), 7)
    9.8e-06
    """
    sigma, q = _checks.mechanism(noise_multiplier, sample_rate)
    steps = _checks.whole("steps", steps)
    epsilon = _checks.real("epsilon", epsilon, at_least=0)
    _checks.adjacency(adjacency)
    _checks.choice("engine", engine, ENGINES)
    refinements = _refinements(sigma, q, [steps], adjacency, engine, 1e-5)
    [(_, upper)] = _narrowest(refinements, lambda curve: curve.delta(epsilon), 0.0, TOLERANCE)
    return upper


def noise_multiplier(*, target_epsilon: float, sample_rate: float, steps: int, delta: float, adjacency: str) -> float:
    r"""The smallest noise multiplier whose certified ε is at most `target_epsilon`, to six digits.

    Args:
        target_epsilon: > 0.
        sample_rate, steps, delta, adjacency: as in `epsilon`.

    Raises:
        ValueError: if an argument is out of range, or if every noise multiplier meets the target because the record
            enters a batch at all with probability at most δ.

    >>> round(noise_multiplier(target_epsilon=10, sample_rate=1, steps=500, delta=1e-5, adjacency="substitute"), 3)
    22.356
    """
    target = _checks.real("target_epsilon", target_epsilon, above=0)
    q = _checks.real("sample_rate", sample_rate, above=0, at_most=1)
    steps = _checks.whole("steps", steps)
    delta = _checks.probability("delta", delta)
    _checks.adjacency(adjacency)

    distance = 2.0 if adjacency == "substitute" else 1.0
    full_batch = distance * math.sqrt(steps) / gdp_mu(target, delta)
    if q == 1:
        return full_batch
    if -math.expm1(steps * math.log1p(-q)) <= delta:
        raise ValueError(
            f"delta must be smaller than the probability of ever being sampled, 1 - (1 - sample_rate)**steps, for a "
            f"noise multiplier to be needed; got delta={delta:g}, sample_rate={q:g}, steps={steps}"
        )

    def excess(log_sigma: float, *, rough: bool) -> float:
        refinements = _refinements(math.exp(log_sigma), q, [steps], adjacency, "auto", delta)
        [(_, reached)] = _narrowest(refinements, lambda curve: curve.epsilon(delta), math.inf if rough else TOLERANCE)
        return min(reached, 10 * target + 10) - target

    # Sampling only helps, so the full batch's noise is enough, give or take the grid's error. Precise bounds are lower
    # than rough ones, so the rough answer is enough too, and close.
    enough = math.log(full_batch) + 0.05
    if excess(enough, rough=True) > 0:
        raise ValueError(f"delta must be large enough for an ε to be certified, got {delta:g}")
    for rough, stride in ((True, 0.5), (False, 0.01)):
        too_little = enough - stride
        while excess(too_little, rough=rough) <= 0:
            enough, too_little = too_little, too_little - stride
        enough = float(brentq(partial(excess, rough=rough), too_little, enough, xtol=1e-6))
        while excess(enough, rough=rough) > 0:
            enough += 1e-6
    return math.exp(enough)


def group_privacy_epsilon(*, noise_multiplier: float, sample_rate: float, steps: int, delta: float) -> float:
    r"""The substitute ε that follows from add/remove accounting by group privacy alone: a looser bound than `epsilon`.

    A record is replaced by one removal and one addition, so ε_S = 2ε′ for the smallest ε′ with
    :math:`(1 + e^{\varepsilon'})\,\delta_{AR}(\varepsilon') \le \delta`. The left side is not monotone in ε′, but on
    [a, b] it is at least :math:`(1+e^a)\,\delta_{AR}(b)`: so stepping from a to the ε_AR of δ/(1 + e^a) passes no
    solution, and climbs to the smallest.

    The arguments are those of `epsilon`. Returns `inf` where there is no solution that can be certified.

    Source: *Beyond Membership*, Theorem 4.1, with δ adjusted.

    >>> round(group_privacy_epsilon(noise_multiplier=48.4033203125, sample_rate=1, steps=500, delta=1e-5), 3)
    4.108
    """
    sigma, q = _checks.mechanism(noise_multiplier, sample_rate)
    steps = _checks.whole("steps", steps)
    delta = _checks.probability("delta", delta)

    def ask(curve: Curve) -> tuple[float, float]:
        return _smallest_group_epsilon(curve, delta, 0), _smallest_group_epsilon(curve, delta, 1)

    [(_, upper)] = _narrowest(_refinements(sigma, q, [steps], "add_remove", "auto", delta), ask, TOLERANCE / 2)
    return 2 * upper


def worst_case_epsilon(*, noise_multiplier: float, sample_rate: float, steps: int, delta: float) -> float:
    r"""The exact ε of an adversary who sees the sum over all steps alone: what infinitely many runs of S1 would show.

    `epsilon` covers an adversary who sees every step. At q = 1 the two agree; the difference elsewhere is what the
    threat model hides, as opposed to what a finite number of runs cannot show.

    The likelihood ratio is increasing in the sum x, so the best event at ε is a half-line from the x whose log-ratio is
    ε, and δ(ε) follows from the tails of the two mixtures.

    The arguments are those of `epsilon`.

    Source: *Beyond Membership*, section 3.1, equation 3.

    >>> round(worst_case_epsilon(noise_multiplier=1.6772842407, sample_rate=0.0625, steps=500, delta=1e-5), 4)
    7.9237
    """
    sigma, q = _checks.mechanism(noise_multiplier, sample_rate)
    steps = _checks.whole("steps", steps)
    delta = _checks.probability("delta", delta)
    log_ratio = partial(_sums.log_likelihood_ratio, noise_multiplier=sigma, sample_rate=q, steps=steps)
    log_above = partial(_sums.log_above, noise_multiplier=sigma, sample_rate=q, steps=steps)

    def ratio(x: float) -> float:
        return float(log_ratio(np.array([x]), adjacency="substitute")[0])

    def excess(x: float) -> float:
        above, mirrored = log_above(x, 1), log_above(x, -1)
        return -math.exp(above) * math.expm1(min(ratio(x) + mirrored - above, 0.0)) - delta

    if excess(0.0) <= 0:
        return 0.0
    farthest = steps - math.sqrt(steps) * sigma * float(ndtri(delta / 2))  # less than δ lies beyond, in either world
    return ratio(float(brentq(excess, 0.0, farthest, xtol=1e-10)))


def _smallest_group_epsilon(curve: Curve, delta: float, end: int) -> float:
    current = 0.0
    while current < 600:  # beyond, e^-ε′ δ is no floating-point number to speak of
        following = curve.epsilon(delta / (1 + math.exp(current)))[end]
        if following <= current + 1e-10:
            return following
        current = following
    return math.inf


def _step_counts(steps: int | Counts) -> tuple[list[int], bool]:
    if np.ndim(steps) == 0:
        return [_checks.whole("steps", steps)], True
    counts = np.asarray(steps)
    if counts.ndim != 1 or not counts.size:
        raise ValueError(f"steps must be a whole number or a non-empty sequence of them, got {steps!r}")
    return [_checks.whole("steps", count) for count in counts.tolist()], False


def _refinements(
    sigma: float, q: float, steps: list[int], adjacency: str, engine: str, delta: float
) -> Iterator[Sequence[Curve]]:
    """Curves for every number of steps, over and over, each time more precise and more costly."""
    if engine == "auto" and q == 1:
        distance = 2.0 if adjacency == "substitute" else 1.0
        yield [GaussianCurve(distance * math.sqrt(count) / sigma) for count in steps]
        return
    if engine == "prv":
        for eps_error in (0.1, 0.8 * TOLERANCE):
            yield _prv.curves(adjacency, sigma, q, steps, eps_error, delta / 1000)
        return
    curves = _pld.curves if engine == "pld" else _grid.curves
    coarsest = _grid.coarsest_mesh(adjacency, sigma, q)
    size = _grid.points(adjacency, sigma, q, max(steps), coarsest)
    mesh = coarsest * max(1.0, size / _grid.MOST_POINTS)
    while size * coarsest / mesh <= 1.001 * _grid.MOST_POINTS:
        yield curves(adjacency, sigma, q, steps, mesh)
        mesh /= 3


def _narrowest(
    refinements: Iterator[Sequence[Curve]],
    ask: Callable[[Curve], tuple[float, float]],
    absolute: float,
    relative: float = TOLERANCE,
) -> list[tuple[float, float]]:
    """The interval of each curve, from the first refinement that is precise enough for all, or from all together."""
    found: list[tuple[float, float]] = []
    for curves in refinements:
        answers = [ask(curve) for curve in curves]
        stuck = any(math.isinf(upper) for _, upper in found + answers)  # a δ too small for any grid
        if found:  # every interval holds the truth, so their intersection does
            answers = [(max(a, c), min(b, d)) for (a, b), (c, d) in zip(found, answers, strict=True)]
        found = answers
        if stuck or all((upper - lower) / 2 <= max(absolute, relative * lower) for lower, upper in found):
            break
    return found
