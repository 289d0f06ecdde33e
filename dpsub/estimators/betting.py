r"""Bets against a claim, for observations that depend on the past.

Observation t is a score with a coin of its own. Let A be an event that is chosen from the past. A claim with the
privacy curve δ(ε) says that :math:`P(A \mid z) - e^{\varepsilon} P(A \mid z') \le \delta(\varepsilon)` given the past,
for every ε, and the same with the worlds exchanged. The coin is fair, so

.. math:: X = 2\cdot 1[A, z] - 2e^{\varepsilon}\cdot 1[A, z'] - \delta(\varepsilon)

has an expectation of at most 0 given the past. A bet multiplies the wealth by 1 + λX, where λ ≥ 0 is small enough that
this is never negative. Mixtures of bets are bets. While the claim holds, the wealth of any bettor is a nonnegative
supermartingale: it ever reaches 1/α with probability at most α (Ville's inequality), whatever the bettor has learnt
from the past, and whenever one stops.

The bettor here bets on nine pairs of scores at once: that z is above one quantile of the past's scores and z′ below its
mirror image. Its slopes ε are those at which the past's rates contradict the claim most, and its weights are those that
would have made most of the past.

A step may hold k canaries, each of a record and with a coin of its own. The claim is made of each record, given all
others. So each of the k bets has an expectation of at most 1 given the past and the other canaries' coins, and so has
their mean given the past, however the bets of a step depend on each other. The mean multiplies the wealth. The product
could grow although the claim holds: all k events may happen, or none, by the same luck. Means of many bets hardly vary,
so their bettor chooses slopes at which the largest λ wins most, and learns fast.

Source: Waudby-Smith and Ramdas (2024); Cover (1991) and (1984) for the weights; Ville (1939).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpsub.estimators.claims import Claim
from dpsub.estimators.numerics import Array
from dpsub.estimators.scores_and_marks import Marks, Of
from dpsub.estimators.threshold_rules import Decision, ThresholdRule

FIRST = 64  # observations to learn from before the first bet
GROWTH = 1.15  # the bettor learns anew when the past has grown by this factor
QUANTILES = np.array([0.01, 0.05, 0.15, 0.3, 0.5, 0.7, 0.85, 0.95, 0.99])  # of the past's scores, symmetric
SLOPES = 21  # per claim
STEEPEST = 1e-4  # slopes reach to the ε at which the claim's δ is this
DRAWN = 200  # steps of several observations each, from which the weights of their bets are learnt
CASH = 0.5  # the share that does not bet, before learning
SINGLE = 0.01  # the share that bets on one world only, before learning
STAKE = 0.99  # of the largest λ: a loss leaves something
SMALLEST, RATIO = 0.05, 1.1  # the claims with bets of their own: a geometric sequence
LEAST, HALVINGS = 1e-3, 11  # the smallest claim that is tested, and how exactly a bound is found between two
TOGETHER = 8  # claims that are followed at a time
MOST_CLAIMS = 128  # of the sequence: more than any noise needs
MOST_OBSERVATIONS = 10**6  # of a ceiling, which follows each of them
UNFAIR = 1e-9  # a fair coin is taken for an unfair one with this probability


class Past(NamedTuple):
    """What earlier observations show.

    Attributes:
        cuts: the different thresholds, in increasing order.
        counts: (2, cells) how many observations of each world fell into each cell.
        above, below: (thresholds, cells) which cells are above and below each threshold.
    """

    cuts: Array
    counts: Array
    above: Array
    below: Array

    @classmethod
    def of(cls, scores: Array, worlds: NDArray[np.int64]) -> Past:
        thresholds = np.quantile(scores, QUANTILES, method="inverted_cdf")
        cells = 2 * len(QUANTILES) + 1
        own = 2 * np.searchsorted(cuts := np.unique(thresholds), thresholds)[:, None] + 1
        above, below = (np.arange(cells) > own).astype(np.float64), (np.arange(cells) < own).astype(np.float64)
        past = cls(cuts, np.empty(0), above, below)
        counts = np.bincount(worlds * cells + past.cells(scores), minlength=2 * cells).reshape(2, cells)
        return past._replace(counts=counts.astype(np.float64))

    def cells(self, scores: Array | float) -> NDArray[np.int64]:
        """Cell 2i + 1 holds the scores that equal cut i, the cells beside it those between two cuts."""
        return np.asarray(np.searchsorted(self.cuts, scores, "left") + np.searchsorted(self.cuts, scores, "right"))


class Stretch(NamedTuple):
    """Steps between which the bettor does not learn: what was known, and the number of steps before.

    Attributes:
        worlds, cells: (steps, observations of a step).
    """

    past: Past
    worlds: NDArray[np.int64]
    cells: NDArray[np.int64]
    start: int


def until(start: int) -> int:
    """The number of steps at which the bettor learns anew."""
    return math.ceil(start * GROWTH)


def steps_before(together: int) -> int:
    """The number of steps with `FIRST` observations, so many together, which are learnt from before the first bet."""
    return math.ceil(FIRST / together)


def stretches(scores: Array, in_z: NDArray[np.bool_]) -> Iterator[Stretch]:
    """The steps after the first `FIRST` observations, with what was known before each stretch of them.

    `scores` and `in_z` are (steps, observations of a step), or (steps,).
    """
    scores, worlds = scores.reshape(len(scores), -1), np.where(in_z, 0, 1).reshape(len(scores), -1)
    start = steps_before(scores.shape[1])
    while start < len(scores):
        end = min(len(scores), until(start))
        past = Past.of(scores[:start].ravel(), worlds[:start].ravel())
        yield Stretch(past, worlds[start:end], past.cells(scores[start:end]), start)
        start = end


class Manner(NamedTuple):
    """How a bettor learns.

    Attributes:
        restraint: the number of observations that speak for cash.
        rounds: of the multiplicative update. Few of them keep the weights near the first ones.
        haste: the exponent of the update; 1 is Cover's. With another one, restraint must be 0.
        together: the number of observations of a step, whose bets' mean multiplies the wealth.
    """

    restraint: float
    rounds: int
    haste: float
    together: int = 1


CAUTIOUS = Manner(5.0, 60, 1.0)


def manner_of(together: int) -> Manner:
    """How who counts learns from steps with so many observations."""
    return CAUTIOUS if together == 1 else Manner(0.0, 40, 8.0, together)


class Portfolio(NamedTuple):
    """The bets of a stretch against some claims. A step multiplies wealth by its mean of `gross` - `charge` @ deltas.

    Attributes:
        gross: (claims, 2, cells) by the observation's world and cell.
        charge: (claims, slopes) never negative.
    """

    gross: Array
    charge: Array


class Side(NamedTuple):
    """One bet for each threshold, with the largest λ: what it wins and loses without δ, and what δ costs.

    Attributes:
        win, lose: (claims, thresholds, cells) in the world that the bet is on, and in the other.
        stake, delta: (claims, thresholds) λ and λ·δ.
        place: (claims, thresholds) which slope.
    """

    win: Array
    lose: Array
    stake: Array
    delta: Array
    place: NDArray[np.int64]


def portfolio(past: Past, slopes: Array, deltas: Array, manner: Manner = CAUTIOUS) -> Portfolio:
    """The bets that follow from the past. Slopes and their δ are (claims, slopes)."""
    of_z, of_z_prime = past.counts
    several = manner.together > 1
    high = _side(past.above, of_z, of_z_prime, slopes, deltas, several)
    low = _side(past.below[::-1], of_z_prime, of_z, slopes, deltas, several)
    on_z, on_z_prime = np.stack((high.win, high.lose), axis=2), np.stack((low.lose, low.win), axis=2)
    payoff = np.concatenate((on_z + on_z_prime, on_z, on_z_prime), axis=1)
    delta = np.concatenate((high.delta + low.delta, high.delta, low.delta), axis=1)
    # The largest λ that leaves 1 + λX positive whatever happens: X is at least the worst payoff less what δ costs.
    scale = STAKE / (delta - payoff.min(axis=(2, 3)))
    growth = 1 + scale[:, :, None, None] * (payoff - delta[:, :, None, None])
    staked = _weights(growth, past.counts, manner) * scale
    both, high_alone, low_alone = np.split(staked, 3, axis=1)
    charge, rows = np.zeros_like(slopes), np.arange(len(slopes))[:, None]
    np.add.at(charge, (rows, high.place), (both + high_alone) * high.stake)
    np.add.at(charge, (rows, low.place), (both + low_alone) * low.stake)
    return Portfolio(1 + np.einsum("ca,cawk->cwk", staked, payoff), charge)


def _side(inside: Array, backed: Array, other: Array, slopes: Array, deltas: Array, several: bool) -> Side:
    """Bets that the events `inside`, (thresholds, cells), happen in one world, at the slopes that the past suggests."""
    hits, misses = ((inside @ counts + 0.5) / (counts.sum() + 1) for counts in (backed, other))
    edge = hits[:, None] - np.exp(slopes)[:, None] * misses[:, None] - deltas[:, None]
    place = (edge / (2 * np.exp(slopes) + deltas)[:, None] if several else edge).argmax(axis=2)
    odds, delta = np.exp(np.take_along_axis(slopes, place, axis=1)), np.take_along_axis(deltas, place, axis=1)
    stake = 1 / (2 * odds + delta)
    return Side(2 * stake[:, :, None] * inside, -2 * (odds * stake)[:, :, None] * inside, stake, stake * delta, place)


def _weights(growth: Array, counts: Array, manner: Manner) -> Array:
    """The shares of wealth (claims, assets) that would have made most of the past. What is left is cash.

    Source: Cover (1984), the multiplicative update.
    """
    claims, assets = growth.shape[:2]
    if manner.together == 1:
        seen = counts > 0
        rates, growth = counts[seen] / counts.sum(), growth[:, :, seen]
    else:
        drawn = np.random.default_rng(0).multinomial(manner.together, counts.ravel() / counts.sum(), size=DRAWN)
        rates, growth = np.full(DRAWN, 1 / DRAWN), growth.reshape(claims, assets, -1) @ (drawn.T / manner.together)
    weights = np.full((claims, assets), SINGLE / (2 * len(QUANTILES)))
    weights[:, : len(QUANTILES)] = (1 - CASH - SINGLE) / len(QUANTILES)
    cash = np.full((claims, 1), CASH)
    # w_i ← w_i·(mean over the past of growth_i/wealth): Cover's update, which never lowers the past's mean of
    # log(wealth). `restraint` counts as so many more observations in which only cash kept its worth.
    for _ in range(manner.rounds):
        per_wealth = rates / (cash + np.matmul(weights[:, None], growth)[:, 0])
        weights = weights * np.matmul(growth, per_wealth[:, :, None])[:, :, 0] ** manner.haste
        cash = cash * per_wealth.sum(axis=1, keepdims=True) ** manner.haste + manner.restraint / counts.sum()
        total = cash + weights.sum(axis=1, keepdims=True)
        weights, cash = weights / total, cash / total
    return weights


def log_wealth(stretch: Stretch, bets: Portfolio, deltas: Array, before: Array) -> Array:
    """The logarithm of the wealth (claims, steps) after each step of a stretch."""
    growth = bets.gross - np.einsum("cs,cs->c", bets.charge, deltas)[:, None, None]
    steps = growth[:, stretch.worlds, stretch.cells].mean(axis=2)
    return np.asarray(before[:, None] + np.cumsum(np.log(steps), axis=1))


def bets_of(stretch: Stretch, slopes: Array, deltas: Array) -> Portfolio:
    """The bets of a stretch against some claims, whose slopes and δ there are (claims, slopes)."""
    return portfolio(stretch.past, slopes, deltas, manner_of(stretch.cells.shape[1]))


def path(scores: Array, in_z: NDArray[np.bool_], slopes: Array, deltas: Array) -> Array:
    """The logarithm of the wealth against one claim after each step that follows the first `FIRST` observations."""
    paths, wealth = [np.zeros(0)], np.zeros(1)
    for stretch in stretches(scores, in_z):
        [logs] = log_wealth(stretch, bets_of(stretch, slopes[None], deltas[None]), deltas[None], wealth)
        paths.append(logs)
        wealth = logs[-1:]
    return np.concatenate(paths)


def largest_refuted(scores: Array, in_z: NDArray[np.bool_], claim: Claim, alpha: float) -> tuple[float, int | None]:
    """The largest parameter such that it and all smaller ones are refuted, and after how many steps they were.

    `scores` and `in_z` are (steps, observations of a step), or (steps,).

    The claims of a geometric sequence, fixed in advance, have bets of their own. A claim between two of them uses the
    bets against the larger one, which its smaller δ makes no worse. So a bound is wrong only if one given true claim is
    refuted, that of the truth or the next of the sequence, and the second implies the first.
    """
    learnt, goal = list(stretches(scores, in_z)), -math.log(alpha)
    refuted, latest, first = 0.0, 0, 0
    while learnt and refuted < claim.most:
        tested, slopes, deltas = _curves(claim, first)
        reached = _first_reached(learnt, slopes, deltas, goal)
        for parameter, after, *larger in zip(tested, reached.tolist(), slopes, deltas, strict=True):
            if not after:
                return _between(learnt, claim, (refuted, parameter), larger, goal, latest)
            refuted, latest = parameter, max(latest, after)
        first += TOGETHER
    return refuted, latest or None


def curve(claim: Claim, parameter: float, steepest: float = math.inf) -> tuple[Array, Array]:
    """The slopes of bets against a claim, and its δ there."""
    far = replace(claim, delta=STEEPEST).epsilon(parameter)  # type: ignore[type-var]
    slopes = np.linspace(0.0, min(far, steepest), SLOPES)
    return slopes, claim.deltas(slopes, parameter)


@lru_cache(maxsize=128)
def _curves(claim: Claim, first: int) -> tuple[list[float], Array, Array]:
    """The next claims of the sequence: their parameters, slopes, and their δ there, both (claims, slopes)."""
    tested = np.minimum(SMALLEST * RATIO ** np.arange(first, first + TOGETHER), claim.most).tolist()
    slopes, deltas = zip(*(curve(claim, parameter) for parameter in tested), strict=True)
    return tested, np.stack(slopes), np.stack(deltas)


def _first_reached(learnt: list[Stretch], slopes: Array, deltas: Array, goal: float) -> NDArray[np.int64]:
    """After how many steps the wealth first reached its goal, for each claim; 0 if it did not."""
    reached, wealth = np.zeros(len(slopes), dtype=np.int64), np.zeros(len(slopes))
    for stretch in learnt:
        [left] = np.nonzero(reached == 0)
        if not len(left):
            break
        logs = log_wealth(stretch, bets_of(stretch, slopes[left], deltas[left]), deltas[left], wealth[left])
        wealth[left], refuted = logs[:, -1], logs >= goal
        reached[left] = np.where(refuted.any(axis=1), stretch.start + refuted.argmax(axis=1) + 1, 0)
    return reached


def reached_after(scores: Array, in_z: NDArray[np.bool_], claim: Claim, parameter: float, alpha: float) -> int | None:
    """After how many steps `largest_refuted` is at least this parameter; None if it is not."""
    learnt, goal, latest = list(stretches(scores, in_z)), -math.log(alpha), 0
    for first in range(0, MOST_CLAIMS if learnt else 0, TOGETHER):
        tested, slopes, deltas = _curves(claim, first)
        reached = _first_reached(learnt, slopes, deltas, goal).tolist()
        for own, after, *larger in zip(tested, reached, slopes, deltas, strict=True):
            if own >= parameter:
                after = _by_larger(learnt, claim, larger, goal)(parameter)
                return max(latest, after) if after else None
            if not after:
                return None
            latest = max(latest, after)
    return None


def _by_larger(learnt: list[Stretch], claim: Claim, larger: list[Array], goal: float) -> Callable[[float], int]:
    """After how many steps the bets against a larger claim refute one with a given parameter; 0 if they do not.

    `larger` holds the slopes of the larger one, and its δ there.
    """
    slopes, own = larger
    bets = [bets_of(stretch, slopes[None], own[None]) for stretch in learnt]
    used = sum(portfolios.charge[0] for portfolios in bets) > 0

    def reached(parameter: float) -> int:
        deltas, wealth = own[None].copy(), np.zeros(1)
        deltas[0, used] = np.minimum(claim.deltas(slopes[used], parameter), own[used])
        for stretch, portfolios in zip(learnt, bets, strict=True):
            [logs] = log_wealth(stretch, portfolios, deltas, wealth)
            if (logs >= goal).any():
                return stretch.start + int((logs >= goal).argmax()) + 1
            wealth = logs[-1:]
        return 0

    return reached


def _between(
    learnt: list[Stretch], claim: Claim, ends: tuple[float, float], larger: list[Array], goal: float, latest: int
) -> tuple[float, int | None]:
    """The largest parameter that the bets against the larger end refute; the smaller end if they refute no more."""
    reached, (refuted, upper) = _by_larger(learnt, claim, larger, goal), ends
    low = max(refuted, LEAST)
    if not (after := reached(low)):
        return refuted, latest or None
    for _ in range(HALVINGS):
        middle = (low + upper) / 2
        if earlier := reached(middle):
            low, after = middle, earlier
        else:
            upper = middle
    return low, max(after, latest)


@dataclass(frozen=True)
class Bets(ThresholdRule):
    """Bets against each claim, in the order of the observations.

    Attributes:
        together: the number of observations of a step, which are bet on together: their rows follow each other.
    """

    together: int = 1

    name: ClassVar[str] = "bets"
    valid: ClassVar[bool] = True
    for_past: ClassVar[bool] = True
    for_folds: ClassVar[bool] = True
    costly: ClassVar[bool] = True
    of: ClassVar[Of | None] = "step"
    note: ClassVar[str] = (
        "holds though observations depend on the past, and whenever one stops, if each row is one observation with a "
        "fair coin of its own, and the rows are in the order in which they were made"
    )

    def in_steps(self, scores: Array, in_z: NDArray[np.bool_]) -> tuple[Array, NDArray[np.bool_]]:
        """Scores and worlds as (steps, observations of a step). It refuses what cannot be a fair coin's."""
        of_z, count = int(in_z.sum()), len(scores)
        if abs(of_z - count / 2) > math.sqrt(count * math.log(2 / UNFAIR) / 2):  # Hoeffding's inequality
            raise ValueError(
                f"bits must be those of a fair coin for rule 'bets', got {of_z:,} of {count:,} observations with "
                "bit 0: toss a fair coin for each, or give 'ranks' if the observations are independent"
            )
        changes = int((in_z[1:] != in_z[:-1]).sum())  # a fair coin's changes are a fair coin's, too
        if abs(changes - (count - 1) / 2) > math.sqrt(count * math.log(2 / UNFAIR) / 2):
            raise ValueError(
                f"bits must be tossed anew for each observation for rule 'bets', got {changes:,} changes in "
                f"{count:,} observations: give them in the order in which they were made, or give 'ranks' if the "
                "observations are independent"
            )
        if count % self.together:
            raise ValueError(f"scores must be {self.together} for each step, got {count}: select whole steps")
        return scores.reshape(-1, self.together), in_z.reshape(-1, self.together)

    def decide(self, scores: Array, in_z: NDArray[np.bool_], claim: Claim, alpha: float) -> Decision:
        parameter, reached = largest_refuted(*self.in_steps(scores, in_z), claim, alpha)
        return Decision(parameter, {"observations": len(scores), **({"reached": reached} if reached else {})})

    def ceiling(self, runs: int, claim: Claim, alpha: float) -> float:
        """What bets make of scores without errors, if the coin falls on z, z, z′, z′, and so on."""
        if runs > MOST_OBSERVATIONS:
            raise ValueError(f"runs must be at most {MOST_OBSERVATIONS:g} for rule 'bets', got {runs}: give 'ranks'")
        in_z = np.arange(runs - runs % self.together) // 2 % 2 == 0
        return self.decide(in_z.astype(np.float64), in_z, claim, alpha).parameter

    def too_few(self, positives: int, negatives: int) -> str:
        count, first = positives + negatives, steps_before(self.together) * self.together
        return "" if count > first else f"bets need more than {first} observations, which they learn from, got {count}"

    def fitted(self, marks: Marks) -> Bets:
        if "same_world" in marks.said:
            raise ValueError(
                "scores must be of worlds tossed anew at each step for rule 'bets', got those of trainings with "
                "one world each: audit with protocol='coins', or give 'ranks' for a bound that is not valid"
            )
        return self if marks.together is None else replace(self, together=marks.together)
