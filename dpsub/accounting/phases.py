r"""A training as its accountants see it: phases of steps at one noise multiplier and sample rate.

With `sampling="poisson"` each record is in each batch by a coin of its own. With `sampling="without_replacement"` each
batch is drawn anew, so many of all records. With `sampling="epochs"` each record is in one batch of each epoch. An
adversary may know in which, so that sampling hides nothing: an epoch is one step that the record takes part in with
certainty.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dpsub._core import checks

LEAST_NOISE, MOST_NOISE, LEAST_RATE, MOST_STEPS = 1e-4, 1e6, 1e-300, 10**9  # the range that floating point covers

NOISE = partial(checks.real, at_least=LEAST_NOISE, at_most=MOST_NOISE)
STEPS = partial(checks.whole, at_most=MOST_STEPS)

StepCounts = Sequence[int] | NDArray[np.integer]
Phase = tuple[float, float, int]  # noise multiplier, sample rate, steps
History = Sequence[tuple[float, float, int]]
"""Phases of a training as (noise_multiplier, sample_rate, steps), as Opacus's accountants record them."""


def distance(worlds: str) -> float:
    """The distance of the two worlds' means at a step that samples the record, in units of the clipping bound."""
    return 2.0 if worlds in ("substitute", "without_replacement") else 1.0


@dataclass(frozen=True)
class Training:
    """Phases of (noise multiplier, sample rate), and the number of steps of each phase for each requested curve.

    `worlds` is the adjacency, or "without_replacement" for a record replaced where batches are of fixed size.
    """

    mechanisms: tuple[tuple[float, float], ...]
    counts: tuple[tuple[int, ...], ...]
    worlds: str

    @property
    def harshest(self) -> tuple[float, float]:
        """A mechanism that dominates the mechanisms of all phases."""
        return min(sigma for sigma, _ in self.mechanisms), max(q for _, q in self.mechanisms)

    @property
    def attained(self) -> Self | None:
        """Poisson's training with the ε that batches of fixed size attain, if all others' gradients are that of z′."""
        if self.worlds != "without_replacement":
            return None
        halves = tuple((sigma / 2, q) for sigma, q in self.mechanisms)
        return replace(self, mechanisms=halves, worlds="add_remove")

    @property
    def most(self) -> tuple[int, ...]:
        return max(self.counts, key=sum)


@checks.checked("adjacency", "noise_multiplier", "sample_rate", "sampling")
def of_arguments(
    adjacency: str,
    sampling: str,
    noise_multiplier: float | None = None,
    sample_rate: float | None = None,
    steps: int | StepCounts | None = None,
    history: History | None = None,
) -> tuple[Training, bool]:
    """The training that the checked arguments describe, and whether they ask for a single curve."""
    worlds = worlds_of(adjacency, sampling)
    if history is not None:
        if not (noise_multiplier is sample_rate is steps is None):
            raise ValueError("history must be given alone: it already holds noise_multiplier, sample_rate and steps")
        return _training([checks.history(history)], worlds, sampling), True
    if noise_multiplier is None or sample_rate is None or steps is None:
        raise ValueError("noise_multiplier, sample_rate and steps must all be given, or else a history")
    checks.no_mask("steps", steps)
    expected = "steps must be a whole number or a non-empty sequence of whole numbers"
    try:
        several = np.ndim(steps) > 0
        counts = np.asarray(steps).tolist() if several else [steps]
    except (TypeError, ValueError, RuntimeError):  # of tensors that are no arrays, and of ragged sequences
        raise ValueError(f"{expected}, got {steps!r}: give a list of whole numbers") from None
    if np.ndim(steps) > 1 or not counts:
        raise ValueError(f"{expected}, got {steps!r}")
    rows = [[(noise_multiplier, sample_rate, checks.whole("steps", count))] for count in counts]
    return _training(rows, worlds, sampling), not several


def _training(rows: list[list[Phase]], worlds: str, sampling: str) -> Training:
    """One curve for each row of phases. All rows have the same mechanisms."""
    counted = [Counter[tuple[float, float]]() for _ in rows]
    for counter, row in zip(counted, rows, strict=True):
        for sigma, q, count in epochs(row) if sampling == "epochs" else row:
            counter[sigma, q] += count
    counts = tuple(tuple(counter.values()) for counter in counted)
    return _computable(Training(tuple(counted[0]), counts, worlds))


def _computable(training: Training) -> Training:
    for sigma, q in training.mechanisms:
        NOISE("noise_multiplier", sigma)
        checks.real("sample_rate", q, at_least=LEAST_RATE, at_most=1)
    STEPS("steps", sum(training.most))
    return training


def worlds_of(adjacency: str, sampling: str) -> str:
    """What a step's two worlds are called (`Training.worlds`), if this adjacency has an ε with this sampling."""
    if sampling == "epochs" and adjacency == "add_remove":
        raise ValueError(
            "adjacency must be 'substitute' or 'zero_out' with sampling='epochs', got 'add_remove': a removed record "
            "would shift the others between batches"
        )
    if sampling != "without_replacement":
        return adjacency
    if adjacency == "substitute":
        return sampling
    reason = (
        "a removed record changes how many there are, and so how often each is sampled"
        if adjacency == "add_remove"
        else "no tight ε is known for it; that of 'substitute' holds for it, too"
    )
    raise ValueError(f"adjacency must be 'substitute' with sampling='without_replacement', got {adjacency!r}: {reason}")


def epochs(phases: Sequence[Phase]) -> list[Phase]:
    """The full batches that these phases amount to if each record is in one batch an epoch, whatever the order.

    An epoch in which the noise changes counts with its least noise, since the record's batch may come then. A last
    epoch that is not complete counts as a whole one.
    """
    found: list[Phase] = []
    done = Fraction(0)  # epochs so far
    for sigma, q, steps in phases:
        end = done + Fraction(steps, checks.steps_an_epoch(q))
        if done.denominator != 1 and sigma < found[-1][0]:  # this phase begins within an epoch
            *before, (earlier, _, count) = found
            found = [*before, *([(earlier, 1.0, count - 1)] if count > 1 else []), (sigma, 1.0, 1)]
        if begun := math.ceil(end) - math.ceil(done):
            found.append((sigma, 1.0, begun))
        done = end
    return found
