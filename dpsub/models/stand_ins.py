"""Operations that torch cannot batch or differentiate as banks and crafters need, in others that it can."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional
from torch.overrides import TorchFunctionMode

Operations = Mapping[Any, Callable[..., Tensor]]


class Instead(TorchFunctionMode):
    """Within it, whatever calls one of torch's operations gets its stand-in, in this thread alone."""

    def __init__(self, stand_ins: Operations) -> None:
        super().__init__()
        self._stand_ins = stand_ins

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._stand_ins.get(func, func)(*args, **(kwargs or {}))


def _prelu(input: Tensor, weight: Tensor) -> Tensor:
    if weight.numel() > 1:  # one for each channel
        weight = weight.view(-1, *[1] * (input.ndim - 2))
    return torch.where(input > 0, input, weight * input)


def _attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, *rest: Any, **named: Any
) -> Tensor:
    if attn_mask is not None and attn_mask.dtype == torch.bool:  # what follows would add it
        attn_mask = query.new_zeros(attn_mask.shape).masked_fill(~attn_mask, -torch.inf)
    found: Tensor = torch.ops.aten._scaled_dot_product_attention_math(query, key, value, attn_mask, *rest, **named)[0]
    return found


# Under two vmaps torch's own mixes models and records.
PRELU: Operations = {torch.prelu: _prelu, Tensor.prelu: _prelu}
# Torch's fast ones can be differentiated neither forward nor twice.
ATTENTION: Operations = {functional.scaled_dot_product_attention: _attention}


def call(module: nn.Module, parameters: dict[str, Tensor], x: Tensor) -> Tensor:
    """What a module returns with other parameters, under any number of vmaps."""
    with Instead(PRELU):
        found: Tensor = functional_call(module, parameters, (x,))
    return found
