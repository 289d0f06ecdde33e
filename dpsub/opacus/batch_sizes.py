"""What the sizes of batches say about how they were sampled."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from opacus.optimizers import DPOptimizer
from scipy.stats import binom

CERTAIN = 1e-9  # the probability below which Poisson sampling is ruled out


class BatchSizes:
    """Collects the sizes of batches from an optimizer, to tell fixed sizes from those of Poisson, and the parts of one
    batch, as `BatchMemoryManager` makes them, from several batches in one step.

    Args:
        earlier: `against_poisson` and `against_all` of the batches before a checkpoint.
    """

    def __init__(self, earlier: tuple[str, str] = ("", "")) -> None:
        self._earlier_against = earlier
        self._accumulated = False
        self._split = False
        self._least = self._expected = 0.0  # records in all steps: at least, and on average at most
        self._earlier: int | None = None  # the first batch of a pair
        self._pairs = self._equal = 0
        self._chance = 0.0

    def see(self, optimizer: DPOptimizer, sample_rate: float) -> None:
        """Called by the optimizer at each step, before its gradients are cleared."""
        # Opacus does not accumulate the gradients of Poisson batches.
        self._accumulated |= optimizer.accumulated_iterations > 1
        split = getattr(optimizer, "_is_last_step_skipped", True)
        self._split |= split
        sample = getattr(optimizer.params[0], "grad_sample", None)
        if self._accumulated or sample is None or not optimizer.expected_batch_size:
            return
        size = len(sample) - getattr(sample, "canary_rows", 0)
        self._least += 2 * size if split else size  # the last part of a batch is the smallest
        self._expected += optimizer.expected_batch_size + 1  # Opacus rounds it down
        if self._split:  # a batch that was split does not show its size, and the others are the small ones
            return
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
        if self._earlier_against[0]:
            return self._earlier_against[0]
        if self._accumulated:
            return "gradients of several batches were accumulated in a step"
        if not self._split and self._equal and binom.sf(self._equal - 1, self._pairs, self._chance) < CERTAIN:
            return f"{self._equal} of {self._pairs} pairs of successive batches were of equal size"
        return ""

    @property
    def against_all(self) -> str:
        """What shows that skipped steps joined several batches, in words; empty if nothing does.

        A record may then be in a step several times, and no sample rate describes that.
        """
        if self._earlier_against[1] or not self._split or self._least <= self._expected:
            return self._earlier_against[1]
        # Chernoff's bound on the chance of so many records, whatever the sample rates.
        exponent = self._least * math.log(self._least / self._expected) - self._least + self._expected
        if exponent < -math.log(CERTAIN):
            return ""
        return f"{self._least:.0f} or more records were in batches, where {self._expected:.0f} are expected at most"


@lru_cache
def _equal_chance(expected_batch_size: float, sample_rate: float) -> float:
    """The probability that two Poisson batches are of equal size. A batch has Bin(n, q) records."""
    n = math.ceil(expected_batch_size / sample_rate)
    spread = math.sqrt(expected_batch_size * (1 - sample_rate))
    sizes = np.arange(
        max(0, math.floor(expected_batch_size - 12 * spread)), math.ceil(expected_batch_size + 12 * spread) + 1
    )
    return float(np.sum(binom.pmf(sizes, n, sample_rate) ** 2))
