"""The noise multiplier that meets a target ε or a target risk."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial

from scipy.optimize import brentq

from dpsub._core import checks
from dpsub.accounting import risks
from dpsub.accounting.dominating_pairs import LEAST_NOISE, MOST_NOISE
from dpsub.accounting.engines import TOLERANCE, epsilons, rough_epsilon
from dpsub.accounting.gaussian import gdp_mu
from dpsub.accounting.phases import STEPS, Training
from dpsub.accounting.samplings import Sampling

ANY_DELTA = 1e-2  # for measures that need none: a large δ needs only a coarse grid


@checks.checked(
    "sample_rate",
    "delta",
    "adjacency",
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
    sampling: Sampling | str = "poisson",
) -> float:
    r"""The smallest noise multiplier whose certified ε or risk is at most the target, to six digits.

    Args:
        target_epsilon: > 0.
        target_risk: the risk to meet instead, > 0 and < 1.
        measure: which risk: "accuracy", "advantage", "tpr", "ppv" or "posterior", as in `Risk`.
        prior, fpr: of this risk, as in `risk`.
        sample_rate, steps, adjacency, sampling: as in `epsilon`, for one number of steps.
        delta: as in `epsilon`, or as in `risk` for the measure "posterior". Other risks need none.

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
    sampling = Sampling.of(sampling)
    sampling.check_adjacency(adjacency)
    [(_, q, count)] = sampling.phases([(1.0, sample_rate, steps)])

    def training(log_sigma: float) -> Training:
        return Training(((math.exp(log_sigma), q),), ((count,),), sampling, adjacency)

    if target_risk is not None:
        name, target, beliefs = "target_risk", target_risk, risks.priors("prior", prior, adjacency)
        if delta is None and measure == "posterior":
            raise ValueError(
                "delta must be given with measure 'posterior': it is the probability with which this may be exceeded"
            )
        if target <= (least := risks.without_model(beliefs, fpr)[measure]):
            raise ValueError(
                f"target_risk must be > {least:g} for measure {measure!r}, got {target:g}: an attacker who has not "
                "seen the model reaches as much, which no noise changes"
            )

        def reached(log_sigma: float) -> float:
            risk = risks.risk_of(training(log_sigma), beliefs, fpr, ANY_DELTA if delta is None else delta)
            return float(getattr(risk, measure))

        # Where the training is about 1-GDP, by the central limit theorem (Dong, Roth and Su, 2022, section 5).
        start, stride = -math.log(math.log1p(1 / (sampling.distance(adjacency) * q * math.sqrt(count)) ** 2)) / 2, 0.5
    else:
        assert target_epsilon is not None
        if delta is None:
            raise ValueError("delta must be given with target_epsilon: ε is stated at a δ")
        name, target = "target_epsilon", target_epsilon
        full_batch = sampling.distance(adjacency) * math.sqrt(count) / gdp_mu(target, delta)
        if q == 1:
            return _computable(full_batch, target, name)
        if -math.expm1(count * math.log1p(-q)) <= delta:
            raise ValueError(
                f"delta must be smaller than the probability of ever being sampled, 1 - (1 - sample_rate)**steps, for "
                f"a noise multiplier to be needed; got delta={delta:g}, sample_rate={q:g}, steps={count}"
            )

        # Both answers are cut far above the target: they can be infinite, which no search for a root can use.
        def rough(log_sigma: float) -> float:
            return min(rough_epsilon(training(log_sigma), delta), 10 * target + 10) - target

        def reached(log_sigma: float) -> float:
            [(_, [epsilon])] = epsilons(training(log_sigma), "auto", delta, TOLERANCE)
            return min(float(epsilon), 10 * target + 10)

        # Sampling only lowers ε, so the full batch's noise is enough, up to the grid's error. A rough answer costs
        # little, and tells where to look for the precise one.
        start, stride = _crossing(rough, math.log(full_batch) + 0.05, stride=0.5, xtol=1e-5), 1e-4

    excess = cache(lambda log_sigma: reached(log_sigma) - target)
    enough = _crossing(excess, start, stride=stride, xtol=1e-6)
    while math.isfinite(enough) and excess(enough) > 0:
        enough += 1e-6
    return _computable(math.exp(enough), target, name)


def _crossing(excess: Callable[[float], float], start: float, *, stride: float, xtol: float) -> float:
    """The logarithm of the noise multiplier at which a decreasing function reaches 0, searched for from `start`.

    It is infinite if there is none in the range that `epsilon` takes.
    """
    least, most = math.log(LEAST_NOISE), math.log(MOST_NOISE)
    place = min(max(start, least), most)
    lacking = excess(place) > 0
    while True:
        following = min(max(place + (stride if lacking else -stride), least), most)
        if following == place:
            return math.inf if lacking else -math.inf
        if (excess(following) > 0) != lacking:
            return float(brentq(excess, min(place, following), max(place, following), xtol=xtol))
        place, stride = following, 2 * stride


def _computable(sigma: float, target: float, name: str) -> float:
    """The noise multiplier, if it is in the range that `epsilon` takes."""
    if LEAST_NOISE <= sigma <= MOST_NOISE:
        return sigma
    raise ValueError(
        f"{name} must be {'larger' if sigma > MOST_NOISE else 'smaller'} for a noise_multiplier from "
        f"{LEAST_NOISE:g} to {MOST_NOISE:g} to meet it exactly, got {target:g}"
    )
