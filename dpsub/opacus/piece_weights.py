"""How much each piece of a canary counts in the score of a step."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpsub.estimators.betting import FIRST

LEAST_VARIANCE = 1e-9  # relative to the largest

Array = NDArray[np.float64]


class PieceWeights:
    """Weighs the pieces of a canary by what the past shows of their noise.

    For the first `FIRST` observations the score is the product with the clipped canary, of norm 1. Later the weight of
    a piece is its norm over the variance of its products in the past (a matched filter): a parameter without noise then
    decides. The score of an observation uses earlier ones only, so bets may use it. The scale stays: without noise,
    the score of a clipped canary is its norm.
    """

    def __init__(self, parameters: int) -> None:
        # One row each for observations with -canary, without it, and with +canary.
        self._counts, self._sums, self._squares = (np.zeros((3, parameters)) for _ in range(3))

    def score(self, products: Array, norms: Array, places: NDArray[np.int64], sign: int) -> float:
        """The score of an observation, which is learnt from afterwards.

        Args:
            products: of the privatised sum with the pieces' directions, in clipping bounds.
            norms: of the pieces after correct clipping, in clipping bounds.
            places: the parameters that the pieces are of.
            sign: 1, -1 or 0: how the canary was in.
        """
        if len(places) == 1:
            return float(products[0])
        weights = norms / self._variances(places)
        self._counts[sign + 1, places] += 1
        self._sums[sign + 1, places] += products
        self._squares[sign + 1, places] += products**2
        return float((weights @ products) / (weights @ norms) * np.sqrt(norms @ norms))

    def _variances(self, places: NDArray[np.int64]) -> Array:
        counts = self._counts[:, places]
        if counts.sum(axis=0).min() < FIRST:
            return np.ones(len(places))
        means = self._sums[:, places] / np.maximum(counts, 1)
        spread = (self._squares[:, places] - counts * means**2).sum(axis=0) / counts.sum(axis=0)
        return np.maximum(spread, LEAST_VARIANCE * spread.max()) if spread.max() > 0 else np.ones(len(places))
