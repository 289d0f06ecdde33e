"""What a bettor learns from the past, at growing intervals."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpsub.estimators.claims import Array

FIRST = 64  # observations to learn from before the first bet
GROWTH = 1.15  # the bettor learns anew when the past has grown by this factor
QUANTILES = np.array([0.01, 0.05, 0.15, 0.3, 0.5, 0.7, 0.85, 0.95, 0.99])  # of the past's scores, symmetric


class Stretch(NamedTuple):
    """Observations between two lessons.

    Attributes:
        past: (2, cells) how many earlier observations of each world fell into each cell.
        above, below: (thresholds, cells) which cells are above and below each threshold.
        worlds, cells: (observations,) of the stretch itself.
        start: the number of observations before it.
    """

    past: Array
    above: Array
    below: Array
    worlds: NDArray[np.int64]
    cells: NDArray[np.int64]
    start: int


class Lesson(NamedTuple):
    """What the past shows before a stretch.

    Attributes:
        cuts: the different thresholds, in increasing order.
        past, above, below: as in `Stretch`.
    """

    cuts: Array
    past: Array
    above: Array
    below: Array

    def cells(self, scores: Array | float) -> NDArray[np.int64]:
        """Cell 2i + 1 holds the scores that equal cut i, the cells beside it those between two cuts."""
        return np.asarray(np.searchsorted(self.cuts, scores, "left") + np.searchsorted(self.cuts, scores, "right"))


def lesson(scores: Array, worlds: NDArray[np.int64]) -> Lesson:
    """What these observations show."""
    thresholds = np.quantile(scores, QUANTILES, method="inverted_cdf")
    count = 2 * len(QUANTILES) + 1
    own = 2 * np.searchsorted(cuts := np.unique(thresholds), thresholds)[:, None] + 1
    learnt = Lesson(
        cuts, np.empty(0), (np.arange(count) > own).astype(np.float64), (np.arange(count) < own).astype(np.float64)
    )
    past = np.bincount(worlds * count + learnt.cells(scores), minlength=2 * count).reshape(2, count)
    return learnt._replace(past=past.astype(np.float64))


def until(start: int) -> int:
    """The number of observations at which the bettor learns anew."""
    return math.ceil(start * GROWTH)


def stretches(scores: Array, in_z: NDArray[np.bool_]) -> Iterator[Stretch]:
    """The observations after the first `FIRST`, with what was known before each stretch of them."""
    worlds = np.where(in_z, 0, 1)
    start = FIRST
    while start < len(scores):
        end = min(len(scores), until(start))
        learnt = lesson(scores[:start], worlds[:start])
        yield Stretch(*learnt[1:], worlds[start:end], learnt.cells(scores[start:end]), start)
        start = end
