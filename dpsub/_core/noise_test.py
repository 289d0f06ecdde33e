"""A test of the noise itself: what is left of each step when the records and the canary are taken out."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpsub._core.random_streams import stream

SCALES = np.array([0.02, 0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95])  # standard deviations that are bet on, where 1 is claimed
SHIFTS = np.array([-1.0, -0.5, -0.2, -0.05, 0.05, 0.2, 0.5, 1.0])  # of the sum, as shares of the records' sum
LARGER = 1.1  # by this factor, the noise may be larger than it was so far
ENOUGH = 100  # the size of the noise so far is taken from at least this many numbers
SAMPLE = 256  # coordinates that are compared with those of earlier steps, or of another parameter
REMEMBERED = 1_000  # the latest steps, which a step is compared with in the whole sample
FINGERPRINT = 32  # coordinates of the sample that are kept of all steps before them
RECENT = 8  # in this many steps, other clipping leaves about the same of the records
ROUNDED = 1e-9  # the share of an earlier residue's energy that rounding may leave when it is fitted
SELDOM = 0.02  # the share of the wealth that is bet on noise that comes again, at each step

Array = NDArray[np.float64]


class Summary(NamedTuple):
    """What `NoiseTest` looks at in a step: the residue r, and the sum S of the records' clipped gradients, over σC.

    Attributes:
        squares: (parameters,) r·r of each parameter.
        sampled: (2, places) r and S at `NoiseTest.places`.
        product: r·S of all parameters.
        records: S·S of all parameters.
    """

    squares: Array
    sampled: Array
    product: float
    records: float

    @classmethod
    def of(cls, residue: Array, records: Array, sizes: Sequence[int], places: NDArray[np.int64]) -> Summary:
        """Of r and S (coordinates,), all parameters in a row."""
        squares = np.array([one @ one for one in np.split(residue, np.cumsum(sizes)[:-1])])
        sampled = np.stack([residue[places], records[places]])
        return cls(squares, sampled, float(residue @ records), float(records @ records))


class NoiseTest:
    r"""Bets that the noise of DP-SGD is not what is claimed: independent Gaussian, of standard deviation σC everywhere.

    The residue of a step is the released sum without the records' clipped gradients and the canary, in units of σC. If
    the optimizer is right it is N(0, 1) in each coordinate, whatever happened before. So each likelihood ratio below
    has a mean of at most 1, given the past, and so has any mean of them that the past chooses. A share 1/(t(t + 1)) of
    the first wealth waits for step t and is then multiplied by the ratios of that step and all later ones, so that a
    fault may begin late. The wealth ever reaches 1/alpha with probability at most alpha (Ville), however long one
    watches.

    - *too little*: N(0, s²) against N(0, 1), for a few s below 1, in each parameter, and in all less their share of S.
    - *comes again*: the same of what remains in a sample of coordinates when S, the means of the earlier and of the
      latest residues, and the residue of one earlier step are fitted to the residue and taken out. All earlier steps
      are tried: the latest ones with the whole sample, older ones with a few coordinates of it.
    - *shared*: the same of a parameter's first coordinates, less S and the residue of an earlier parameter.
    - *clipping*: N(βS, c²) against N(0, c²), where S is the records' clipped sum, for a few β; c is 1, or a tenth more
      than the past's residues where these are larger.

    Only *clipping* is about the records. A step may clip in another way, which leaves B in the residue, a function of
    the records and of the past: N(B, 1) has more energy than N(0, 1) in every subspace that does not depend on the
    step's noise (Anderson), and so has noise that is larger than is claimed. Neither is a fault.

    Args:
        alpha: the probability with which noise that is right is called wrong.
        sizes: the number of entries of each parameter.
        seed: of the sample of coordinates.

    Attributes:
        places: the coordinates that are compared: a sample of all, and the first ones of each parameter.
        found_at: the number of steps after which a fault was found; None if none was.
        repeats: in words, which noise comes again or is shared; None if none was found.
        clipping: in words, how the released sums differ from those of clipped gradients; None if they do not, or if
            `repeats`: what such noise and the records have in common is no chance. It is a message and no verdict:
            other clipping may be private, too.
    """

    def __init__(self, alpha: float, sizes: Sequence[int], seed: int) -> None:
        self.found_at: int | None = None
        self.repeats: str | None = None
        self.clipping: str | None = None
        self._goal, self._sizes, self._steps = -math.log(alpha), np.array([sum(sizes) - 1, *sizes], dtype=float), 0
        self._scales = np.full((1 + len(sizes), len(SCALES)), -np.inf)  # log-wealth: of all parameters, and of each
        rng, total = stream(seed, "audit", 1), sum(sizes)
        ends = np.cumsum(sizes)
        firsts = [end - size + np.arange(min(size, SAMPLE)) for end, size in zip(ends, sizes, strict=True)]
        compared = [rng.choice(total, min(SAMPLE, total), replace=False), *firsts]
        self.places: NDArray[np.int64] = np.concatenate(compared)
        self._ends = np.cumsum([len(one) for one in compared])[:-1]
        self._remembered = np.zeros((0, len(compared[0])))
        self._older = self._remembered[:, :FINGERPRINT].astype(np.float32)
        self._again = self._shared = -math.inf
        self._shifts = np.full(len(SHIFTS), -np.inf)
        self._products = self._squares = 0.0
        self._energy = np.zeros(1 + len(sizes))
        self._place, self._shares, self._repeated = 0, (0, 0), 0

    @property
    def fault(self) -> str | None:
        """In words, what is wrong with the noise, as all steps show it; None if nothing was found."""
        if self.found_at is None or self.repeats:
            return self.repeats
        everywhere = self._place == 0 or len(self._sizes) == 2
        where = "all parameters" if everywhere else f"parameter {self._place - 1}"
        scale = math.sqrt(self._energy[self._place] / self._sizes[self._place] / self._steps)
        about = "less than" if self.clipping else f"about {100 * scale:.0f} % of"  # it would count the records' share
        return f"it has {about} the standard deviation that is claimed, in {where}"

    def observe(self, step: Summary) -> None:
        """Take one more step."""
        self._steps += 1
        # Other clipping leaves a share of S in r. Beside S, r has n - 1 numbers, whose squares are r·r - (r·S)²/S·S.
        of_records = step.product**2 / max(step.records, sys.float_info.min)
        squares = np.append(step.squares.sum() - of_records, step.squares)
        self._scales = self._grown(self._scales, _too_little(squares, self._sizes))
        sampled, *starts = np.split(step.sampled, self._ends, axis=1)
        self._bet_on_repeats(*sampled)
        self._bet_on_sharing(starts)
        if not self.repeats:
            self._bet_on_records(step.product, step.records)
        self._energy += squares
        if self.found_at is None:
            self._judge()

    def _grown(self, wealth: Any, ratios: Any) -> Any:
        """The log-wealth after this step, with what has waited for it: W(t) = (W(t-1) + 1/(t(t+1))) · ratio(t)."""
        return np.logaddexp(wealth, -math.log(self._steps * (self._steps + 1))) + ratios

    def _bet_on_repeats(self, residue: Array, records: Array) -> None:
        if len(self._remembered):
            known = np.stack([records, self._remembered.mean(axis=0), self._remembered[-RECENT:].mean(axis=0)])
            ratios = _too_little_besides(residue, known, self._remembered)
            alike = abs(self._remembered @ residue) / (np.linalg.norm(self._remembered, axis=1) + sys.float_info.min)
            self._repeated = len(self._older) + int(alike.argmax()) + 1
            if len(self._older):
                # A part of a sum of ratios is less than the sum, so a bet on the most similar of them holds as well.
                nearest = np.argsort(-abs(self._older @ residue[:FINGERPRINT].astype(np.float32)))[:REMEMBERED]
                older = _too_little_besides(residue[:FINGERPRINT], known[:, :FINGERPRINT], self._older[nearest])
                if older.max() > ratios.max():
                    self._repeated = int(nearest[older.argmax()]) + 1
                ratios = np.append(older, ratios)
            self._again = self._grown(self._again, _seldom(np.logaddexp.reduce(ratios) - math.log(self._steps - 1)))
        self._remembered = np.vstack([self._remembered, residue])
        if len(self._remembered) > REMEMBERED:
            self._older = np.vstack([self._older, self._remembered[0, :FINGERPRINT].astype(np.float32)])
            self._remembered = self._remembered[1:]

    def _bet_on_sharing(self, starts: Sequence[Array]) -> None:
        # Given the parameters before it, the noise of one is new, so these ratios may be multiplied.
        longest, best, grown = 0, 0.0, 0.0
        for place, (residue, records) in enumerate(starts[1:], start=1):
            earlier = starts[longest][0]
            same = min(earlier.size, residue.size)
            growth = _seldom(float(_too_little_besides(residue[:same], [records[:same]], earlier[None, :same])[0]))
            grown += growth
            if growth > best:
                best, self._shares = growth, (place, longest)
            if residue.size > earlier.size:
                longest = place
        if len(starts) > 1:
            self._shared = self._grown(self._shared, grown)

    def _bet_on_records(self, product: float, square: float) -> None:
        self._products += product
        self._squares += square
        # log N(r; βS, c²)/N(r; 0, c²) = (β r·S - β² S·S/2)/c². c may depend on the past alone, so not on this step.
        seen = (self._steps - 1) * self._sizes[1:].sum()
        if seen >= ENOUGH:
            spread = max(1.0, LARGER**2 * self._energy[1:].sum() / seen)
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
        by_place[1:] -= math.log(len(by_place) - 1)  # half of the wealth is bet on all parameters, half on each
        # A mean of wealths is a wealth: a third each is bet on too little noise, noise that comes again, shared noise.
        wealths = np.array([np.logaddexp.reduce(by_place), self._again, self._shared])
        if np.logaddexp.reduce(wealths) - math.log(len(wealths)) < self._goal:
            return
        self.found_at = self._steps
        kind = int(wealths.argmax())
        if kind == 0:
            self._place = int(by_place.argmax())
            return
        self.clipping = None
        if kind == 2:
            self.repeats = "parameter {} has the noise of parameter {}".format(*self._shares)
            return
        self.repeats = f"the noise of step {self._steps:,} repeats that of step {self._repeated:,}"


def _too_little(squares: Array, numbers: Any) -> Array:
    """The log-ratios (..., scales) of so many numbers with these sums of squares, if they have less than N(0, 1).

    log N(r; 0, s²)/N(r; 0, 1), summed over n numbers, is r·r (1 - 1/s²)/2 - n log s.
    """
    return np.asarray(squares[..., None] * (1 - SCALES**-2) / 2 - np.expand_dims(numbers, -1) * np.log(SCALES))


def _too_little_besides(residue: Array, known: Any, earlier: NDArray[Any]) -> Array:
    """The log-ratios of too little noise in a residue, less `known` sums and each of the earlier ones (residues, n).

    They are fitted by least squares, and each takes one of the n numbers away: the last known ones are left out where
    there are few.
    """
    basis = np.linalg.qr(np.reshape(known[: len(residue) // 4], (-1, len(residue))).T)[0]
    # Noise that is new stays Gaussian beside any subspace that does not depend on it; noise that repeats an earlier
    # residue e leaves nothing beside e. Subtracting e's part beside the basis is one more fit.
    residue = residue - basis @ (basis.T @ residue)
    squares = np.einsum("ij,ij->i", earlier, earlier)
    besides = np.maximum(squares - ((earlier @ basis) ** 2).sum(axis=1), ROUNDED * squares + sys.float_info.min)
    left = residue @ residue - (earlier @ residue) ** 2 / besides
    ratios = _too_little(left, len(residue) - basis.shape[1] - 1)
    return np.asarray(np.logaddexp.reduce(ratios, axis=1) - math.log(len(SCALES)))


def _seldom(ratio: float) -> float:
    """The growth of a wealth of which a small share is bet on this log-ratio."""
    return float(np.logaddexp(math.log1p(-SELDOM), math.log(SELDOM) + ratio))
