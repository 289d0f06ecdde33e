"""Trained models by their flat parameters: a bank of them, and what they answer to the same records."""

from __future__ import annotations

import torch
from torch import Tensor

from dpsub.models.interface import Model, check_model


def theta_of(model: Model, weights: Tensor) -> Tensor:
    """The bank of these models, in the layout that the model's own methods take.

    Args:
        model: the architecture.
        weights: (runs, parameters), the flat parameters of trained models, such as the variable "weights" of an audit.

    Returns:
        A tensor on the device of `weights`, in their precision.

    Raises:
        ValueError: if the weights are no tensor of finite real numbers, or their shape does not fit.

    >>> import torch
    >>> from dpsub import data, models
    >>> model = models.linear(data.from_arrays([[0.0, 3.0], [1.0, 2.0]], [0, 1]))
    >>> theta = models.theta_of(model, torch.ones(5, model.parameters))
    >>> theta.shape, model.flat(theta).shape
    (torch.Size([3, 2, 5]), torch.Size([5, 6]))
    """
    check_model(model)
    weights = _real("weights", weights)
    if weights.ndim != 2 or weights.shape[1] != model.parameters:
        raise ValueError(f"weights must have shape (runs, {model.parameters}), got {tuple(weights.shape)}")
    if not torch.isfinite(weights).all():
        raise ValueError(f"weights must be finite, got {int((~torch.isfinite(weights)).sum())} numbers that are not")
    theta = model.initial_parameters(len(weights), torch.Generator(weights.device)).to(weights.dtype)
    model.flat(theta).copy_(weights)
    return theta


def outputs_of(model: Model, weights: Tensor, x: Tensor) -> Tensor:
    """What trained models answer: their outputs before the softmax, without dropout.

    Args:
        model: the architecture.
        weights: (runs, parameters), as in `theta_of`.
        x: (records, *input_shape), of the dtype and on the device of `weights`. The answers are differentiable by it.

    Returns:
        (runs, records, classes).

    Raises:
        ValueError: as in `theta_of`, or if the records are no tensor of real numbers, have another dtype or device than
            the weights, or do not fit the model.

    >>> import torch
    >>> from dpsub import data, models
    >>> task = data.digits(n_train=50)
    >>> model = models.mlp(task, (8,))
    >>> weights = model.initial_parameters(3, torch.Generator())
    >>> models.outputs_of(model, weights, torch.tensor(task.x_train[:2])).shape
    torch.Size([3, 2, 10])
    """
    theta, x = theta_of(model, weights), _real("x", x)
    if x.shape[1:] != model.input_shape or not x.ndim:
        shape = ", ".join(("records", *map(str, model.input_shape)))
        raise ValueError(f"x must have shape ({shape}), got {tuple(x.shape)}")
    if (x.dtype, x.device) != (weights.dtype, weights.device):
        raise ValueError(
            f"x must have the dtype and device of weights, {weights.dtype} on {weights.device}, got {x.dtype} on "
            f"{x.device}: use x.to(weights)"
        )
    model = model.prepared(weights.device, 1.0)
    return model.logits(theta, model.inputs(x)).permute(2, 0, 1)


def _real(name: str, value: Tensor) -> Tensor:
    if not isinstance(value, Tensor) or not value.is_floating_point():
        got = str(value.dtype) if isinstance(value, Tensor) else f"a {type(value).__name__}"
        raise ValueError(f"{name} must be a torch.Tensor of real numbers, got {got}: use torch.tensor({name})")
    return value
