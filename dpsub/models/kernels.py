"""The kernels that MKL chooses for torch's functions of vectors, before several threads compute."""

from __future__ import annotations

from functools import cache
from threading import Lock

import torch

_beginning = Lock()
ON_VECTORS = (
    "acos", "asin", "atan", "cos", "cosh", "erf", "erfc", "erfinv", "exp", "expm1", "log", "log10", "log1p", "log2",
    "rsqrt", "sigmoid", "sin", "sinh", "sqrt", "tan", "tanh",
)  # fmt: skip


def begin_computing() -> None:
    """Choose the kernels of torch's functions of vectors, once in a process. Call it where computing begins.

    MKL chooses the kernel of each function at its first call. Where two threads make that call at once, one of them may
    be given a kernel that is right to 12 bits only (pytorch issue 188792, MKL before 2025.0). Here each function is
    called by one thread, while other threads that begin to compute wait.
    """
    with _beginning:
        _call_each_function()


@cache
def _call_each_function() -> None:
    for name in ON_VECTORS:
        for dtype in (torch.float32, torch.float64):
            getattr(torch, name)(torch.full((1,), 0.5, dtype=dtype, device="cpu"))
