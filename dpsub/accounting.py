r"""ε and δ of Poisson-subsampled DP-SGD under add/remove and substitute adjacency.

One step with noise multiplier σ and sample rate q is dominated, for the replacement of one record, by the pair

.. math:: (1-q)\,N(0,\sigma^2) + q\,N(1,\sigma^2) \quad\text{against}\quad (1-q)\,N(0,\sigma^2) + q\,N(-1,\sigma^2),

and for its addition or removal by N(0, σ²) and one of these. The book proves it (*What does my ε protect?*, "Opposite
gradients are the worst case"); compositions of dominating pairs dominate (Zhu, Dong and Wang, 2022, Theorem 10).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, Self, cast, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.special import ndtri

from dpsub import _checks, _sums
from dpsub._calibration import noise_multiplier
from dpsub._curves import NAMES, TOLERANCE, Curve, Interval, Testable, answers, as_arrays, epsilons
from dpsub._gaussian import gdp_delta, gdp_epsilon, gdp_mu
from dpsub._training import Counts, History, of_arguments

__all__ = [
    "EpsilonInterval",
    "History",
    "delta",
    "epsilon",
    "epsilon_interval",
    "gdp_delta",
    "gdp_epsilon",
    "gdp_mu",
    "group_privacy_epsilon",
    "noise_multiplier",
    "tradeoff",
    "worst_case_epsilon",
]

ENGINES = tuple(NAMES)
FINEST_RATE = 1e-5  # half the width of a trade-off function's interval
SMALLEST_GROUP_DELTA = 1e-60  # where group privacy asks for less, it says next to nothing
LARGEST_GROUP_EPSILON = 600.0  # beyond, e^-ε′ δ is no floating-point number to speak of
NO_DELTA = 1e-280  # a δ smaller than this is not told from none

Array = NDArray[np.float64]


class _Ends(NamedTuple):
    lower: float | Array
    estimate: float | Array
    upper: float | Array


class EpsilonInterval(_Ends):
    """ε lies between `lower` and `upper`; `estimate` is halfway. Arrays where several step counts were asked for.

    `bound` says what the ends come from: "closed form"; "grid", dpsub's own; "coarse grid", where the error asked for
    would take more than a million points; "revealed batches", where no grid helps and the upper end is that of an
    adversary who is told which batches held the record; "dp-accounting" or "prv-accountant", if their engine was asked.
    """

    bound: str

    def __new__(cls, lower: float | Array, estimate: float | Array, upper: float | Array, bound: str = "") -> Self:
        interval = super().__new__(cls, lower, estimate, upper)
        interval.bound = bound
        return interval


@overload
def epsilon(
    *,
    noise_multiplier: float = ...,
    sample_rate: float = ...,
    steps: int = ...,
    history: History = ...,
    delta: float,
    adjacency: str,
    engine: str = ...,
    eps_error: float = ...,
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
    eps_error: float = ...,
) -> Array: ...
def epsilon(
    *,
    noise_multiplier: float | None = None,
    sample_rate: float | None = None,
    steps: int | Counts | None = None,
    history: History | None = None,
    delta: float,
    adjacency: str,
    engine: str = "auto",
    eps_error: float = TOLERANCE,
) -> float | Array:
    r"""The ε that DP-SGD guarantees: the certified upper end of `epsilon_interval`.

    Args:
        noise_multiplier: σ > 0; the noise's standard deviation divided by max_grad_norm.
        sample_rate: 0 < q ≤ 1; each record enters each batch with this probability, independently.
        steps: ≥ 1; one number, or a sequence of them: one ε each, from one discretisation.
        history: instead of these three, phases of (noise_multiplier, sample_rate, steps), as Opacus's accountants
            record them; ε is that of all of them together.
        delta: 0 < δ < 1.
        adjacency: "substitute" (one record replaced), "add_remove" (one record added or removed) or "zero_out" (one
            record replaced by nothing: the same ε as add/remove).
        engine: "auto" is the closed form at q = 1, and elsewhere dpsub's own grid, which is the cheapest that certifies
            the error, at any δ; "pld" is dp-accounting's privacy loss distribution, which certifies no δ near 1e-11;
            "prv" is prv-accountant, the paper's, which certifies none near 1e-13.
        eps_error: > 0; upper end − estimate may be this, or this times ε if that is larger.

    Returns:
        ε, a float for one number of steps or a history, else an array of their shape.

    Raises:
        ValueError: if an argument is out of range, or δ is below what the engine asked for can certify.

    Source: *Beyond Membership*, sections 2.1 and 5; the pair of one step is in the module's description.

    >>> round(epsilon(noise_multiplier=48.4033203125, sample_rate=1, steps=500, delta=1e-5, adjacency="substitute"), 3)
    3.995
    >>> round(epsilon(history=[(40, 1, 250), (60, 1, 250)], delta=1e-5, adjacency="substitute"), 3)
    4.126
    """
    return epsilon_interval(
        noise_multiplier=noise_multiplier,
        sample_rate=sample_rate,
        steps=steps,
        history=history,
        delta=delta,
        adjacency=adjacency,
        engine=engine,
        eps_error=eps_error,
    ).upper


def epsilon_interval(
    *,
    noise_multiplier: float | None = None,
    sample_rate: float | None = None,
    steps: int | Counts | None = None,
    history: History | None = None,
    delta: float,
    adjacency: str,
    engine: str = "auto",
    eps_error: float = TOLERANCE,
) -> EpsilonInterval:
    r"""Lower end, estimate and upper end of ε, with upper − estimate ≤ max(eps_error, eps_error·ε) where possible.

    The arguments are those of `epsilon`. Where that error would take a grid of more than a million points the
    interval is wider, and its `bound` says so.

    >>> low, estimate, high = epsilon_interval(
    ...     noise_multiplier=12.115, sample_rate=0.25, steps=500, delta=1e-5, adjacency="substitute")
    >>> low <= estimate <= high and high - estimate <= 4e-3
    True
    """
    training, single = of_arguments(noise_multiplier, sample_rate, steps, history, adjacency)
    delta = _checks.probability("delta", delta)
    _checks.choice("engine", engine, ENGINES)
    eps_error = _checks.real("eps_error", eps_error, above=0)

    found = epsilons(training, engine, delta, eps_error)
    lower, upper = (np.concatenate(ends) for ends in zip(*found.intervals, strict=True))
    if np.isinf(upper).any():
        raise ValueError(
            f"delta must be larger for engine={engine!r} to certify an ε, got {delta:g}; engine='auto' takes any"
        )
    estimate = (lower + upper) / 2
    if single:
        return EpsilonInterval(float(lower[0]), float(estimate[0]), float(upper[0]), found.bound)
    return EpsilonInterval(lower, estimate, upper, found.bound)


@overload
def delta(
    *,
    noise_multiplier: float = ...,
    sample_rate: float = ...,
    steps: int = ...,
    history: History = ...,
    epsilon: float,
    adjacency: str,
    engine: str = ...,
) -> float: ...
@overload
def delta(
    *,
    noise_multiplier: float = ...,
    sample_rate: float = ...,
    steps: int = ...,
    history: History = ...,
    epsilon: Sequence[float] | Array,
    adjacency: str,
    engine: str = ...,
) -> Array: ...
def delta(
    *,
    noise_multiplier: float | None = None,
    sample_rate: float | None = None,
    steps: int | None = None,
    history: History | None = None,
    epsilon: float | Sequence[float] | Array,
    adjacency: str,
    engine: str = "auto",
) -> float | Array:
    r"""The δ that DP-SGD guarantees at a given ε, rounded up: a certified upper bound, to three digits where possible.

    The arguments are those of `epsilon`, with `epsilon` ≥ 0 in the place of `delta`: one, or a sequence of them, for
    the curve δ(ε).

    >>> round(delta(noise_multiplier=48.4033203125, sample_rate=1, steps=500, epsilon=4.0, adjacency="substitute"), 7)
    9.8e-06
    """
    training, _ = of_arguments(noise_multiplier, sample_rate, _one(steps), history, adjacency)
    several = list(epsilon) if isinstance(epsilon, Sequence | np.ndarray) and np.ndim(epsilon) else None
    wanted = [_checks.real("epsilon", value, at_least=0) for value in ([epsilon] if several is None else several)]
    if not wanted:
        raise ValueError("epsilon must be a number or a non-empty sequence of them, got none")
    _checks.choice("engine", engine, ENGINES)

    def ask(curve: Curve) -> Interval:
        return as_arrays(map(curve.delta, wanted))

    def excess(low: Array, high: Array) -> float:
        return float(np.max((high - low) / 2 / (TOLERANCE * low + NO_DELTA)))

    least = None
    for precise in (False, True):  # a rough answer first, which tells how far out the loss matters
        error = excess if precise else _rough
        found = answers(training, engine, ask, excess=error, eps_error=TOLERANCE, delta=least)
        [(low, high)] = found.intervals
        least = max(float(np.min(low)), NO_DELTA)
    return float(high[0]) if several is None else high


def tradeoff(
    fpr: ArrayLike,
    *,
    noise_multiplier: float | None = None,
    sample_rate: float | None = None,
    steps: int | None = None,
    history: History | None = None,
    adjacency: str,
) -> float | Array:
    r"""The trade-off function f: whoever guesses which of two worlds a model is of errs at least this often.

    An adversary who takes z′ for z with probability `fpr` takes z for z′ with probability at least f(fpr). Exact at
    q = 1, elsewhere a certified lower bound, within 2e-5 where possible. Under add/remove adjacency it is the lower
    one of the two directions, made symmetric and convex.

    Args:
        fpr: any shape; false-positive rates, from 0 to 1.
        noise_multiplier, sample_rate, steps, history, adjacency: as in `epsilon`.

    Returns:
        False-negative rates, of the shape of `fpr`.

    Raises:
        ValueError: if an argument is out of range.

    Source: Dong, Roth and Su (2022), Definition 2.1 and Proposition 2.12; *Tight Auditing*, section 4.

    >>> round(tradeoff(0.05, noise_multiplier=48.4033203125, sample_rate=1, steps=500, adjacency="substitute"), 3)
    0.765
    """
    training, _ = of_arguments(noise_multiplier, sample_rate, _one(steps), history, adjacency)
    rates = _checks.rates("fpr", fpr)
    found = answers(
        training,
        "auto",
        lambda curve: cast(Testable, curve).tradeoff(rates.ravel()),
        excess=lambda low, high: float(np.max(high - low, initial=0.0)) / 2 / FINEST_RATE,
        eps_error=TOLERANCE,
        delta=1e-12,
    )
    [(low, _)] = found.intervals
    return low.reshape(rates.shape) if rates.ndim else float(low[0])


def group_privacy_epsilon(
    *,
    noise_multiplier: float | None = None,
    sample_rate: float | None = None,
    steps: int | None = None,
    history: History | None = None,
    delta: float,
) -> float:
    r"""The substitute ε that follows from add/remove accounting by group privacy alone: a looser bound than `epsilon`.

    A record is replaced by one removal and one addition, so ε_S = 2ε′ for the smallest ε′ with
    :math:`(1 + e^{\varepsilon'})\,\delta_{AR}(\varepsilon') \le \delta`. Any solution is a valid bound.

    The arguments are those of `epsilon`. Returns `inf` where there is no solution that can be certified.

    Source: *Beyond Membership*, Theorem 4.1, with δ adjusted.

    >>> round(group_privacy_epsilon(noise_multiplier=48.4033203125, sample_rate=1, steps=500, delta=1e-5), 3)
    4.108
    """
    training, _ = of_arguments(noise_multiplier, sample_rate, _one(steps), history, "add_remove")
    delta = _checks.probability("delta", delta)

    full_batch = all(q == 1 for _, q in training.mechanisms)
    largest = LARGEST_GROUP_EPSILON if full_batch else math.log(delta / SMALLEST_GROUP_DELTA)

    climb = partial(_smallest_group_epsilon, delta=delta, largest=largest)

    def ask(curve: Curve) -> Interval:
        return as_arrays([(climb(curve, 0), climb(curve, 1))])

    def excess(low: Array, high: Array) -> float:
        return float(np.max((high - low) / np.maximum(TOLERANCE, TOLERANCE * low)))

    # A rough answer first: it tells the smallest δ that will be asked, or that there is no more precise one.
    found = answers(training, "auto", ask, excess=_rough, eps_error=TOLERANCE, delta=None)
    [(_, [upper])] = found.intervals
    if found.bound == "grid":
        least = max(delta / (1 + math.exp(upper)), SMALLEST_GROUP_DELTA)
        [(_, [upper])] = answers(training, "auto", ask, excess=excess, eps_error=TOLERANCE, delta=least).intervals
    return 2 * float(upper)


def worst_case_epsilon(*, noise_multiplier: float, sample_rate: float, steps: int, delta: float) -> float:
    r"""The exact ε of an adversary who sees the sum over all steps alone: what infinitely many runs of S1 would show.

    `epsilon` covers an adversary who sees every step. At q = 1 the two agree; the difference elsewhere is what the
    threat model hides, as opposed to what a finite number of runs cannot show.

    The likelihood ratio is increasing in the sum x, so the best event at ε is a half-line from the x whose log-ratio is
    ε, and δ(ε) follows from the tails of the two mixtures. The arguments are those of `epsilon`.

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


def _rough(low: Array, high: Array) -> float:
    """For `answers`: any bound will do."""
    return 0.0 if np.isfinite(high).all() else math.inf


def _smallest_group_epsilon(curve: Curve, end: int, *, delta: float, largest: float) -> float:
    """ε′ as in `group_privacy_epsilon`, from one end of the curve's intervals."""

    def lacking(current: float) -> float:
        """How far ε′ is from what add/remove accounting needs there; a solution if that is at most 0."""
        needed = curve.epsilon(delta / (1 + math.exp(current)))[end]
        return min(needed, 2 * largest) - current

    enough, stride, lack = 0.0, 0.0, lacking(0.0)
    while lack > 0:
        too_little, stride = enough, max(1.5 * lack, 2 * stride)
        enough += stride
        if enough > largest:
            return math.inf
        lack = lacking(enough)
    if enough == 0:
        return 0.0
    root = float(brentq(lacking, too_little, enough, xtol=1e-6))
    while end and lacking(root) > 0:
        root += 1e-6
    return root


def _one(steps: int | None) -> int | None:
    return None if steps is None else _checks.whole("steps", steps)
