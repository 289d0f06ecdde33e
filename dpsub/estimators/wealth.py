"""The wealth of bets against a single claim, observation after observation."""

from __future__ import annotations

import math
from array import array
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri

from dpsub._core import checks
from dpsub.accounting.gaussian import gdp_mu
from dpsub.estimators.betting import Bets, Manner, Past, curve, manner_of, path, portfolio, steps_before, until
from dpsub.estimators.claims import GDP, ApproximateDP, Claim
from dpsub.estimators.numerics import Array
from dpsub.estimators.scores_and_marks import scores_bits_and_marks

MOST_EPSILON = 100.0  # odds of a bet are finite there
STEEPEST_SLOPE = 30.0  # no number of observations shows anything at steeper ones
MOST_TRIED = 20_000  # observations of a perfect attack
BOLD = Manner(restraint=0.0, rounds=30, haste=8.0)  # of who learns from Gaussians, which have no chance patterns
SHARES = np.array([0.05, 0.75, 0.2])  # of the first wealth: of those who count, fit and expect
LARGER = 1.2  # who fits bets on worlds that are at least this much farther apart than is claimed
FAULT = 2.0  # who expects bets on this much less noise than is claimed
LEAST_SPREAD = 1e-12  # of a fitted Gaussian, and relative to the largest score
MANY = 2.0  # scores of each world, which who expects takes for seen: more of them lead to steeper slopes
POINTS = ndtri((np.arange(200) + 0.5) / 200)
_curve = lru_cache(maxsize=128)(curve)


@checks.checked(
    "delta",
    epsilon=partial(checks.real, above=0, at_most=MOST_EPSILON),
    claim=partial(checks.choice, options=("gdp", "dp")),
)
def wealth_of_bets(scores: ArrayLike, bits: ArrayLike, *, epsilon: float, delta: float, claim: str = "gdp") -> Array:
    r"""The logarithm of the wealth of bets against the claim that one observation has this ε at this δ.

    Wealth starts at 1. If the claim holds, it ever reaches 1/α with probability at most α, whatever observations owe to
    those before. So the claim is refuted, at confidence 1 − α, where the logarithm first reaches ln(1/α).

    Args:
        scores: (observations,) in the order in which they were made; higher speaks for z. If the coordinate `step` says
            that steps have several, these are bet on together: their wealth is that after the step.
        bits: (observations,) of 0 (z) and 1 (z′), a fair coin for each; both must occur.
        epsilon: > 0 and at most 100; the claim, at `delta`.
        delta: 0 < δ < 1.
        claim: "gdp", the claim of the μ-GDP with this ε at `delta`, or "dp", that of (ε, δ)-DP.

    Returns:
        (observations,) natural logarithms, 0 for the first 64, or the whole steps that hold them, from which the bets
        are learnt.

    Raises:
        ValueError: if scores are not (observations,), are empty, NaN or not as many as bits, if bits cannot be a fair
            coin's, if the scores' marks allow no valid bound by bets, or if an argument is out of range.

    Source: Waudby-Smith and Ramdas (2024); Ville (1939).

    >>> rng = np.random.default_rng(0)
    >>> bits = rng.integers(0, 2, 1_000)
    >>> scores = rng.normal(size=1_000) + (bits == 0)  # μ = 1, so ε = 4.38 at δ = 1e-5
    >>> against_half, against_all = (wealth_of_bets(scores, bits, epsilon=e, delta=1e-5) for e in (2.0, 4.38))
    >>> bool(against_half.max() > np.log(20)), bool(against_all.max() > np.log(20))
    (True, False)
    """
    columns, in_z, several, marks = scores_bits_and_marks(scores, bits)
    if several:
        raise ValueError(f"scores must have shape (observations,), got {columns.shape}: give one column")
    by = Bets().fitted(marks)
    if reasons := by.against(marks):
        raise ValueError(f"scores must be of observations that allow a valid bound, got others: {reasons[0]}")
    tested: Claim = GDP(delta) if claim == "gdp" else ApproximateDP(delta)
    parameter = gdp_mu(epsilon, delta) if claim == "gdp" else epsilon
    logs = np.repeat(path(*by.in_steps(columns[:, 0], in_z), *curve(tested, parameter)), by.together)
    return np.concatenate((np.zeros(len(columns) - len(logs)), logs))


class Expected(NamedTuple):
    """Where the scores lie: the means of z and of z′, and the probability that the record is in at all."""

    z: float
    z_prime: float
    rate: float

    def counts(self, cuts: Array, cells: int, many: float) -> Array:
        """How many of so many scores of each world fall into each cell, for noise of 1."""
        means = np.array([[self.z], [self.z_prime]])
        below = self.rate * ndtr(cuts - means) + (1 - self.rate) * ndtr(cuts)
        counts = np.zeros((2, cells))
        counts[:, 0 : 2 * len(cuts) + 1 : 2] = many * np.diff(below, axis=1, prepend=0.0, append=1.0)
        return counts


class Bettor:
    """Follows the wealth of bettors, who bet against what is claimed of each observation of a step.

    Their wealth together ever reaches 1/α with probability at most α if every claim holds, however the observations
    depend on the past, and whenever one stops. Three share the first wealth. One bets as `betting` does. One fits
    Gaussians to the past's scores, and learns faster if that is what they are. One bets from the first observation on,
    on Gaussian scores with half the noise that is claimed: it finds gross faults, and loses its share where there are
    none.

    Args:
        alpha: the probability with which true claims may be refuted.
        expected: where the scores lie; what it says costs power if it is wrong, and never validity.
        together: the number of observations of a step. The mean of their bets multiplies the wealth: see `betting`.

    Attributes:
        log_wealth: the logarithm of their wealth now.
        refuted_at: the number of steps after which it first reached its goal; None if it has not.
    """

    def __init__(self, alpha: float, expected: Expected, together: int = 1) -> None:
        self.log_wealth = 0.0
        self.refuted_at: int | None = None
        self._goal, self._expected = -math.log(alpha), expected
        self._scores, self._worlds = array("d"), array("q")
        self._together, self._learns_at = together, steps_before(together)
        self._past: Past | None = None
        self._claim: tuple[Claim, float] | None = None
        self._wealths = np.zeros(len(SHARES))
        self._bets: list[tuple[Past, Array] | None] = [None] * len(SHARES)

    def __len__(self) -> int:
        return len(self._scores) // self._together

    def observe(self, scores: ArrayLike, in_z: ArrayLike, claim: Claim, parameter: float) -> None:
        """Take one more step, of whose observations the claim with this parameter is made."""
        if len(self) == self._learns_at:
            self._past = Past.of(np.array(self._scores), np.array(self._worlds))
            self._learns_at, self._bets[:2] = until(len(self)), [None, None]
        if self._claim != (claim, parameter):
            self._claim, self._bets = (claim, parameter), [None] * len(SHARES)
        if self._bets[2] is None or (self._past is not None and self._bets[0] is None):
            self._learn(claim, parameter)
        scores, worlds = np.atleast_1d(scores), np.where(np.atleast_1d(in_z), 0, 1)
        # Each bettor's wealth is multiplied by the mean of the step's bets; W = Σ share·exp(wealth) is all of it.
        for place, bets in enumerate(self._bets):
            if bets is not None:
                learnt, growth = bets
                self._wealths[place] += math.log(growth[worlds, learnt.cells(scores)].mean())
        self.log_wealth = float(np.logaddexp.reduce(self._wealths + np.log(SHARES)))
        self._scores.extend(scores)
        self._worlds.extend(worlds)
        if self.refuted_at is None and self.log_wealth >= self._goal:
            self.refuted_at = len(self)

    def _learn(self, claim: Claim, parameter: float) -> None:
        slopes, deltas = _curve(claim, parameter, STEEPEST_SLOPE)

        def growth(learnt: Past, manner: Manner) -> tuple[Past, Array]:
            bets = portfolio(learnt, slopes[None], deltas[None], manner._replace(together=self._together))
            return learnt, np.asarray(bets.gross[0] - bets.charge[0] @ deltas)

        if self._bets[2] is None:
            self._bets[2] = growth(_expected(self._expected, parameter), BOLD)
        if self._past is not None and self._bets[0] is None:
            fitted = self._fitted(self._past, LARGER * parameter * self._expected.rate)
            self._bets[:2] = growth(self._past, manner_of(self._together)), growth(fitted, BOLD)

    def _fitted(self, past: Past, farthest: float) -> Past:
        """What Gaussians with the past's means and spread show, at least so far apart, in units of the spread."""
        scores, worlds = np.array(self._scores), np.array(self._worlds)
        means = np.array([scores[worlds == world].mean() if (worlds == world).any() else 0.0 for world in (0, 1)])
        spread = max(float(np.std(scores - means[worlds])), LEAST_SPREAD * float(np.abs(scores).max()), LEAST_SPREAD)
        apart = max(float(means[0] - means[1]) / spread, farthest)
        centred = (past.cuts - means.mean()) / spread
        fitted = Expected(apart / 2, -apart / 2, 1.0)
        return past._replace(counts=fitted.counts(centred, past.counts.shape[1], len(scores) / 2))


@lru_cache(maxsize=128)
def fewest(claim: Claim, parameter: float, alpha: float, expected: Expected, together: int = 1) -> int | None:
    """After how many steps a perfect attack refutes a claim, if the coin falls on z, z, z′, z′, and so on.

    None if it takes more than `MOST_TRIED`.
    """
    bettor, coins = Bettor(alpha, expected, together), np.arange(together)
    while bettor.refuted_at is None and len(bettor) < MOST_TRIED:
        in_z = (len(bettor) * together + coins) // 2 % 2 == 0
        bettor.observe(np.where(in_z, expected.z, expected.z_prime), in_z, claim, parameter)
    return bettor.refuted_at


def _expected(where: Expected, parameter: float) -> Past:
    """What scores would show, if there were less noise than is claimed."""
    spread = (where.z - where.z_prime) / (FAULT * parameter)
    means = np.array([where.z, where.z_prime])
    scores = (means[:, None] + spread * POINTS).ravel()
    worlds: NDArray[np.int64] = np.repeat([0, 1], len(POINTS))
    seen = Past.of(scores, worlds)
    scaled = Expected(where.z / spread, where.z_prime / spread, where.rate)
    return seen._replace(counts=scaled.counts(seen.cuts / spread, seen.counts.shape[1], MANY))
