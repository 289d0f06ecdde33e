"""A training as its accountants see it: independent phases of steps at one noise multiplier and sample rate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dpsub._core import checks
from dpsub.accounting.dominating_pairs import LEAST_RATE, NOISE, StepPair
from dpsub.accounting.samplings import History, Poisson, Sampling

MOST_STEPS = 10**9
STEPS = partial(checks.whole, at_most=MOST_STEPS)

StepCounts = Sequence[int] | NDArray[np.integer]


@dataclass(frozen=True)
class Training:
    """Phases of steps, for one or several curves δ(ε): one for each requested number of steps.

    Attributes:
        mechanisms: for each phase its noise multiplier and sample rate, as `Sampling.phases` returns them.
        counts: for each curve, the number of steps of each phase.
    """

    mechanisms: tuple[tuple[float, float], ...]
    counts: tuple[tuple[int, ...], ...]
    sampling: Sampling
    adjacency: str

    @cached_property
    def pairs(self) -> list[tuple[StepPair, ...]]:
        """For each phase, the pairs that dominate one of its steps: one for each direction."""
        return [self.sampling.pairs(self.adjacency, sigma, q) for sigma, q in self.mechanisms]

    @property
    def distance(self) -> float:
        """The distance of the two worlds' means at a step that uses the record, in units of the clipping bound."""
        return self.sampling.distance(self.adjacency)

    @property
    def harshest(self) -> tuple[float, float]:
        """The noise multiplier and sample rate of a mechanism that dominates those of all phases."""
        return min(sigma for sigma, _ in self.mechanisms), max(q for _, q in self.mechanisms)

    @property
    def attained(self) -> Self | None:
        """The training with Poisson batches whose ε is what `Sampling.attained` describes; None if there is none."""
        attained = [self.sampling.attained(self.adjacency, *mechanism) for mechanism in self.mechanisms]
        if None in attained:
            return None
        adjacencies, *mechanisms = zip(*attained, strict=True)
        return type(self)(tuple(zip(*mechanisms, strict=True)), self.counts, Poisson(), adjacencies[0])

    @property
    def longest(self) -> tuple[int, ...]:
        """The step counts of the curve with the most steps."""
        return max(self.counts, key=sum)


@checks.checked("adjacency", "noise_multiplier", "sample_rate")
def training_of(
    adjacency: str,
    sampling: Sampling | str,
    noise_multiplier: float | None = None,
    sample_rate: float | None = None,
    steps: int | StepCounts | None = None,
    history: History | None = None,
) -> Training:
    """The training that the checked arguments describe."""
    sampling = Sampling.of(sampling)
    sampling.check_adjacency(adjacency)
    if history is not None:
        if not (noise_multiplier is sample_rate is steps is None):
            raise ValueError("history must be given alone: it already holds noise_multiplier, sample_rate and steps")
        rows = [checks.history(history)]
    elif noise_multiplier is None or sample_rate is None or steps is None:
        raise ValueError("noise_multiplier, sample_rate and steps must all be given, or else a history")
    else:
        counts = checks.array("steps", steps, kind=np.int64, at_least=1, at_most=MOST_STEPS)
        if counts.ndim > 1 or not counts.size:
            raise ValueError(f"steps must be a whole number or a non-empty sequence of whole numbers, got {steps!r}")
        rows = [[(noise_multiplier, sample_rate, count)] for count in np.atleast_1d(counts).tolist()]
    counted = [Counter[tuple[float, float]]() for _ in rows]  # of each curve, the steps of each mechanism
    for counter, row in zip(counted, rows, strict=True):
        for sigma, q, count in sampling.phases(row):
            counter[sigma, q] += count
    training = Training(tuple(counted[0]), tuple(tuple(counter.values()) for counter in counted), sampling, adjacency)
    for sigma, q in training.mechanisms:
        NOISE("noise_multiplier", sigma)
        checks.real("sample_rate", q, at_least=LEAST_RATE, at_most=1)
    STEPS("steps", sum(training.longest))
    return training
