r"""The law of the sum over T steps that the adversary of S1 sees, in units of the clipping bound.

Given z it is :math:`\sum_k \mathrm{Bin}(k; T, q)\, N(k, T\sigma^2)`. Given z′ it is the mirror image or, if the slot is
empty, N(0, Tσ²) (*Beyond Membership*, equations 2 and 3).
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np
from scipy.optimize import brentq
from scipy.special import gammaln, log_ndtr, logsumexp, ndtri_exp, xlog1py, xlogy

from dpsub._core import checks
from dpsub.accounting.dominating_pairs import Array
from dpsub.accounting.phases import NOISE

MOST_STEPS = 10**6  # of `worst_case_epsilon`: a few seconds
TERMS = 2**18  # of the sum, computed at once


def _log_weights(sample_rate: float, steps: int) -> tuple[Array, Array]:
    """The counts 0 … steps, and the log-probability that the canary is sampled each number of times."""
    counts = np.arange(steps + 1.0)
    weights = (
        gammaln(steps + 1) - gammaln(counts + 1) - gammaln(steps - counts + 1)
        + xlogy(counts, sample_rate) + xlog1py(steps - counts, -sample_rate)
    )  # fmt: skip
    return counts, weights


def log_likelihood_ratio(
    sums: Array, *, noise_multiplier: float, sample_rate: float, steps: int, adjacency: str
) -> Array:
    """log Pr(sum | z) − log Pr(sum | z′), increasing in the sum.

    The Gaussian factor that both worlds share is cancelled before the summation, so large sums do not overflow.
    """
    variance = steps * noise_multiplier**2
    counts, weights = _log_weights(sample_rate, steps)
    weights = weights - counts**2 / (2 * variance)
    # Only counts that contribute somewhere in the range of the sums are kept; other terms are below e^-50 of the
    # largest. The exponent is concave in the count, so these counts lie between those that matter at the two ends.
    reach = np.abs(sums).max(initial=0.0)
    terms = weights + counts * np.array([[-reach], [reach]]) / variance
    matter = np.flatnonzero((terms >= terms.max(axis=1, keepdims=True) - 50).any(axis=0))
    kept = slice(matter[0], matter[-1] + 1)
    weights, slopes = weights[kept], counts[kept] / variance

    def log_mixture(x: Array) -> Array:
        answers = []
        for part in np.array_split(x, len(x) * len(slopes) // TERMS + 1):
            terms = weights + slopes * part[:, None]
            top = terms.max(axis=1)
            terms -= top[:, None]
            answers.append(top + np.log(np.exp(terms, out=terms).sum(axis=1)))
        return np.concatenate(answers)

    if adjacency == "substitute":
        return log_mixture(sums) - log_mixture(-sums)
    return log_mixture(sums)


def log_above(x: float, sign: int, *, noise_multiplier: float, sample_rate: float, steps: int) -> float:
    """log Pr(sum > x), given z (`sign` +1) or the mirrored z′ (−1)."""
    counts, weights = _log_weights(sample_rate, steps)
    return float(logsumexp(weights + log_ndtr((sign * counts - x) / (np.sqrt(steps) * noise_multiplier))))


@checks.checked("sample_rate", "delta", noise_multiplier=NOISE, steps=partial(checks.whole, at_most=MOST_STEPS))
def worst_case_epsilon(*, noise_multiplier: float, sample_rate: float, steps: int, delta: float) -> float:
    r"""The exact substitute ε against an adversary who sees only the sum over all steps.

    Infinitely many runs of S1 would show this ε. `epsilon` covers an adversary who sees every step. At q = 1 the two
    agree; elsewhere they differ by what the threat model hides, not by what a finite number of runs fails to show.

    The likelihood ratio increases in the sum x, so the best event at ε is the half-line from the x whose log-ratio is
    ε, and δ(ε) follows from the tails of the two mixtures. The arguments are those of `epsilon`; `steps` is one number,
    at most 1e6.

    Source: *Beyond Membership*, section 3.1, equation 3.

    >>> round(worst_case_epsilon(noise_multiplier=1.6772842407, sample_rate=0.0625, steps=500, delta=1e-5), 4)
    7.9237
    """
    log_ratio = partial(log_likelihood_ratio, noise_multiplier=noise_multiplier, sample_rate=sample_rate, steps=steps)
    log_tail = partial(log_above, noise_multiplier=noise_multiplier, sample_rate=sample_rate, steps=steps)

    def ratio(x: float) -> float:
        return float(log_ratio(np.array([x]), adjacency="substitute")[0])

    def excess(x: float) -> float:
        """Increases with δ at the ratio of x, and is 0 where that is `delta`. It is accurate for δ close to 0 or 1."""
        above, weighted = log_tail(x, 1), ratio(x) + log_tail(x, -1)
        if delta < 0.5:
            return above + math.log(max(-math.expm1(min(weighted - above, 0.0)), 1e-300)) - math.log(delta)
        return (1 - delta) - math.exp(log_tail(-x, -1)) - math.exp(min(weighted, 0.0))

    if excess(0.0) <= 0:
        return 0.0
    beyond = float(ndtri_exp(math.log(delta) - math.log(2)))
    farthest = steps - math.sqrt(steps) * noise_multiplier * beyond  # less than δ lies beyond, in either world
    return ratio(float(brentq(excess, 0.0, farthest, xtol=1e-10)))
