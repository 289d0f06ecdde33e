"""The noise multiplier that meets a target ε."""

from __future__ import annotations

import math
from functools import partial

from scipy.optimize import brentq

from dpsub._core import checks
from dpsub.accounting.engines import TOLERANCE, epsilons
from dpsub.accounting.gaussian import gdp_mu
from dpsub.accounting.phases import Training, distance
from dpsub.accounting.samplings import check_adjacency, epochs

ROUGH = 1e9  # an error so large that the coarsest grid meets it


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
        ValueError: if an argument is out of range, or if every noise multiplier meets the target because the record
            enters any batch with probability at most δ.

    >>> round(noise_multiplier(target_epsilon=10, sample_rate=1, steps=500, delta=1e-5, adjacency="substitute"), 3)
    22.356
    """
    target = checks.real("target_epsilon", target_epsilon, above=0)
    q = checks.real("sample_rate", sample_rate, above=0, at_most=1)
    steps = checks.whole("steps", steps)
    delta = checks.probability("delta", delta)
    checks.adjacency(adjacency)
    check_adjacency(sampling, adjacency)
    if sampling == "epochs":
        [(_, q, steps)] = epochs([(1.0, q, steps)])

    full_batch = distance(adjacency) * math.sqrt(steps) / gdp_mu(target, delta)
    if q == 1:
        return full_batch
    if -math.expm1(steps * math.log1p(-q)) <= delta:
        raise ValueError(
            f"delta must be smaller than the probability of ever being sampled, 1 - (1 - sample_rate)**steps, for a "
            f"noise multiplier to be needed; got delta={delta:g}, sample_rate={q:g}, steps={steps}"
        )

    def excess(log_sigma: float, *, rough: bool) -> float:
        training = Training(((math.exp(log_sigma), q),), ((steps,),), adjacency)
        error = ROUGH if rough else TOLERANCE
        [(_, [reached])] = epsilons(training, "auto", delta, error).intervals
        return min(float(reached), 10 * target + 10) - target

    # Sampling only lowers ε, so the full batch's noise is enough, up to the grid's error. Precise bounds are lower than
    # rough ones, so the rough answer is enough too, and close.
    enough = math.log(full_batch) + 0.05
    while excess(enough, rough=True) > 0:
        enough += 0.5
    for rough, stride in ((True, 0.5), (False, 0.01)):
        too_little = enough - stride
        while excess(too_little, rough=rough) <= 0:
            enough, too_little = too_little, too_little - stride
        enough = float(brentq(partial(excess, rough=rough), too_little, enough, xtol=1e-6))
        while excess(enough, rough=rough) > 0:
            enough += 1e-6
    return math.exp(enough)
