"""What it takes to differentiate any module record by record: stand-ins for operators, masks of dropout, gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from dpsub.models.interface import Losses, cross_entropy

Operations = Mapping[Any, Callable[..., Tensor]]
Parameters = dict[str, Tensor]
Masks = list[list[Tensor]]
Outputs = Callable[[Parameters, Tensor, Masks], Tensor]
DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
# Of how many dimensions inputs are whose first one torch takes for the channels to drop. Otherwise it is the second.
CHANNELS_FIRST: dict[type, int] = {nn.Dropout1d: 2, nn.Dropout3d: 4}


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


class Masked(nn.Dropout):
    """Takes the place of a dropout layer, with all that it holds: each call multiplies by the next mask of `masks`.

    Without masks it lets everything pass, and notes the shapes of the masks that it would have used. They are noted for
    one record, and have all dimensions: layers may see records in another dimension than the first.
    """

    def __init__(self, layer: nn.Dropout | nn.Dropout1d | nn.Dropout2d | nn.Dropout3d) -> None:
        super().__init__()
        self.__dict__.update(layer.__dict__)  # its rate, which others read, and its hooks
        self._kind = type(layer)
        self.masks: Iterator[Tensor] | None = None
        self.shapes: list[tuple[int, ...]] = []

    def forward(self, x: Tensor) -> Tensor:
        if self.masks is not None:
            return x * next(self.masks)
        own = x.ndim if self._kind is nn.Dropout else 1 if x.ndim == CHANNELS_FIRST.get(self._kind) else 2
        self.shapes.append((*x.shape[:own], *[1] * (x.ndim - own)))
        return x


def switch(module: nn.Module, training: bool) -> nn.Module:
    """Put a module in a mode. Batch norm in eval mode, whose parameters and statistics are frozen, stays in it."""
    frozen = [layer for layer in module.modules() if isinstance(layer, _BatchNorm) and not layer.training]
    module.train(training)
    for layer in frozen:
        layer.eval()
    return module


def masked(module: nn.Module) -> list[Masked]:
    """Put a `Masked` in the place of each dropout layer, and return them in order."""
    found = []
    for parent in list(module.modules()):
        for name, child in list(parent._modules.items()):  # named_children names a layer once
            if isinstance(child, DROPOUTS) and type(child) in DROPOUTS:
                found.append(Masked(child))
                setattr(parent, name, found[-1])
    return found


def draw(layers: Iterable[Masked], lead: tuple[int, ...], generator: torch.Generator | None, like: Tensor) -> Masks:
    """Masks for all calls of all layers, each with the leading dimensions `lead` (runs, records)."""

    def mask(keep: float, shape: tuple[int, ...]) -> Tensor:
        return like.new_empty(*lead, *shape).bernoulli_(keep, generator=generator).div_(keep or 1)

    return [[mask(1 - layer.p, shape) for shape in layer.shapes] for layer in layers]


def record_gradients(
    outputs: Outputs, losses: Losses, parameters: Parameters, inputs: Tensor, labels: Tensor, masks: Masks
) -> Parameters:
    """For each parameter the records' gradients, (runs, records, …).

    Args:
        outputs: the outputs (classes,) of one model for one record, given its dropout masks.
        losses: from outputs (records, classes) and labels (records,) to (records,) losses.
        parameters: of all models, (runs, …) each.
        inputs: (records, …), or (runs, records, …) if each run has its own.
        labels: (records,) or (runs, records).
        masks: (runs, records, …) each.
    """

    def loss(own: Parameters, x: Tensor, y: Tensor, masks: Masks) -> Tensor:
        return cross_entropy(outputs(own, x, masks)[None], y[None])[0]

    def product(own: Parameters, x: Tensor, y: Tensor, masks: Masks) -> Tensor:
        return (outputs(own, x, masks) * y).sum()

    of_all = None if labels.ndim == 1 else 0
    function, targets, of_targets = loss, labels, of_all
    if losses is not cross_entropy:  # it need not know vmap: its slopes are those of a plain batch of outputs
        seen = vmap(vmap(outputs, in_dims=(None, 0, 0)), in_dims=(0, of_all, 0))(parameters, inputs, masks)
        with torch.enable_grad():
            flat = seen.detach().flatten(0, 1).requires_grad_()
            [slopes] = torch.autograd.grad(losses(flat, labels.expand(seen.shape[:2]).flatten()).sum(), flat)
        function, targets, of_targets = product, slopes.view(seen.shape), 0
    gradients = vmap(vmap(grad(function), in_dims=(None, 0, 0, 0)), in_dims=(0, of_all, of_targets, 0))
    found: Parameters = gradients(parameters, inputs, targets, masks)
    return found
