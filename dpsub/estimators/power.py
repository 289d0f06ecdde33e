"""How many runs an audit needs: the power of the rank test against an attack of known strength."""

from __future__ import annotations

import math
from functools import partial
from typing import Unpack

import numpy as np

from dpsub import accounting
from dpsub._core import checks
from dpsub._core.random_streams import stream
from dpsub.accounting.gaussian import gdp_mu
from dpsub.estimators.catalogue import OTHER_METHODS, claims_of
from dpsub.estimators.claims import GDP, ApproximateDP, Claim
from dpsub.estimators.dpsgd_claim import MechanismDP, Sampling
from dpsub.estimators.rank_tests import LEAST_RUNS, MOST_RUNS, fixed_ranks, p_value

PLANNED = ("gdp", "dp", "pld")
AUDITS = 20_000  # simulated; a share of them has a standard error of at most 0.0036
FEW_RUNS = 200  # up to which every number of runs of z′ is taken with its own probability
# With more, Gauss–Hermite: the runs of z′ under fair coins, in standard deviations from their mean, and their weights.
COINS = ((-math.sqrt(3), 1 / 6), (0.0, 2 / 3), (math.sqrt(3), 1 / 6))
FINENESS = 1.005  # the answer is looked for among numbers of runs that differ by half a percent


@checks.checked(
    "delta",
    "alpha",
    epsilon=partial(checks.real, above=0),
    truth=checks.real,
    power=partial(checks.real, at_least=0.01, at_most=0.99),
    method=partial(checks.choice, options=PLANNED, others=OTHER_METHODS),
)
def runs_needed(
    epsilon: float,
    *,
    delta: float,
    truth: float,
    power: float = 0.8,
    method: str = "gdp",
    alpha: float = 0.05,
    **mechanism: Unpack[Sampling],
) -> int:
    r"""How many runs, both worlds together, until the bound of the rank test is likely to reach epsilon.

    `max_certifiable_epsilon` is the ceiling of a perfect attack, which makes no errors. This is about an attack that
    makes as many errors as an attack of strength `truth` has to: its trade-off function is that of μ-GDP, with the μ
    whose ε is `truth` at delta; for method "pld" it is that of the mechanism, with the noise whose ε is `truth`. That
    is an assumption about your attack. A weaker attack needs more runs, and one whose own ε is below `epsilon` never
    gets there. The accountant's ε is the most that `truth` can be; a bound from a pilot audit is a cautious guess.

    The runs must be independent: one run is one trained model, with its own coin and its own randomness.

    Args:
        epsilon: > 0; the bound to be reached.
        delta: 0 < δ < 1; the δ at which both ε are stated.
        truth: > epsilon; the attack's own ε.
        power: 0.01 to 0.99; the probability with which the bound of one step's scores is to be at least epsilon.
        method: "gdp", "dp" or "pld", as in `epsilon_lower_bound`; the threshold is "ranks".
        alpha: as in `epsilon_lower_bound`. For bounds at several steps with simultaneous=True, give alpha divided by
            the number of steps.
        mechanism: for method "pld" the `sample_rate`, `steps` and `adjacency` of the training, and its `sampling`.

    Returns:
        The number of runs; each tosses a fair coin for its world. It comes from 20,000 simulated audits
        with fixed seeds, so the power that was computed for it is within 0.01 of its own. Some larger numbers may have
        slightly less, since the test's counts are whole numbers.

    Raises:
        ValueError: if truth is not above epsilon, if more than 1e9 runs are needed, or if an argument is out of range.

    >>> 490 < runs_needed(8, delta=1e-5, truth=10) < 520
    True
    """
    if not truth > epsilon:
        raise ValueError(f"truth must be > epsilon = {epsilon:g}, got {truth:g}: no valid bound reaches the truth")
    [claim] = claims_of(method, None, delta, mechanism)
    parameter = _parameter(claim, epsilon)
    attack = claim if isinstance(claim, MechanismDP) else GDP(delta)
    strength = _parameter(attack, truth)

    def reached(runs: int) -> bool:
        return power_of(runs, claim, parameter, attack, strength, alpha) >= power

    few, enough = 2 * LEAST_RUNS - 1, 2 * LEAST_RUNS
    while not reached(enough):
        if enough == MOST_RUNS:
            raise ValueError(
                f"truth must be further above epsilon = {epsilon:g}, got {truth}: a bound that reaches epsilon takes "
                f"more than {MOST_RUNS:g} runs"
            )
        few, enough = enough, min(2 * enough, MOST_RUNS)
    while enough > few + 1 and enough > FINENESS * few:
        between = (few + enough) // 2
        few, enough = (few, between) if reached(between) else (between, enough)
    return enough


def power_of(runs: int, claim: Claim, parameter: float, attack: Claim, strength: float, alpha: float) -> float:
    """The probability that the rank test refutes the claim if the attack has the trade-off function of another."""
    rng = stream(0, "plan")
    refuted = 0
    for negatives, weight in _coins(runs):
        if LEAST_RUNS <= negatives < runs:
            refuted += _refuted(
                negatives, runs - negatives, claim, parameter, attack, strength, alpha, round(weight * AUDITS), rng
            )
    return refuted / AUDITS


def _coins(runs: int) -> list[tuple[int, float]]:
    """Numbers of runs of z′ under fair coins, and the weight of each."""
    if runs > FEW_RUNS:
        return [(round(runs / 2 + deviation * math.sqrt(runs) / 2), weight) for deviation, weight in COINS]
    return [(count, math.comb(runs, count) / 2**runs) for count in range(runs + 1)]


def _refuted(
    negatives: int,
    positives: int,
    claim: Claim,
    parameter: float,
    attack: Claim,
    strength: float,
    alpha: float,
    audits: int,
    rng: np.random.Generator,
) -> int:
    """How many simulated audits refute the claim at any rank."""
    if not audits:
        return 0
    ranks = sorted(fixed_ranks(claim, negatives).items())
    # The false-positive rates at the ranks are order statistics of uniform numbers.
    gaps = np.diff([0, *(rank for rank, _ in ranks), negatives + 1])
    parts = rng.gamma(gaps, size=(audits, len(gaps))).cumsum(axis=1)
    fnr = attack.tradeoff(parts[:, :-1] / parts[:, -1:], strength)
    missed, remaining = np.full(audits, positives), np.ones(audits)
    refuted = np.zeros(audits, bool)
    for (rank, share), rate in zip(ranks, fnr.T, strict=True):
        # Of the runs of z below the last rank's score, those that are below this one's, too.
        below = np.divide(rate, remaining, out=np.zeros(audits), where=remaining > 0)
        missed, remaining = rng.binomial(missed, np.minimum(below, 1.0)), rate
        refuted |= missed <= _most_missed(claim, parameter, rank, negatives, positives, share * alpha)
    return int(refuted.sum())


def _most_missed(claim: Claim, parameter: float, rank: int, negatives: int, positives: int, level: float) -> int:
    """The most false negatives with which the test refutes the claim at this rank; -1 if it never does."""
    most, too_many = -1, positives
    while too_many > most + 1:
        between = (most + too_many) // 2
        counts = {"rank": rank, "negatives": negatives, "false_negatives": between, "positives": positives}
        p = p_value(claim, parameter, **counts)
        most, too_many = (between, too_many) if p <= level else (most, between)
    return most


def _parameter(claim: Claim, epsilon: float) -> float:
    """The parameter of the claim with this epsilon."""
    if isinstance(claim, ApproximateDP):
        return epsilon
    if not isinstance(claim, MechanismDP) or claim.sample_rate == 1:
        return gdp_mu(epsilon, claim.delta)
    sigma = accounting.noise_multiplier(
        target_epsilon=epsilon, sample_rate=claim.sample_rate, steps=claim.steps, delta=claim.delta,
        adjacency=claim.adjacency, sampling=claim.sampling,
    )  # fmt: skip
    return claim.noise_multiplier(sigma)  # its own inverse
