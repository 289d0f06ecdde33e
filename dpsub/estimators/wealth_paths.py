"""The wealth of bets against one claim, observation after observation."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from dpsub._core import checks
from dpsub.accounting.gaussian import gdp_mu
from dpsub.estimators.betting import SLOPES, STEEPEST, path
from dpsub.estimators.claims import GDP, ApproximateDP, Array, Claim
from dpsub.estimators.lessons import FIRST
from dpsub.estimators.scores import scores_and_bits

MOST_EPSILON = 100.0  # odds of a bet are finite there


def wealth_of_bets(scores: ArrayLike, bits: ArrayLike, *, epsilon: float, delta: float, method: str = "gdp") -> Array:
    r"""The logarithm of the wealth of bets against the claim that one observation has this ε at this δ.

    Wealth starts at 1. If the claim holds, it ever reaches 1/α with probability at most α, whatever observations owe to
    those before. So the claim is refuted, at confidence 1 − α, where the logarithm first reaches ln(1/α).

    Args:
        scores: (observations,) in the order in which they were made; higher speaks for z.
        bits: (observations,) of 0 (z) and 1 (z′), a fair coin for each; both must occur.
        epsilon: > 0 and at most 100; the claim, at `delta`.
        delta: 0 < δ < 1.
        method: "gdp", the claim of the μ-GDP with this ε at `delta`, or "dp", that of (ε, δ)-DP.

    Returns:
        (observations,) natural logarithms, 0 for the first 64, from which the bets are learnt.

    Raises:
        ValueError: if scores are not (observations,), are empty, NaN or not as many as bits, or if an argument is out
            of range.

    Source: Waudby-Smith and Ramdas (2024); Ville (1939).

    >>> rng = np.random.default_rng(0)
    >>> bits = rng.integers(0, 2, 1_000)
    >>> scores = rng.normal(size=1_000) + (bits == 0)  # μ = 1, so ε = 4.38 at δ = 1e-5
    >>> against_half, against_all = (wealth_of_bets(scores, bits, epsilon=e, delta=1e-5) for e in (2.0, 4.38))
    >>> bool(against_half.max() > np.log(20)), bool(against_all.max() > np.log(20))
    (True, False)
    """
    columns, in_z, several = scores_and_bits(scores, bits)
    if several:
        raise ValueError(f"scores must have shape (observations,), got {columns.shape}: give one column")
    epsilon = checks.real("epsilon", epsilon, above=0, at_most=MOST_EPSILON)
    delta = checks.probability("delta", delta)
    checks.choice("method", method, ("gdp", "dp"))
    claim: Claim = GDP(delta) if method == "gdp" else ApproximateDP(delta)
    parameter = gdp_mu(epsilon, delta) if method == "gdp" else epsilon
    slopes = np.linspace(0.0, claim.steepest(STEEPEST, parameter), SLOPES)
    known = min(FIRST, len(columns))
    return np.concatenate((np.zeros(known), path(columns[:, 0], in_z, slopes, claim.deltas(slopes, parameter))))
