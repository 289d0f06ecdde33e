"""Which optimizers can be audited."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from opacus.optimizers import (
    AdaClipDPOptimizer,
    DistributedDPOptimizer,
    DistributedDPOptimizerFastGradientClipping,
    DPOptimizer,
    DPOptimizerFastGradientClipping,
    DPPerLayerOptimizer,
    FSDPOptimizerFastGradientClipping,
    SimpleDistributedPerLayerOptimizer,
)

from dpsub._core import checks
from dpsub.opacus.audited_steps import MARK
from dpsub.opacus.canary_gradients import Tensor

DISTRIBUTED = (
    DistributedDPOptimizer,
    DistributedDPOptimizerFastGradientClipping,
    FSDPOptimizerFastGradientClipping,
    SimpleDistributedPerLayerOptimizer,
)


class Audited(NamedTuple):
    """An optimizer that can be audited.

    Attributes:
        optimizer: Opacus's.
        parameters: that it trains.
        bounds: the clipping bound of each parameter over that of all; None for flat clipping.
        notes: what an audit cannot look at.
    """

    optimizer: DPOptimizer
    parameters: list[Tensor]
    bounds: list[float] | None
    notes: tuple[str, ...]


def audited_optimizer(optimizer: Any, claimed: Any) -> Audited:
    """The optimizer with what an audit must know of it. `claimed` is a noise multiplier, or None for its own."""
    if not isinstance(optimizer, DPOptimizer):
        raise ValueError(
            "optimizer must be Opacus's DPOptimizer, as PrivacyEngine.make_private returns it, got "
            f"{type(optimizer).__name__}: make it private first"
        )
    if isinstance(optimizer, DISTRIBUTED):
        raise ValueError(
            f"optimizer must be of one process, got the distributed {type(optimizer).__name__}: audit the same "
            "training in one process"
        )
    if MARK in vars(optimizer):
        raise ValueError("optimizer must not be under audit already, got one that is: call remove() of its auditor")
    parameters = list(optimizer.params)
    if not parameters:
        raise ValueError("optimizer must have parameters that require gradients, got none")
    if claimed is None and not _number(optimizer.noise_multiplier) > 0:
        raise ValueError(
            f"optimizer.noise_multiplier must be > 0, got {optimizer.noise_multiplier}: its ε is infinite, and there "
            "is nothing to refute. To test another claim, give noise_multiplier"
        )
    checks.real("optimizer.max_grad_norm", _number(optimizer.max_grad_norm), above=0)
    bounds = None
    if isinstance(optimizer, DPPerLayerOptimizer):
        whole = math.hypot(*optimizer.max_grad_norms)
        bounds = [float(bound) / whole for bound in optimizer.max_grad_norms]
    return Audited(optimizer, parameters, bounds, tuple(_notes(optimizer)))


def _notes(optimizer: DPOptimizer) -> list[str]:
    if isinstance(optimizer, DPOptimizerFastGradientClipping):
        return [
            "With ghost clipping there are no per-sample gradients. The canaries entered after clipping, so clipping "
            "was not audited."
        ]
    if isinstance(optimizer, AdaClipDPOptimizer):
        return [
            "The noisy sum was audited. What adaptive clipping releases besides, the noisy count, was not. The "
            "canaries count among its records, so the clipping bound differs a little from that without an audit."
        ]
    return []


def _number(value: Any) -> float:
    """A number, also of a tensor, which adaptive clipping makes of its bound."""
    return float(value)
