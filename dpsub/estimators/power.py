"""How many runs or pairs an audit needs: the power of the tests against an attack of known strength."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from functools import partial
from typing import Unpack

import numpy as np
from scipy.special import bdtrc, bdtrik, betaincinv, chndtrix, ndtr

from dpsub import accounting
from dpsub._core import checks
from dpsub._core.random_streams import stream
from dpsub.accounting.gaussian import gdp_mu
from dpsub.estimators.claims import GDP, Claim
from dpsub.estimators.dpsgd_claim import Known, MechanismDP
from dpsub.estimators.guess_tests import Seen, room_left
from dpsub.estimators.lower_bounds import MOST_PAIRS, OF_GUESSES, claims_of
from dpsub.estimators.numerics import Array, Counts, crossing, probability_above
from dpsub.estimators.rank_tests import LEAST_RUNS, MOST_RUNS, fixed_ranks

AUDITS = 1_250  # simulated at each; the share of all that refute has a standard error of at most 0.0025
SPLITS = 32  # quantiles of the number of runs of z′ under fair coins, instead of every number
FINENESS = 1.005  # the answer is looked for among numbers of runs that differ by half a percent
QUANTILES = 400  # of how clear the last guess is
planned = partial(
    checks.checked,
    "delta",
    "alpha",
    epsilon=partial(checks.real, above=0),
    truth=checks.real,
    power=partial(checks.real, at_least=0.01, at_most=0.99),
)


@planned(claim=partial(checks.choice, options=("gdp", "dp", "pld")))
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

    The runs must be independent: one run is one trained model, with its own coin and its own randomness. For many
    pairs in one run see `pairs_needed`.

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
    _check_truth(epsilon, truth)
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

    if runs := _fewest(reached, 2 * LEAST_RUNS, MOST_RUNS, factor=4):
        return runs
    raise ValueError(
        f"truth must be further above epsilon = {epsilon:g}, got {truth}: a bound that reaches epsilon takes more than "
        f"{MOST_RUNS:g} runs"
    )


@planned(claim=partial(checks.choice, options=("gdp", "dp", "product")))
def pairs_needed(
    epsilon: float, *, delta: float, truth: float, power: float = 0.8, claim: str = "gdp", alpha: float = 0.05
) -> int:
    r"""How many pairs, each with its coin, until the bound of one run is likely to reach epsilon.

    It is `runs_needed` for an audit of many pairs in one run, by the bound that `dpsub.bound` gives with its own number
    of guesses. What all of them being right would show is the ceiling: see `one_run_epsilon_lower_bound`.

    This is about pairs whose scores are Gaussian, μ standard deviations apart in the two worlds, with the μ whose ε is
    `truth` at delta, and about scores that depend on their own coin alone. That is an assumption about your attack:
    pairs that disturb each other or that are less far apart need more. Claims "gdp" and "dp" do not use it, and hold
    however pairs disturb each other; so they need many pairs, and seldom come near the truth.

    Args:
        epsilon: > 0; the bound to be reached.
        delta: 0 < δ < 1; the δ at which both ε are stated.
        truth: > epsilon; the ε of one pair's score.
        power: 0.01 to 0.99; the probability with which the bound is to be at least epsilon.
        claim: "gdp", "dp" or "product", as in `one_run_epsilon_lower_bound`.
        alpha: as in `one_run_epsilon_lower_bound`. For several numbers of guesses, give alpha divided by how many.

    Returns:
        The number of pairs; each tosses a fair coin. Pairs of several models that are guessed together count together.
        Some larger numbers may have slightly less power, since guesses are whole numbers. For claim "dp" far larger
        numbers have none, since 2·pairs·delta grows.

    Raises:
        ValueError: if truth is not above epsilon, if no number of pairs up to 1e6 is enough, or if an argument is out
            of range.

    >>> 600 < pairs_needed(5, delta=1e-5, truth=10) < 700
    True
    """
    _check_truth(epsilon, truth)
    [tested] = claims_of(claim, delta, {}, known=OF_GUESSES)
    parameter, mu = _parameter(tested, epsilon), gdp_mu(truth, delta)

    def reached(pairs: int) -> bool:
        return power_of_guesses(pairs, tested, parameter, mu, alpha) >= power

    if pairs := _fewest(reached, 1, MOST_PAIRS, factor=1.25):
        return pairs
    raise ValueError(
        f"truth must be further above epsilon = {epsilon:g}, got {truth:g}: by claim {claim!r} no number of pairs up "
        f"to {MOST_PAIRS:g} is enough; runs_needed tells how many runs of one pair are"
    )


def _check_truth(epsilon: float, truth: float) -> None:
    if not truth > epsilon:
        raise ValueError(f"truth must be > epsilon = {epsilon:g}, got {truth:g}: no valid bound reaches the truth")


def _fewest(reached: Callable[[int], bool], enough: int, most: int, factor: float) -> int | None:
    """The smallest number, up to `FINENESS`, that is enough, among those from `enough` to `most`; None if none is."""
    few = enough - 1
    while not reached(enough):
        if enough == most:
            return None
        few, enough = enough, min(max(enough + 1, int(factor * enough)), most)
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


def power_of_guesses(pairs: int, claim: Claim, parameter: float, mu: float, alpha: float) -> float:
    """The probability that guesses of one run refute the claim if scores are N(μ/2, 1) and N(−μ/2, 1)."""
    made = claim.guesses(pairs)

    def refutes(right: int) -> bool:
        seen = Seen(right, made, pairs)
        if type(claim) is GDP:  # the same, without looking for the largest parameter
            return room_left(claim, parameter, seen, alpha) < 0
        return claim.refuted_by_guesses(seen, alpha) >= parameter

    least = bisect_left(range(made + 1), True, key=refutes)
    # Given the clearest score that is not guessed, guesses are right independently of each other. Its size is exceeded
    # with a probability that is an order statistic of uniform numbers. Sizes squared have a noncentral χ² law.
    beyond = betaincinv(made + 1, pairs - made, (np.arange(QUANTILES) + 0.5) / QUANTILES) if made < pairs else 1.0
    size = np.sqrt(chndtrix(1 - beyond, 1, (mu / 2) ** 2))
    right, wrong = ndtr(mu / 2 - size), ndtr(-mu / 2 - size)
    return float(np.mean(bdtrc(least - 1, made, right / (right + wrong))))


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
    return crossing(lambda parameter: claim.epsilon(parameter) - epsilon, 0.0, claim.most)
