"""Poisson coins of any probability."""

from __future__ import annotations

import torch
from torch import Tensor

RARE = 2.0**-16  # a smaller probability is compared with 64 bits instead of 32


def coins(q: float, rows: int, runs: int, generator: torch.Generator) -> Tensor:
    """(rows, runs) bool, True with probability q, to 2⁻³², or to 2⁻⁶⁴ if q is small. A float32 draw resolves 2⁻²⁴."""
    if q < RARE:
        whole = torch.empty(rows, runs, dtype=torch.int64, device=generator.device)
        return whole.random_(-(2**63), None, generator=generator) < threshold(q, bits=64)
    words = torch.empty((rows * runs + 1) // 2, dtype=torch.int64, device=generator.device)
    words.random_(-(2**63), None, generator=generator)
    halves = words.view(torch.int32)[: rows * runs].view(rows, runs)
    return halves < threshold(q)


def threshold(q: float, bits: int = 32) -> int:
    """The number below which a uniform signed integer of so many bits lies with probability q."""
    half = 1 << (bits - 1)
    return min(round(q * 2 * half) - half, half - 1)
