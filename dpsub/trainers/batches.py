"""How batches of a bank are drawn: by independent coins (Poisson), cut or not, of fixed size, or as shuffled epochs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, singledispatch
from itertools import cycle

import torch
from torch import Tensor

from dpsub.accounting import Epochs, Poisson, Sampling, TruncatedPoisson, WithoutReplacement

RARE = 2.0**-16  # a smaller probability is compared with 64 bits instead of 32

Draw = Callable[[int, int, torch.Generator], Tensor]
"""From numbers of rows and runs, (rows, runs) bool: which rows, records and slots, are in each model's next batch."""


@singledispatch
def drawing(sampling: Sampling, sample_rate: float) -> Draw:
    """How the batches of one training of a bank are drawn, for sample rates below 1.

    A further sampling registers its own: `@drawing.register`.
    """
    raise NotImplementedError(f"dpsub.trainers.batches.drawing has to be registered for {type(sampling).__name__}")


@drawing.register
def _(sampling: Poisson, sample_rate: float) -> Draw:
    return partial(poisson_coins, sample_rate)


@drawing.register
def _(sampling: TruncatedPoisson, sample_rate: float) -> Draw:
    def draw(rows: int, runs: int, generator: torch.Generator) -> Tensor:
        sampled = poisson_coins(sample_rate, rows, runs, generator)
        return (shuffled_places(rows, runs, generator, last=~sampled.T) < sampling.maximum).T & sampled

    return draw


@drawing.register
def _(sampling: WithoutReplacement, sample_rate: float) -> Draw:
    def draw(rows: int, runs: int, generator: torch.Generator) -> Tensor:
        return (shuffled_places(rows, runs, generator) < round(sample_rate * rows)).T.contiguous()

    return draw


@drawing.register
def _(sampling: Epochs, sample_rate: float) -> Draw:
    """Each record in one batch of each epoch, shuffled anew. Batches differ by one record where rows do not divide."""
    batches = sampling.batches(sample_rate)
    coming, epoch = cycle(range(batches)), torch.empty(0)

    def draw(rows: int, runs: int, generator: torch.Generator) -> Tensor:
        nonlocal epoch
        if (batch := next(coming)) == 0:
            epoch = (shuffled_places(rows, runs, generator) * batches // rows).T.contiguous()
        return epoch == batch

    return draw


def shuffled_places(rows: int, runs: int, generator: torch.Generator, last: Tensor | float = 0.0) -> Tensor:
    """(runs, rows): each row's place in an order of its own for each model, drawn evenly from all orders.

    Rows that are `last`, (runs, rows) bool, come after the others.
    """
    keys = torch.rand(runs, rows, dtype=torch.float64, device=generator.device, generator=generator) + last
    return keys.argsort(dim=1).argsort(dim=1)


def poisson_coins(q: float, rows: int, runs: int, generator: torch.Generator) -> Tensor:
    """Independent coins: whether each record or slot is in each model's batch. `Bank.advance` takes them for slots.

    Args:
        q: the sample rate, the probability of True. It is exact to 2⁻³², or to 2⁻⁶⁴ if it is small. A float32 draw
            would resolve 2⁻²⁴ only.
        rows, runs: numbers of records or slots, and of models.
        generator: the source of randomness, such as the bank's.

    Returns:
        (rows, runs) bool.

    >>> poisson_coins(0.5, 3, 4, torch.Generator()).shape
    torch.Size([3, 4])
    """
    if q < RARE:
        words = torch.empty(rows, runs, dtype=torch.int64, device=generator.device)
        return words.random_(-(2**63), None, generator=generator) < threshold(q, bits=64)
    words = torch.empty((rows * runs + 1) // 2, dtype=torch.int64, device=generator.device)
    words.random_(-(2**63), None, generator=generator)
    halves = words.view(torch.int32)[: rows * runs].view(rows, runs)
    return halves < threshold(q)


def threshold(q: float, bits: int = 32) -> int:
    """The number below which a uniform signed integer of so many bits lies with probability q."""
    half = 1 << (bits - 1)
    return min(round(q * 2 * half) - half, half - 1)
