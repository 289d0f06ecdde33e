"""The noise multiplier that meets a target ε or a target risk."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial

from scipy.optimize import brentq

from dpsub._core import checks
from dpsub.accounting import risks
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

ANY_DELTA = 1e-2  # of a posterior that nobody asked for: the larger, the coarser a grid is enough


@checks.checked(
    "sample_rate",
    "delta",
    "adjacency",
    "sampling",
    target_epsilon=partial(checks.real, above=0),
    target_risk=checks.probability,
    measure=partial(checks.choice, options=risks.MEASURES),
    fpr=checks.probability,
    steps=STEPS,
)
def noise_multiplier(
    *,
    target_epsilon: float | None = None,
    target_risk: float | None = None,
    measure: str = "accuracy",
    prior: risks.Prior = 0.5,
    fpr: float = 0.01,
    sample_rate: float,
    steps: int,
    delta: float | None = None,
    adjacency: str,
    sampling: str = "poisson",
) -> float:
    r"""The smallest noise multiplier whose certified ε or risk is at most the target, to six digits.

    Args:
        target_epsilon: > 0.
        target_risk: in its place, a risk > 0 and < 1.
        measure: which risk: "accuracy", "advantage", "tpr", "ppv" or "posterior", as in `Risk`.
        prior, fpr: of this risk, as in `risk`.
        sample_rate, steps, adjacency, sampling: as in `epsilon`, for one number of steps.
        delta: as in `epsilon`, or as in `risk` for the measure "posterior". Other risks do without.

    Returns:
        The noise multiplier σ. A certified risk is known to 2e-5, and its noise to about as many digits.

    Raises:
        ValueError: if an argument is out of range, if not exactly one target is given, if the target risk is not above
            that of an attacker who has not seen the model, if the answer lies outside the range that `epsilon` takes,
            or if every noise multiplier meets the target because the record enters a batch too rarely.

    >>> round(noise_multiplier(target_epsilon=10, sample_rate=1, steps=500, delta=1e-5, adjacency="substitute"), 3)
    22.356
    >>> round(noise_multiplier(target_risk=0.6, sample_rate=1, steps=500, adjacency="substitute"), 3)
    88.261
    """
    if (target_epsilon is None) == (target_risk is None):
        given = "none of them" if target_risk is None else "both"
        raise ValueError(f"target_epsilon or target_risk must be given, and not both, got {given}")
    worlds = worlds_of(adjacency, sampling)
    if sampling == "epochs":
        [(_, sample_rate, steps)] = epochs([(1.0, sample_rate, steps)])
    if target_risk is not None:
        beliefs = risks.priors("prior", prior, adjacency)
        return _for_risk(target_risk, measure, beliefs, fpr, delta, sample_rate, steps, worlds)
    if delta is None:
        raise ValueError("delta must be given with target_epsilon: ε is stated at a δ")
    assert target_epsilon is not None
    return _for_epsilon(target_epsilon, sample_rate, steps, delta, worlds)


def _for_risk(
    target: float,
    measure: str,
    prior: tuple[float, ...],
    fpr: float,
    delta: float | None,
    q: float,
    steps: int,
    worlds: str,
) -> float:
    if delta is None and measure == "posterior":
        raise ValueError(
            "delta must be given with measure 'posterior': it is the probability with which this may be exceeded"
        )
    least = risks.without_model(prior, fpr)[measure]
    if target <= least:
        raise ValueError(
            f"target_risk must be > {least:g} for measure {measure!r}, got {target:g}: an attacker who has not seen "
            "the model reaches as much, which no noise changes"
        )

    @cache
    def excess(log_sigma: float) -> float:
        training = Training(((math.exp(log_sigma), q),), ((steps,),), worlds)
        found = risks.of_training(training, prior, fpr, ANY_DELTA if delta is None else delta)
        return float(getattr(found, measure)) - target

    # Where the training is about 1-GDP, by the central limit theorem (Dong, Roth and Su, 2022, section 5).
    start = -math.log(math.log1p(1 / (distance(worlds) * q * math.sqrt(steps)) ** 2)) / 2
    found = _least(excess, _crossing(excess, start, stride=0.5, xtol=1e-6))
    return _computable(found, target, "target_risk")


def _for_epsilon(target: float, q: float, steps: int, delta: float, worlds: str) -> float:
    full_batch = distance(worlds) * math.sqrt(steps) / gdp_mu(target, delta)
    if q == 1:
        return _computable(full_batch, target, "target_epsilon")
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
    return _computable(_least(excess, enough), target, "target_epsilon")


def _least(excess: Callable[[float], float], enough: float) -> float:
    """The noise multiplier at a crossing, whose logarithm is known up to 1e-6, or at the next place above it."""
    while math.isfinite(enough) and excess(enough) > 0:
        enough += 1e-6
    return math.exp(enough)


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


def _computable(sigma: float, target: float, name: str) -> float:
    """The noise multiplier, if `epsilon` takes it."""
    if LEAST_NOISE <= sigma <= MOST_NOISE:
        return sigma
    raise ValueError(
        f"{name} must be {'larger' if sigma > MOST_NOISE else 'smaller'} for a noise_multiplier from "
        f"{LEAST_NOISE:g} to {MOST_NOISE:g} to meet it exactly, got {target:g}"
    )
