"""Bets against a single claim, while the observations come in."""

from __future__ import annotations

import math
from array import array
from functools import lru_cache

import numpy as np

from dpsub.estimators.betting import SLOPES, STEEPEST, Portfolio, portfolio
from dpsub.estimators.claims import Array, Claim
from dpsub.estimators.lessons import FIRST, Lesson, lesson, until

STEEPEST_SLOPE = 30.0  # no number of observations shows anything at steeper ones
MOST_TRIED = 20_000  # observations of a perfect attack


class Bettor:
    """Follows the wealth of one bettor, who bets against what is claimed of each observation.

    The wealth ever reaches 1/α with probability at most α if every claim holds, however the observations depend on the
    past, and whenever one stops. With the same claim at all observations it is the wealth of `betting.log_wealth`.

    Attributes:
        log_wealth: its logarithm now.
        most: its largest value so far.
        refuted_at: the number of observations after which it first reached its goal; None if it has not.
    """

    def __init__(self, alpha: float) -> None:
        self.log_wealth = self.most = 0.0
        self.refuted_at: int | None = None
        self._goal = -math.log(alpha)
        self._scores, self._worlds = array("d"), array("q")
        self._next_lesson = FIRST
        self._learnt: Lesson | None = None
        self._claim: tuple[Claim, float] | None = None
        self._growth: Array = np.ones((2, 1))

    def __len__(self) -> int:
        return len(self._scores)

    def observe(self, score: float, in_z: bool, claim: Claim, parameter: float) -> None:
        """Take one more observation, of which the claim with this parameter is made."""
        if len(self) == self._next_lesson:
            self._learnt = lesson(np.array(self._scores), np.array(self._worlds))
            self._next_lesson, self._claim = until(len(self)), None
        world = 0 if in_z else 1
        if self._learnt is not None:
            if self._claim != (claim, parameter):
                self._growth, self._claim = _growth(self._learnt, claim, parameter), (claim, parameter)
            self.log_wealth += math.log(self._growth[world, int(self._learnt.cells(score))])
            self.most = max(self.most, self.log_wealth)
        self._scores.append(score)
        self._worlds.append(world)
        if self.refuted_at is None and self.log_wealth >= self._goal:
            self.refuted_at = len(self)


def fewest(claim: Claim, parameter: float, alpha: float) -> int | None:
    """After how many observations a perfect attack refutes a claim, if the coin falls on z, z, z′, z′, and so on.

    None if it takes more than `MOST_TRIED`.
    """
    bettor = Bettor(alpha)
    while bettor.refuted_at is None and len(bettor) < MOST_TRIED:
        in_z = len(bettor) // 2 % 2 == 0
        bettor.observe(float(in_z), in_z, claim, parameter)
    return bettor.refuted_at


def _growth(learnt: Lesson, claim: Claim, parameter: float) -> Array:
    """By what an observation multiplies the wealth: (2, cells), by its world and cell."""
    slopes, deltas = _curve(claim, parameter)
    bets: Portfolio = portfolio(learnt, slopes[None], deltas[None])
    return np.asarray(bets.gross[0] - bets.charge[0] @ deltas)


@lru_cache(maxsize=128)
def _curve(claim: Claim, parameter: float) -> tuple[Array, Array]:
    """The slopes of the bets, and the claim's δ there."""
    slopes = np.linspace(0.0, min(claim.steepest(STEEPEST, parameter), STEEPEST_SLOPE), SLOPES)
    return slopes, claim.deltas(slopes, parameter)
