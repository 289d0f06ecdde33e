"""The threshold rule for scores of several folds, each with a scorer of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpsub.estimators.claims import Array, Claim
from dpsub.estimators.one_threshold import ThresholdTest
from dpsub.estimators.pooled_ranks import largest_refuted, ranks_of_folds
from dpsub.estimators.rank_tests import LEAST_RUNS
from dpsub.estimators.threshold_rules import Decision

MOST_RUNS = 200_000  # in all: the laws of more are computed slowly


@dataclass(frozen=True, eq=False)
class Folds:
    """The exact rank test of each fold at ranks fixed in advance, pooled: see `dpsub.estimators.pooled_ranks`.

    Attributes:
        numbers: (runs,) each run's fold.
    """

    numbers: NDArray[np.int64]
    name: ClassVar[str] = "folds"
    valid: ClassVar[bool] = True
    one_threshold: ClassVar[bool] = False

    @property
    def count(self) -> int:
        """The number of folds."""
        return len(np.unique(self.numbers))

    def decide(
        self, scores: Array, in_z: NDArray[np.bool_], claim: Claim, test: ThresholdTest, alpha: float
    ) -> Decision:
        self._check(len(scores))
        worlds = []
        for fold in np.unique(self.numbers):
            here, of_z = scores[self.numbers == fold], in_z[self.numbers == fold]
            if len(np.unique(of_z)) < 2:
                raise ValueError(
                    f"folds must each hold runs of both worlds, got one world only in fold {fold}, of {len(here)} "
                    "runs: give fewer folds"
                )
            worlds.append((np.sort(here[of_z]), np.sort(here[~of_z])))
        positives, negatives = ([len(world[i]) for world in worlds] for i in (0, 1))
        if self.too_few(sum(negatives)):
            return Decision(0.0, None)
        shares = ranks_of_folds(claim, negatives)
        missed = {
            ranks: sum(
                int(np.searchsorted(of_z, of_z_prime[-rank], side="right"))
                for rank, (of_z, of_z_prime) in zip(ranks, worlds, strict=True)
            )
            for ranks in shares
        }
        parameter, decided = largest_refuted(claim, missed, shares, negatives, positives, alpha)
        alone = decided is not None and len(worlds) == 1
        return Decision(parameter, float(worlds[0][1][-decided[0]]) if alone and decided else None)

    def ceiling(self, runs: int, claim: Claim, test: ThresholdTest, alpha: float) -> float:
        """The largest parameter that as many folds of the same size can refute."""
        self._check(runs)
        sizes = [len(part) for part in np.array_split(np.arange(runs), self.count)]
        negatives = [size // 2 for size in sizes]
        positives = [size - size // 2 for size in sizes]
        if self.too_few(sum(negatives)):
            return 0.0
        shares = ranks_of_folds(claim, negatives)
        return largest_refuted(claim, dict.fromkeys(shares, 0), shares, negatives, positives, alpha)[0]

    def too_few(self, negatives: int) -> str:
        return "" if negatives >= LEAST_RUNS else f"the rank test needs {LEAST_RUNS} runs with z_prime, got {negatives}"

    def _check(self, runs: int) -> None:
        if runs > MOST_RUNS and self.count > 1:
            raise ValueError(
                f"runs must be at most {MOST_RUNS:,} for threshold 'folds', got {runs:,}: hold models out instead"
            )
