"""How many runs an audit needs: the power of the rank test against an attack of known strength."""

from __future__ import annotations

from functools import partial
from typing import Unpack

import numpy as np
from scipy.special import bdtrik

from dpsub import accounting
from dpsub._core import checks
from dpsub._core.random_streams import stream
from dpsub.accounting.gaussian import gdp_mu
from dpsub.estimators.claims import GDP, Claim
from dpsub.estimators.dpsgd_claim import Known, MechanismDP
from dpsub.estimators.lower_bounds import claims_of
from dpsub.estimators.numerics import Array, Counts, crossing, probability_above
from dpsub.estimators.rank_tests import LEAST_RUNS, MOST_RUNS, fixed_ranks

AUDITS = 1_250  # simulated at each; the share of all that refute has a standard error of at most 0.0025
SPLITS = 32  # quantiles of the number of runs of z′ under fair coins, instead of every number
FINENESS = 1.005  # the answer is looked for among numbers of runs that differ by half a percent


@checks.checked(
    "delta",
    "alpha",
    epsilon=partial(checks.real, above=0),
    truth=checks.real,
    power=partial(checks.real, at_least=0.01, at_most=0.99),
    claim=partial(checks.choice, options=("gdp", "dp", "pld")),
)
def runs_needed(
    epsilon: float,
    *,
    delta: float,
    truth: float,
    power: float = 0.8,
    claim: str = "gdp",
    alpha: float = 0.05,
    **mechanism: Unpack[Known],
) -> int:
    r"""How many runs, both worlds together, until the bound of the rank test is likely to reach epsilon.

    `max_certifiable_epsilon` is the ceiling of a perfect attack, which makes no errors. This is about an attack that
    makes as many errors as an attack of strength `truth` has to: its trade-off function is that of μ-GDP, with the μ
    whose ε is `truth` at delta; for claim "pld" it is that of the mechanism, with the noise whose `accounting.epsilon`
    is `truth`. That is an assumption about your attack. A weaker attack needs more runs, and one whose own ε is below
    `epsilon` never gets there. The accountant's ε is the most that `truth` can be; a bound from a pilot audit is a
    cautious guess.

    With batches of fixed size a bound states what noise attains, which is less than `accounting.epsilon` guarantees.
    The curve is certified for any data set, and no attack is known that makes so few errors over many steps: with
    q = 0.1, 100 steps and a truth of 6, runs reach 5 here, and `audit_worst_case` shows 4.3 at most.

    The runs must be independent: one run is one trained model, with its own coin and its own randomness.

    Args:
        epsilon: > 0; the bound to be reached.
        delta: 0 < δ < 1; the δ at which both ε are stated.
        truth: > epsilon; the attack's own ε.
        power: 0.01 to 0.99; the probability with which the bound of one step's scores is to be at least epsilon.
        claim: "gdp", "dp" or "pld", as in `epsilon_lower_bound`; the rule is "ranks".
        alpha: as in `epsilon_lower_bound`. For bounds at several steps with simultaneous=True, give alpha divided by
            the number of steps.
        mechanism: for claim "pld" the `sample_rate`, `steps` and `adjacency` of the training, and its `sampling`.

    Returns:
        The number of runs; each tosses a fair coin for its world. It comes from 40,000 simulated audits
        with fixed seeds, at 32 quantiles of the coins, so the power that was computed for it is within 0.015 of its
        own. Some larger numbers may have slightly less, since the test's counts are whole numbers.

    Raises:
        ValueError: if truth is not above epsilon, if the noise of `truth` does not attain epsilon, if more than 1e9
            runs are needed, or if an argument is out of range.

    >>> 490 < runs_needed(8, delta=1e-5, truth=10) < 520
    True
    """
    if not truth > epsilon:
        raise ValueError(f"truth must be > epsilon = {epsilon:g}, got {truth:g}: no valid bound reaches the truth")
    [tested] = claims_of(claim, delta, mechanism)
    parameter = _parameter(tested, epsilon)
    if isinstance(tested, MechanismDP):
        attack: Claim = tested
        sigma = accounting.noise_multiplier(target_epsilon=truth, delta=delta, **tested.training)
        strength = min(tested.noise_multiplier(sigma), tested.most)
        if parameter >= strength:
            raise ValueError(
                f"epsilon must be < {tested.epsilon(strength):.4g} for truth = {truth:g}, got {epsilon:g}: a bound by "
                f"claim 'pld' states what noise attains, and noise_multiplier = {sigma:.4g} attains no more"
            )
    else:
        attack, strength = GDP(delta), gdp_mu(truth, delta)

    def reached(runs: int) -> bool:
        return power_of(runs, tested, parameter, attack, strength, alpha) >= power

    few, enough = 2 * LEAST_RUNS - 1, 2 * LEAST_RUNS
    while not reached(enough):
        if enough == MOST_RUNS:
            raise ValueError(
                f"truth must be further above epsilon = {epsilon:g}, got {truth}: a bound that reaches epsilon takes "
                f"more than {MOST_RUNS:g} runs"
            )
        few, enough = enough, min(4 * enough, MOST_RUNS)
    while enough > few + 1 and enough > FINENESS * few:
        between = (few + enough) // 2
        few, enough = (few, between) if reached(between) else (between, enough)
    return enough


def power_of(runs: int, claim: Claim, parameter: float, attack: Claim, strength: float, alpha: float) -> float:
    """The probability that the rank test refutes the claim if the attack has the trade-off function of another."""
    rng = stream(0, "plan")
    tests, missed = [], []
    splits = np.ceil(bdtrik((np.arange(SPLITS) + 0.5) / SPLITS, runs, 0.5))
    for negatives in splits[(splits >= LEAST_RUNS) & (splits < runs)].astype(int).tolist():
        shares = dict(sorted(fixed_ranks(claim, negatives).items()))
        tests += [(rank, negatives, share * alpha) for rank, share in shares.items()]
        missed.append(_simulated(list(shares), negatives, runs - negatives, attack, strength, rng))
    most = iter(_most_missed(claim, parameter, runs, np.array(tests), np.concatenate(missed)).tolist())
    refuted = [np.any([at_rank <= next(most) for at_rank in of_split], axis=0) for of_split in missed]
    return float(np.sum(refuted)) / (SPLITS * AUDITS)


def _simulated(
    ranks: list[int], negatives: int, positives: int, attack: Claim, strength: float, rng: np.random.Generator
) -> Counts:
    """(ranks, AUDITS): the false negatives at each rank in simulated audits."""
    # The false-positive rates at the ranks are order statistics of uniform numbers.
    gaps = np.diff([0, *ranks, negatives + 1])
    parts = rng.gamma(gaps, size=(AUDITS, len(gaps))).cumsum(axis=1)
    fnr = attack.tradeoff(parts[:, :-1] / parts[:, -1:], strength)
    missed, remaining = np.full(AUDITS, positives), np.ones(AUDITS)
    at_ranks = []
    for rate in fnr.T:
        # Of the runs of z below the last rank's score, those that are below this one's, too.
        below = np.divide(rate, remaining, out=np.zeros(AUDITS), where=remaining > 0)
        missed, remaining = rng.binomial(missed, np.minimum(below, 1.0)), rate
        at_ranks.append(missed)
    return np.array(at_ranks)


def _most_missed(claim: Claim, parameter: float, runs: int, tests: Array, missed: Counts) -> Array:
    """For each (rank, negatives, level) the most of these false negatives with which the test refutes the claim."""
    rank, negatives, level = tests.T
    most, too_many = missed.min(axis=1) - 1.0, missed.max(axis=1) + 1.0
    while (wide := too_many > most + 1).any():
        between = np.floor((most[wide] + too_many[wide]) / 2)
        rates = rank[wide], (negatives - rank + 1)[wide]
        counts = between + 1, (runs - negatives)[wide] - between
        refuted = probability_above(claim, parameter, rates, counts) <= level[wide]
        most[wide] = np.where(refuted, between, most[wide])
        too_many[wide] = np.where(refuted, too_many[wide], between)
    return np.asarray(most)


def _parameter(claim: Claim, epsilon: float) -> float:
    """The parameter at which a bound states this epsilon; `claim.most` if none does."""
    if isinstance(claim, GDP):
        return gdp_mu(epsilon, claim.delta)
    return crossing(lambda parameter: claim.epsilon(parameter) - epsilon, 0.0, claim.most)
