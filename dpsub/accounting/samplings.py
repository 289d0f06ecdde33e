r"""How records enter batches, and the full batches that batches of epochs amount to.

With `sampling="epochs"` each record is in one batch of each epoch. An adversary may know in which, so that sampling
hides nothing: an epoch is one step that the record takes part in with certainty.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from dpsub._core import checks

SAMPLINGS = ("poisson", "epochs")
WHOLE = 1e-3  # how far 1/sample_rate may be from a whole number of steps, absolute

Phase = tuple[float, float, int]  # noise multiplier, sample rate, steps


def check_adjacency(sampling: str, adjacency: str) -> None:
    checks.choice("sampling", sampling, SAMPLINGS)
    if sampling == "epochs" and adjacency == "add_remove":
        raise ValueError(
            "adjacency must be 'substitute' or 'zero_out' with sampling='epochs', got 'add_remove': a removed record "
            "would shift the others between batches"
        )


def epochs(phases: Sequence[Phase]) -> list[Phase]:
    """The full batches that these phases amount to if each record is in one batch an epoch, whatever the order.

    An epoch in which the noise changes counts with its least noise, since the record's batch may come then. A last
    epoch that is not complete counts as a whole one.
    """
    found: list[Phase] = []
    done = Fraction(0)  # epochs so far
    for sigma, q, steps in phases:
        end = done + Fraction(steps, steps_an_epoch(q))
        if done.denominator != 1 and sigma < found[-1][0]:  # this phase begins within an epoch
            *before, (earlier, _, count) = found
            found = [*before, *([(earlier, 1.0, count - 1)] if count > 1 else []), (sigma, 1.0, 1)]
        if begun := math.ceil(end) - math.ceil(done):
            found.append((sigma, 1.0, begun))
        done = end
    return found


def steps_an_epoch(sample_rate: float) -> int:
    inverse = min(1 / sample_rate, 1e18)
    steps = round(inverse)
    if abs(inverse - steps) > WHOLE:
        fewer = math.floor(inverse)
        raise ValueError(
            f"sample_rate must be 1 / (steps an epoch) with sampling='epochs', got {sample_rate:g}: give 1/{fewer} or "
            f"1/{fewer + 1}, whichever number of steps an epoch has. If the steps do not fill an epoch, as when "
            "gradients are accumulated across its end, one step may use a record twice: this is not covered"
        )
    return steps
