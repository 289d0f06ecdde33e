"""ε, δ and the trade-off function of a DP-SGD training: certified bounds."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from dpsub._core import checks
from dpsub.accounting.dominating_pairs import Array
from dpsub.accounting.engines import ENGINES, TOLERANCE, Curve, Interval, answers, any_finite, as_arrays, epsilons
from dpsub.accounting.phases import StepCounts, training_of
from dpsub.accounting.samplings import History, Sampling

ENGINE = partial(checks.choice, options=ENGINES)
RATE_ERROR = 1e-5  # half the width of a trade-off function's interval
NO_DELTA = 1e-280  # a δ smaller than this is not distinguished from 0


class EpsilonInterval(NamedTuple):
    """ε lies between `lower` and `upper`; `estimate` is their midpoint. They are arrays for several step counts."""

    lower: float | Array
    estimate: float | Array
    upper: float | Array


@checks.checked()
def epsilon(
    *,
    noise_multiplier: float | None = None,
    sample_rate: float | None = None,
    steps: int | StepCounts | None = None,
    history: History | None = None,
    delta: float,
    adjacency: str,
    sampling: Sampling | str = "poisson",
    engine: str = "auto",
    eps_error: float = TOLERANCE,
) -> float | Array:
    r"""The ε that DP-SGD guarantees: the certified upper end of `epsilon_interval`.

    Args:
        noise_multiplier: σ, from 1e-4 to 1e6; the noise's standard deviation divided by max_grad_norm.
        sample_rate: q, from 1e-300 to 1; each record enters each batch with this probability, independently. With
            `sampling="without_replacement"` it is b/n exactly, with "epochs" 1 / (steps an epoch).
        steps: from 1 to 1e9; one number, or a sequence of numbers, whose values of ε share one discretisation.
        history: instead of these three, phases of (noise_multiplier, sample_rate, steps), as Opacus's accountants
            record them; ε is for all phases together.
        delta: 0 < δ < 1.
        adjacency: "substitute" (one record replaced), "add_remove" (one record added or removed) or "zero_out" (one
            record replaced by nothing: the same ε as add/remove).
        sampling: how batches are drawn.

            - "poisson": each record enters each batch with probability q, independently of all others.
            - `TruncatedPoisson(maximum, records)`, or "truncated_poisson:maximum:records": the same, but batches with
              more than `maximum` records are cut to so many, drawn evenly. In a cut batch a record has taken the place
              of another one, as "without_replacement". This ε is larger than Poisson's, much so if many are cut.
            - `PoissonMean(records)`, or "poisson_mean:records": Poisson batches whose sum is divided by the number of
              records in the batch. It needs "substitute", and is slightly larger than "without_replacement".
            - "without_replacement": each batch is drawn anew, b of the n records, and `sample_rate` is b/n. It needs
              "substitute". Here ε is larger than Poisson's, often several times, because a record in the batch has
              taken the place of another one. If all other gradients are that of z′, the worlds are twice as far apart.
              This ε holds whatever the others are.
            - "epochs": each record is in one batch of each epoch, as data loaders draw them, shuffled or not.
              Training must go through whole epochs. Sampling then hides nothing, and ε is that of one full batch an
              epoch. It needs "substitute" or "zero_out": a removed record would shift the others between batches.
        engine: "auto" is the closed form at q = 1 and dpsub's own grid elsewhere: the cheapest that certifies the
            error, at any δ. "prv" is prv-accountant, the paper's, for Poisson batches. It certifies no δ ≤ 1e-15 times
            the number of steps, and takes several seconds, for each number of steps, if σ is small.
        eps_error: > 0; upper end − estimate is at most this, or this times ε if that is larger, where possible.

    Returns:
        ε: a float for one number of steps or a history, an array with one ε for each entry of a sequence of steps.

    Raises:
        ValueError: if an argument is out of range, or if δ is below what the requested engine can certify.

    Source: *Beyond Membership*, sections 2.1 and 5; the pair of one step is in the module's description. For sampling
    without replacement: Zhu, Dong and Wang (2022).

    >>> round(epsilon(noise_multiplier=48.4033203125, sample_rate=1, steps=500, delta=1e-5, adjacency="substitute"), 3)
    3.995
    >>> round(epsilon(history=[(40, 1, 250), (60, 1, 250)], delta=1e-5, adjacency="substitute"), 3)
    4.126
    """
    return epsilon_interval(**locals()).upper  # which has the same arguments


@checks.checked("delta", engine=ENGINE, eps_error=partial(checks.real, above=0))
def epsilon_interval(
    *,
    noise_multiplier: float | None = None,
    sample_rate: float | None = None,
    steps: int | StepCounts | None = None,
    history: History | None = None,
    delta: float,
    adjacency: str,
    sampling: Sampling | str = "poisson",
    engine: str = "auto",
    eps_error: float = TOLERANCE,
) -> EpsilonInterval:
    r"""Lower end, estimate and upper end of ε, with upper − estimate ≤ max(eps_error, eps_error·ε) where possible.

    The arguments are those of `epsilon`. If that error needs a grid of more than a million points, the interval is
    wider. If no grid helps, the upper end is that of an adversary who is also told which batches held the record.

    With `sampling="without_replacement"` the ends answer two questions, each to this error. The lower end is what is
    attained if all other records' gradients are that of z′: Poisson's ε under add/remove at half the noise. The upper
    end holds whatever the others are. The truth for the worst data set lies between, and `estimate` is only the middle.
    The same holds for `TruncatedPoisson`, whose lower end is attained if all other gradients are 0.

    >>> low, estimate, high = epsilon_interval(
    ...     noise_multiplier=12.115, sample_rate=0.25, steps=500, delta=1e-5, adjacency="substitute")
    >>> low <= estimate <= high and high - estimate <= 4e-3
    True
    """
    training = training_of(adjacency, sampling, noise_multiplier, sample_rate, steps, history)
    lower, upper = (np.concatenate(ends) for ends in zip(*epsilons(training, engine, delta, eps_error), strict=True))
    if np.isinf(upper).any():
        raise ValueError(
            f"delta must be larger for engine={engine!r} to certify an ε, got {delta:g}; engine='auto' takes any"
        )
    if training.attained:
        lower = np.concatenate([low for low, _ in epsilons(training.attained, engine, delta, eps_error)])
    estimate = (lower + upper) / 2
    if steps is None or not np.ndim(steps):
        return EpsilonInterval(float(lower[0]), float(estimate[0]), float(upper[0]))
    return EpsilonInterval(lower, estimate, upper)


@checks.checked("steps", engine=ENGINE)
def delta(
    *,
    noise_multiplier: float | None = None,
    sample_rate: float | None = None,
    steps: int | None = None,
    history: History | None = None,
    epsilon: float | Sequence[float] | Array,
    adjacency: str,
    sampling: Sampling | str = "poisson",
    engine: str = "auto",
) -> float | Array:
    r"""The δ that DP-SGD guarantees at a given ε, rounded up: a certified upper bound, to three digits where possible.

    The arguments are those of `epsilon`, with two differences: `steps` is one number, and `epsilon` ≥ 0 takes the place
    of `delta` and `eps_error`. A sequence of ε gives an array of δ: the curve δ(ε).

    >>> round(delta(noise_multiplier=48.4033203125, sample_rate=1, steps=500, epsilon=4.0, adjacency="substitute"), 7)
    9.8e-06
    """
    training = training_of(adjacency, sampling, noise_multiplier, sample_rate, steps, history)
    wanted = checks.array("epsilon", epsilon, at_least=0)
    if wanted.ndim > 1 or not wanted.size:
        raise ValueError(f"epsilon must be a number or a non-empty sequence of numbers, got {epsilon!r}")

    def ask(curve: Curve) -> Interval:
        return as_arrays(map(curve.delta, np.atleast_1d(wanted).tolist()))

    def relative_width(low: Array, high: Array) -> float:
        return float(np.max((high - low) / 2 / (TOLERANCE * low + NO_DELTA)))

    least = None
    for precise in (False, True):  # the rough answer tells which losses matter
        width = relative_width if precise else any_finite
        [(low, high)] = answers(training, engine, ask, relative_width=width, delta=least)
        least = max(float(np.min(low)), NO_DELTA)
    return high if wanted.ndim else float(high[0])


@checks.checked("steps")
def tradeoff(
    fpr: ArrayLike,
    *,
    noise_multiplier: float | None = None,
    sample_rate: float | None = None,
    steps: int | None = None,
    history: History | None = None,
    adjacency: str,
    sampling: Sampling | str = "poisson",
) -> float | Array:
    r"""The trade-off function f: the least false-negative rate of any attack, at a given false-positive rate.

    An adversary who takes z′ for z with probability `fpr` takes z for z′ with probability at least f(fpr). The values
    are exact at q = 1, and elsewhere a certified lower bound, within 2e-5 where possible. Under add/remove adjacency f
    is the lower of the two directions, made symmetric and convex.

    Args:
        fpr: any shape; false-positive rates, from 0 to 1.
        noise_multiplier, sample_rate, steps, history, adjacency, sampling: as in `epsilon`; `steps` is one number.

    Returns:
        False-negative rates, of the shape of `fpr`.

    Raises:
        ValueError: if an argument is out of range.

    Source: Dong, Roth and Su (2022), Definition 2.1 and Proposition 2.12; *Tight Auditing*, section 4.

    >>> round(tradeoff(0.05, noise_multiplier=48.4033203125, sample_rate=1, steps=500, adjacency="substitute"), 3)
    0.765
    """
    training = training_of(adjacency, sampling, noise_multiplier, sample_rate, steps, history)
    rates = checks.array("fpr", fpr, at_least=0, at_most=1)
    [(low, _)] = answers(
        training,
        "auto",
        lambda curve: curve.tradeoff(rates.ravel()),
        relative_width=lambda low, high: float(np.max(high - low, initial=0.0)) / 2 / RATE_ERROR,
        delta=1e-12,
    )
    return low.reshape(rates.shape) if rates.ndim else float(low[0])
