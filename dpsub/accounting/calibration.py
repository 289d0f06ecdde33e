"""The noise multiplier that meets a target ε."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial

from scipy.optimize import brentq

from dpsub._core import checks
from dpsub.accounting.engines import TOLERANCE, epsilons, rough_epsilon
from dpsub.accounting.gaussian import gdp_mu
from dpsub.accounting.phases import (
    LEAST_NOISE,
    MOST_NOISE,
    STEPS,
    Training,
    distance,
    epochs,
    worlds_of,
)


@checks.checked(
    "sample_rate", "delta", "adjacency", "sampling", target_epsilon=partial(checks.real, above=0), steps=STEPS
)
def noise_multiplier(
    *, target_epsilon: float, sample_rate: float, steps: int, delta: float, adjacency: str, sampling: str = "poisson"
) -> float:
    r"""The smallest noise multiplier whose certified ε is at most `target_epsilon`, to six digits.

    Args:
        target_epsilon: > 0.
        sample_rate, steps, delta, adjacency, sampling: as in `epsilon`, for one number of steps.

    Returns:
        The noise multiplier σ.

    Raises:
        ValueError: if an argument is out of range, if the answer lies outside the range that `epsilon` takes, or if
            every noise multiplier meets the target because the record enters any batch with probability at most δ.

    >>> round(noise_multiplier(target_epsilon=10, sample_rate=1, steps=500, delta=1e-5, adjacency="substitute"), 3)
    22.356
    """
    target, q = target_epsilon, sample_rate
    worlds = worlds_of(adjacency, sampling)
    if sampling == "epochs":
        [(_, q, steps)] = epochs([(1.0, q, steps)])

    full_batch = distance(adjacency) * math.sqrt(steps) / gdp_mu(target, delta)
    if q == 1:
        return _computable(full_batch, target)
    if -math.expm1(steps * math.log1p(-q)) <= delta:
        raise ValueError(
            f"delta must be smaller than the probability of ever being sampled, 1 - (1 - sample_rate)**steps, for a "
            f"noise multiplier to be needed; got delta={delta:g}, sample_rate={q:g}, steps={steps}"
        )

    def training(log_sigma: float) -> Training:
        return Training(((math.exp(log_sigma), q),), ((steps,),), worlds)

    def rough(log_sigma: float) -> float:
        return min(rough_epsilon(training(log_sigma), delta), 10 * target + 10) - target

    @cache
    def excess(log_sigma: float) -> float:
        [(_, [reached])] = epsilons(training(log_sigma), "auto", delta, TOLERANCE).intervals
        return min(float(reached), 10 * target + 10) - target

    # Sampling only lowers ε, so the full batch's noise is enough, up to the grid's error. A rough answer costs little,
    # and tells where to look for the precise one.
    enough = _crossing(rough, math.log(full_batch) + 0.05, stride=0.5, xtol=1e-5)
    enough = _crossing(excess, enough, stride=1e-4, xtol=1e-6)
    while math.isfinite(enough) and excess(enough) > 0:
        enough += 1e-6
    return _computable(math.exp(enough), target)


def _crossing(excess: Callable[[float], float], start: float, *, stride: float, xtol: float) -> float:
    """The logarithm of the noise multiplier at which a decreasing function reaches 0, searched for from `start`.

    It is infinite if there is none in the range that `epsilon` takes.
    """
    least, most = math.log(LEAST_NOISE), math.log(MOST_NOISE)
    one = min(max(start, least), most)
    lacking = excess(one) > 0
    while True:
        other = min(max(one + (stride if lacking else -stride), least), most)
        if other == one:
            return math.inf if lacking else -math.inf
        if (excess(other) > 0) != lacking:
            return float(brentq(excess, min(one, other), max(one, other), xtol=xtol))
        one, stride = other, 2 * stride


def _computable(sigma: float, target: float) -> float:
    """The noise multiplier, if `epsilon` takes it."""
    if LEAST_NOISE <= sigma <= MOST_NOISE:
        return sigma
    raise ValueError(
        f"target_epsilon must be {'larger' if sigma > MOST_NOISE else 'smaller'} for a noise_multiplier from "
        f"{LEAST_NOISE:g} to {MOST_NOISE:g} to meet it exactly, got {target:g}"
    )
