"""What the sizes of batches say about how they were sampled."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from opacus.optimizers import DPOptimizer
from scipy.stats import binom

CERTAIN = 1e-9  # the probability below which Poisson sampling is ruled out


class BatchSizes:
    """Collects the sizes of batches from an optimizer, two at a time, to tell fixed sizes from those of Poisson."""

    def __init__(self) -> None:
        self._accumulated = False
        self._readable = True
        self._earlier: int | None = None  # the first batch of a pair
        self._pairs = self._equal = 0
        self._chance = 0.0

    def see(self, optimizer: DPOptimizer, sample_rate: float) -> None:
        """Called by the optimizer at each step, before its gradients are cleared."""
        # Opacus does not accumulate the gradients of Poisson batches.
        self._accumulated |= optimizer.accumulated_iterations > 1
        # A batch that BatchMemoryManager has split does not show its size, and the others are the small ones.
        self._readable &= not getattr(optimizer, "_is_last_step_skipped", True)
        sample = getattr(optimizer.params[0], "grad_sample", None)
        if self._accumulated or not self._readable or sample is None or not optimizer.expected_batch_size:
            return
        size = len(sample) - getattr(sample, "canary_rows", 0)
        if self._earlier is None:
            self._earlier = size
            return
        self._pairs += 1
        self._equal += size == self._earlier
        self._chance = max(self._chance, _equal_chance(float(optimizer.expected_batch_size), sample_rate))
        self._earlier = None

    @property
    def against_poisson(self) -> str:
        """What rules Poisson sampling out, in words; empty if nothing does."""
        if self._accumulated:
            return "gradients of several batches were accumulated in a step"
        if self._readable and self._equal and binom.sf(self._equal - 1, self._pairs, self._chance) < CERTAIN:
            return f"{self._equal} of {self._pairs} pairs of successive batches were of equal size"
        return ""


@lru_cache
def _equal_chance(expected_batch_size: float, sample_rate: float) -> float:
    """The probability that two Poisson batches are of equal size. A batch has Bin(n, q) records."""
    n = math.ceil(expected_batch_size / sample_rate)
    spread = math.sqrt(expected_batch_size * (1 - sample_rate))
    sizes = np.arange(
        max(0, math.floor(expected_batch_size - 12 * spread)), math.ceil(expected_batch_size + 12 * spread) + 1
    )
    return float(np.sum(binom.pmf(sizes, n, sample_rate) ** 2))
