"""A test of the noise itself: what is left of each step when the records and the canary are taken out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpsub._core.random_streams import stream

SCALES = np.array([0.02, 0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95])  # standard deviations that are bet on, where 1 is claimed
AGREEING = np.array([0.6, 0.75, 0.95, 0.999])  # shares of signs that are bet on, where ½ is claimed
SHIFTS = np.array([-1.0, -0.5, -0.2, -0.05, 0.05, 0.2, 0.5, 1.0])  # of the sum, as shares of the records' sum
LARGER = 1.1  # the noise may be, than what it was so far
ENOUGH = 100  # numbers that say how large the noise is
SAMPLE = 256  # coordinates whose signs are looked at
REMEMBERED = 1_000  # steps
SELDOM = 0.02  # the share of the wealth that is bet on noise that comes again, at each step

Array = NDArray[np.float64]
Signs = NDArray[np.bool_]


class Left(NamedTuple):
    """What `NoiseTest` looks at in a step: the residue r, and the sum S of the records' clipped gradients, over σC.

    Attributes:
        squares: (parameters,) r·r of each parameter.
        sampled: whether r is positive at the places of `NoiseTest.sample`.
        starts: the same for the first `SAMPLE` entries of each parameter, all parameters in a row.
        product: r·S of all parameters.
        records: S·S of all parameters.
    """

    squares: Array
    sampled: Signs
    starts: Signs
    product: float
    records: float

    @classmethod
    def of(cls, residue: Array, records: Array, sizes: Sequence[int], sample: NDArray[np.int64]) -> Left:
        """Of r and S (coordinates,), all parameters in a row."""
        parts = np.split(residue, np.cumsum(sizes)[:-1])
        squares = np.array([one @ one for one in parts])
        starts = np.concatenate([one[:SAMPLE] for one in parts])
        return cls(squares, residue[sample] > 0, starts > 0, float(residue @ records), float(records @ records))


class NoiseTest:
    r"""Bets that the noise of DP-SGD is not what is claimed: independent Gaussian, of standard deviation σC everywhere.

    The residue of a step is the released sum without the records' clipped gradients and the canary, in units of σC. If
    the optimizer is right it is N(0, 1) in each coordinate, and its signs are fair coins, whatever happened before. So
    each likelihood ratio below has the mean 1, given the past, and so has any mean of them that the past chooses. A
    share 1/(t(t + 1)) of the first wealth waits for step t and is then multiplied by the ratios of that step and all
    later ones, so that a fault may begin late. The wealth ever reaches 1/alpha with probability at most alpha (Ville),
    however long one watches.

    - *too little*: N(0, s²) against N(0, 1), for a few s below 1, in all parameters and in each.
    - *comes again*: more than half of the signs of a sample of coordinates are those of an earlier step.
    - *shared*: more than half of a parameter's first signs are those of an earlier parameter.
    - *clipping*: N(βS, c²) against N(0, c²), where S is the records' clipped sum, for a few β; c is 1, or a tenth more
      than the past's residues where these are larger.

    Signs do not depend on the scale, and c grows with it: more noise than is claimed is no fault.

    Args:
        alpha: the probability with which noise that is right is called wrong.
        sizes: the number of entries of each parameter.
        seed: of the sample of coordinates.

    Attributes:
        sample: the sampled coordinates, of all parameters in a row.
        fault: in words, what is wrong with the noise; None if nothing was found.
        found_at: the number of steps after which it was found.
        clipping: in words, how the released sums differ from those of clipped gradients; None if they do not. It is a
            message and no verdict: other clipping may be private, too.
    """

    def __init__(self, alpha: float, sizes: Sequence[int], seed: int) -> None:
        self.fault: str | None = None
        self.found_at: int | None = None
        self.clipping: str | None = None
        self._goal, self._sizes, self._steps = -math.log(alpha), np.array(sizes, dtype=float), 0
        self._scales = np.full((1 + len(sizes), len(SCALES)), -np.inf)  # log-wealth: of all parameters, and of each
        rng, total = stream(seed, "audit", 1), sum(sizes)
        self.sample: NDArray[np.int64] = np.sort(rng.choice(total, min(SAMPLE, total), replace=False))
        self._remembered = np.zeros((0, len(self.sample)), dtype=np.float32)  # ±1
        self._again = self._shared = -math.inf
        self._shifts = np.full(len(SHIFTS), -np.inf)
        self._products = self._squares = self._energy = 0.0
        self._repeated, self._shares = 0, (0, 0)

    def observe(self, left: Left) -> None:
        """Take one more step."""
        self._steps += 1
        all_squares, all_sizes = (np.append(one.sum(), one)[:, None] for one in (left.squares, self._sizes))
        ratios = all_squares * (1 - SCALES**-2) / 2 - all_sizes * np.log(SCALES)
        self._scales = self._grown(self._scales, ratios)
        self._bet_on_repeats(left.sampled)
        self._bet_on_sharing(np.split(left.starts, np.cumsum(np.minimum(self._sizes, SAMPLE))[:-1].astype(int)))
        self._bet_on_records(left.product, left.records)
        self._energy += left.squares.sum()
        if self.fault is None:
            self._judge()

    def _grown(self, wealth: Any, ratios: Any) -> Any:
        """The log-wealth after this step, with what has waited for it."""
        return np.logaddexp(wealth, -math.log(self._steps * (self._steps + 1))) + ratios

    def _bet_on_repeats(self, now: Signs) -> None:
        signs = np.where(now, np.float32(1), np.float32(-1))
        if len(self._remembered):
            agreeing = (self._remembered @ signs + now.size).astype(int) // 2
            ratios = _by_count(now.size)[agreeing]
            self._again = self._grown(self._again, _seldom(np.logaddexp.reduce(ratios) - math.log(len(ratios))))
            self._repeated = self._steps - len(self._remembered) + int(agreeing.argmax())
        self._remembered = np.vstack([self._remembered, signs])[-REMEMBERED:]

    def _bet_on_sharing(self, starts: Sequence[Signs]) -> None:
        # Given the parameters before it, the signs of one are fair coins, so these ratios may be multiplied.
        longest, best, grown = 0, 0.0, 0.0
        for place, signs in enumerate(starts[1:], start=1):
            same = min(starts[longest].size, signs.size)
            growth = _seldom(_by_count(same)[np.count_nonzero(starts[longest][:same] == signs[:same])])
            grown += growth
            if growth > best:
                best, self._shares = growth, (place, longest)
            if signs.size > starts[longest].size:
                longest = place
        if len(starts) > 1:
            self._shared = self._grown(self._shared, grown)

    def _bet_on_records(self, product: float, square: float) -> None:
        self._products += product
        self._squares += square
        seen = (self._steps - 1) * self._sizes.sum()
        if seen >= ENOUGH:
            spread = max(1.0, LARGER**2 * self._energy / seen)
            self._shifts = self._grown(self._shifts, (SHIFTS * product - SHIFTS**2 * square / 2) / spread)
        wealth = float(np.logaddexp.reduce(self._shifts)) - math.log(len(SHIFTS))
        if self.clipping is None and wealth >= self._goal:
            share = self._products / self._squares
            self.clipping = (
                f"the released sums hold about {100 * abs(share):.0f} % {'more' if share > 0 else 'less'} of the "
                f"records than clipping to max_grad_norm leaves (seen at step {self._steps:,})"
            )

    def _judge(self) -> None:
        by_place = np.logaddexp.reduce(self._scales, axis=1) - math.log(len(SCALES) * 2)
        by_place[1:] -= math.log(len(self._sizes))  # half of the wealth is bet on all parameters, half on each
        wealths = np.array([np.logaddexp.reduce(by_place), self._again, self._shared])
        if np.logaddexp.reduce(wealths) - math.log(len(wealths)) < self._goal:
            return
        self.found_at = self._steps
        kind = int(np.flatnonzero(wealths >= min(self._goal, wealths.max()))[0])
        if kind == 1:
            self.fault = f"the noise of step {self._steps:,} repeats that of step {self._repeated:,}"
        elif kind == 2:
            self.fault = "parameter {} has the noise of parameter {}".format(*self._shares)
        else:
            place = int(by_place.argmax())
            where = "all parameters" if place == 0 else f"parameter {place - 1}"
            scale = SCALES[self._scales[place].argmax()]
            self.fault = f"it has about {100 * scale:.0f} % of the standard deviation that is claimed, in {where}"


@lru_cache
def _by_count(of: int) -> Array:
    """The log-ratio of 0, 1, ..., `of` agreeing signs: the mean over the shares that are bet on, against ½."""
    count = np.arange(of + 1)[:, None]
    ratios = count * np.log(2 * AGREEING) + (of - count) * np.log(2 * (1 - AGREEING))
    means: Array = np.logaddexp.reduce(ratios, axis=1) - math.log(len(AGREEING))
    return means


def _seldom(ratio: float) -> float:
    """The growth of a wealth of which a small share is bet on this log-ratio."""
    return float(np.logaddexp(math.log1p(-SELDOM), math.log(SELDOM) + ratio))
