"""Gradients of single records, for many models at once, by torch.func."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.func import grad, vmap

from dpsub.models.interface import Losses, cross_entropy

Parameters = dict[str, Tensor]
Masks = list[list[Tensor]]


def record_gradients(
    outputs: Callable[[Parameters, Tensor, Masks], Tensor],
    losses: Losses,
    parameters: Parameters,
    inputs: Tensor,
    labels: Tensor,
    masks: Masks,
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
    if losses is cross_entropy:
        gradients = vmap(vmap(grad(loss), in_dims=(None, 0, 0, 0)), in_dims=(0, of_all, of_all, 0))
        found: Parameters = gradients(parameters, inputs, labels, masks)
        return found
    # Losses of one's own need not know vmap: their slopes are those of a plain batch of outputs.
    seen = vmap(vmap(outputs, in_dims=(None, 0, 0)), in_dims=(0, of_all, 0))(parameters, inputs, masks)
    with torch.enable_grad():
        flat = seen.detach().flatten(0, 1).requires_grad_()
        [slopes] = torch.autograd.grad(losses(flat, labels.expand(seen.shape[:2]).flatten()).sum(), flat)
    gradients = vmap(vmap(grad(product), in_dims=(None, 0, 0, 0)), in_dims=(0, of_all, 0, 0))
    found = gradients(parameters, inputs, slopes.view(seen.shape), masks)
    return found


def norms_of(gradients: Sequence[Tensor]) -> Tensor:
    """(runs, records): the norms of gradients (runs, records, numbers) that are given parameter by parameter."""
    return torch.stack([one.square().sum(dim=2) for one in gradients]).sum(dim=0).sqrt_()
