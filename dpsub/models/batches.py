"""How models that compute record by record cut their work, and gather each model's own batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

# Below this sample rate each model computes its own batch only. From it on, each computes all records, and those not
# sampled have weight 0.
GATHER_BELOW = 0.5


def parts_of(sizes: Sequence[int], *, floats: int, room: int, most_floats: int) -> Iterator[tuple[slice, slice]]:
    """The runs and records of each part of a computation in which run i has `sizes[i]` records.

    Args:
        sizes: the number of records of each run.
        floats: how many numbers one record takes in one run.
        room: about how many numbers one part may hold.
        most_floats: how many numbers one run may hold in one part, if its records are that many.
    """
    batch = max(1, min(most_floats // floats, max(sizes)))
    models = max(1, room // (batch * floats))
    for first in range(0, len(sizes), models):
        runs = slice(first, first + models)
        most = max(sizes[runs])
        for start in range(0, most, batch):
            yield runs, slice(start, min(start + batch, most))


def own_batches(sampled: Tensor, counts: Tensor, *, largest: int) -> Tensor:
    """The indices of each model's sampled records, (largest, runs), padded with 0.

    Args:
        sampled: (n, runs) bool.
        counts: (runs,) how many records each model sampled.
        largest: the largest of `counts`.
    """
    pairs = sampled.T.nonzero()
    ends = counts.cumsum(0)
    place = torch.arange(len(pairs), device=sampled.device) - (ends - counts)[pairs[:, 0]]
    records = torch.zeros(largest, sampled.shape[1], dtype=torch.int64, device=sampled.device)
    records[place, pairs[:, 0]] = pairs[:, 1]
    return records
