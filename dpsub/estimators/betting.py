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

Source: Waudby-Smith and Ramdas (2024); Cover (1991) and (1984) for the weights; Ville (1939).
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpsub.estimators.claims import Array, Claim
from dpsub.estimators.lessons import QUANTILES, Lesson, Stretch, stretches

SLOPES = 21  # per claim
STEEPEST = 1e-4  # slopes reach to the ε at which the claim's δ is this
CASH = 0.5  # the share that does not bet, before learning
SINGLE = 0.01  # the share that bets on one world only, before learning
STAKE = 0.99  # of the largest λ: a loss leaves something
SMALLEST, RATIO = 0.05, 1.1  # the claims with bets of their own: a geometric sequence
LEAST, HALVINGS = 1e-3, 11  # the smallest claim that is tested, and how exactly a bound is found between two
TOGETHER = 8  # claims that are followed at a time


class Manner(NamedTuple):
    """How a bettor learns.

    Attributes:
        restraint: the number of observations that speak for cash.
        rounds: of the multiplicative update. Few of them keep the weights near the first ones.
        haste: the exponent of the update; 1 is Cover's. With another one, restraint must be 0.
    """

    restraint: float
    rounds: int
    haste: float


CAUTIOUS = Manner(5.0, 60, 1.0)


class Portfolio(NamedTuple):
    """The bets of a stretch against some claims. An observation multiplies the wealth by `gross` - `charge` @ deltas.

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


def portfolio(learnt: Stretch | Lesson, slopes: Array, deltas: Array, manner: Manner = CAUTIOUS) -> Portfolio:
    """The bets of a stretch, from its past alone. Slopes and their δ are (claims, slopes)."""
    of_z, of_z_prime = learnt.past
    high = _side(learnt.above, of_z, of_z_prime, slopes, deltas)
    low = _side(learnt.below[::-1], of_z_prime, of_z, slopes, deltas)
    on_z, on_z_prime = np.stack((high.win, high.lose), axis=2), np.stack((low.lose, low.win), axis=2)
    payoff = np.concatenate((on_z + on_z_prime, on_z, on_z_prime), axis=1)
    delta = np.concatenate((high.delta + low.delta, high.delta, low.delta), axis=1)
    scale = STAKE / (delta - payoff.min(axis=(2, 3)))
    growth = 1 + scale[:, :, None, None] * (payoff - delta[:, :, None, None])
    staked = _weights(growth, learnt.past, manner) * scale
    both, high_alone, low_alone = np.split(staked, 3, axis=1)
    charge, rows = np.zeros_like(slopes), np.arange(len(slopes))[:, None]
    np.add.at(charge, (rows, high.place), (both + high_alone) * high.stake)
    np.add.at(charge, (rows, low.place), (both + low_alone) * low.stake)
    return Portfolio(1 + np.einsum("ca,cawk->cwk", staked, payoff), charge)


def _side(inside: Array, backed: Array, other: Array, slopes: Array, deltas: Array) -> Side:
    """Bets that the events `inside`, (thresholds, cells), happen in one world, at the slopes that the past suggests."""
    hits, misses = ((inside @ counts + 0.5) / (counts.sum() + 1) for counts in (backed, other))
    edge = hits[:, None] - np.exp(slopes)[:, None] * misses[:, None] - deltas[:, None]
    place = edge.argmax(axis=2)
    odds, delta = np.exp(np.take_along_axis(slopes, place, axis=1)), np.take_along_axis(deltas, place, axis=1)
    stake = 1 / (2 * odds + delta)
    return Side(2 * stake[:, :, None] * inside, -2 * (odds * stake)[:, :, None] * inside, stake, stake * delta, place)


def _weights(growth: Array, past: Array, manner: Manner) -> Array:
    """The shares of wealth (claims, assets) that would have made most of the past. What is left is cash.

    Source: Cover (1984), the multiplicative update.
    """
    claims, assets = growth.shape[:2]
    seen = past > 0
    rates, growth = past[seen] / past.sum(), growth[:, :, seen]
    weights = np.full((claims, assets), SINGLE / (2 * len(QUANTILES)))
    weights[:, : len(QUANTILES)] = (1 - CASH - SINGLE) / len(QUANTILES)
    cash = np.full((claims, 1), CASH)
    for _ in range(manner.rounds):
        per_wealth = rates / (cash + np.matmul(weights[:, None], growth)[:, 0])
        weights = weights * np.matmul(growth, per_wealth[:, :, None])[:, :, 0] ** manner.haste
        cash = cash * per_wealth.sum(axis=1, keepdims=True) ** manner.haste + manner.restraint / past.sum()
        total = cash + weights.sum(axis=1, keepdims=True)
        weights, cash = weights / total, cash / total
    return weights


def log_wealth(stretch: Stretch, bets: Portfolio, deltas: Array, before: Array) -> Array:
    """The logarithm of the wealth (claims, observations) after each observation of a stretch."""
    growth = bets.gross - np.einsum("cs,cs->c", bets.charge, deltas)[:, None, None]
    return np.asarray(before[:, None] + np.cumsum(np.log(growth)[:, stretch.worlds, stretch.cells], axis=1))


def largest_refuted(scores: Array, in_z: NDArray[np.bool_], claim: Claim, alpha: float) -> tuple[float, int | None]:
    """The largest parameter such that it and all smaller ones are refuted, and after how many observations they were.

    The claims of a geometric sequence, fixed in advance, have bets of their own. A claim between two of them uses the
    bets against the larger one, which its smaller δ makes no worse. So a bound is wrong only if one given true claim is
    refuted, that of the truth or the next of the sequence, and the second implies the first.
    """
    lessons, goal = list(stretches(scores, in_z)), -math.log(alpha)
    refuted, latest, first = 0.0, 0, 0
    while lessons and refuted < claim.most:
        tested, slopes, deltas = _curves(claim, first)
        reached = _first_reached(lessons, slopes, deltas, goal)
        for parameter, after, *curve in zip(tested, reached.tolist(), slopes, deltas, strict=True):
            if not after:
                return _between(lessons, claim, (refuted, parameter), curve, goal, latest)
            refuted, latest = parameter, max(latest, after)
        first += TOGETHER
    return refuted, latest or None


@lru_cache(maxsize=128)
def _curves(claim: Claim, first: int) -> tuple[list[float], Array, Array]:
    """The next claims of the sequence: their parameters, slopes, and their δ there, both (claims, slopes)."""
    tested = np.minimum(SMALLEST * RATIO ** np.arange(first, first + TOGETHER), claim.most).tolist()
    slopes = np.stack([np.linspace(0.0, claim.steepest(STEEPEST, parameter), SLOPES) for parameter in tested])
    return tested, slopes, np.stack([claim.deltas(*each) for each in zip(slopes, tested, strict=True)])


def _first_reached(lessons: list[Stretch], slopes: Array, deltas: Array, goal: float) -> NDArray[np.int64]:
    """After how many observations the wealth first reached its goal, for each claim; 0 if it did not."""
    reached, wealth = np.zeros(len(slopes), dtype=np.int64), np.zeros(len(slopes))
    for lesson in lessons:
        [left] = np.nonzero(reached == 0)
        if not len(left):
            break
        bets = portfolio(lesson, slopes[left], deltas[left])
        path = log_wealth(lesson, bets, deltas[left], wealth[left])
        wealth[left], there = path[:, -1], path >= goal
        reached[left] = np.where(there.any(axis=1), lesson.start + there.argmax(axis=1) + 1, 0)
    return reached


def _between(
    lessons: list[Stretch], claim: Claim, ends: tuple[float, float], curve: list[Array], goal: float, latest: int
) -> tuple[float, int | None]:
    """The largest parameter that the bets against the larger end refute; the smaller end if they refute no more."""
    slopes, own = curve
    bets = [portfolio(lesson, slopes[None], own[None]) for lesson in lessons]
    used = sum(portfolios.charge[0] for portfolios in bets) > 0

    def reached(parameter: float) -> int:
        deltas, wealth = own[None].copy(), np.zeros(1)
        deltas[0, used] = np.minimum(claim.deltas(slopes[used], parameter), own[used])
        for lesson, portfolios in zip(lessons, bets, strict=True):
            [path] = log_wealth(lesson, portfolios, deltas, wealth)
            if (path >= goal).any():
                return lesson.start + int((path >= goal).argmax()) + 1
            wealth = path[-1:]
        return 0

    refuted, upper = ends
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
