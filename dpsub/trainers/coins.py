"""Poisson coins whose probability is exact to 2⁻³²."""

from __future__ import annotations

import torch
from torch import Tensor


def coins(q: float, rows: int, runs: int, generator: torch.Generator) -> Tensor:
    """(rows, runs) bool, True with probability q, exact to 2⁻³². A float32 draw would resolve only 2⁻²⁴."""
    words = torch.empty((rows * runs + 1) // 2, dtype=torch.int64, device=generator.device)
    words.random_(-(2**63), None, generator=generator)
    halves = words.view(torch.int32)[: rows * runs].view(rows, runs)
    return halves < threshold(q)


def threshold(q: float) -> int:
    """The number below which a uniform int32 lies with probability q."""
    return min(round(q * 2**32) - 2**31, 2**31 - 1)
