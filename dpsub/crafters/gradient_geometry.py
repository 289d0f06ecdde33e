"""Angles and lengths of candidate records' gradients, relative to the target's gradient."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.func import functional_call, jvp

from dpsub.crafters.reference_model import Reference, gradient_of
from dpsub.models import losses_of
from dpsub.models.differentiation import ATTENTION, Instead

AT_ONCE = 4096  # records


class Geometry(NamedTuple):
    """The gradients of k candidates, compared with the target's gradient.

    Attributes:
        cosine: (k,) cosine with the target's gradient; 0 for a candidate whose gradient is 0.
        ratio: (k,) norm divided by the norm of the target's gradient.
        norm: the norm of the target's gradient.
    """

    cosine: NDArray[np.float64]
    ratio: NDArray[np.float64]
    norm: float

    def details(self, chosen: int) -> Mapping[str, float]:
        """The entries for `CanaryPair.details`, for the candidate that was chosen."""
        return {
            "norm": self.norm,
            "norm_ratio": float(self.ratio[chosen]),
            "cosine": float(self.cosine[chosen]),
        }


def compare_gradients(reference: Reference, x: ArrayLike, y: ArrayLike) -> Geometry:
    """Compare the gradients of k records (x, y) with the gradient of the target.

    A record's inner product with the target's gradient is the derivative of its loss in that direction. Where torch has
    that derivative, no record's gradient is formed.
    """
    model, module = reference.model, reference.module
    target = reference.gradient()
    norm = float(target.norm())
    parameters = {name: value.detach() for name, value in module.named_parameters() if value.requires_grad}
    pieces = torch.split(target, [value.numel() for value in parameters.values()])
    towards = {name: piece.view_as(parameters[name]) for name, piece in zip(parameters, pieces, strict=True)}
    products, norms = [], []
    for records, labels in zip(
        torch.split(torch.tensor(x), AT_ONCE), torch.split(torch.tensor(y), AT_ONCE), strict=True
    ):
        inputs = records.to(reference.theta.dtype)

        def losses(parameters: dict[str, Tensor], inputs: Tensor = inputs, labels: Tensor = labels) -> Tensor:
            return losses_of(model)(functional_call(module, parameters, (inputs,)), labels)

        try:
            with Instead(ATTENTION):
                products.append(jvp(losses, (parameters,), (towards,))[1])
        except NotImplementedError:  # an operation that torch cannot differentiate forward
            own = (gradient_of(module, *one, losses_of(model)) for one in zip(inputs, labels.tolist(), strict=True))
            products.append(torch.stack([one @ target for one in own]))
        norms.append(model.gradient_norms(reference.theta, model.inputs(inputs), labels)[:, 0])
    length = torch.cat(norms).double().numpy()
    cosine = torch.cat(products).double().numpy() / np.maximum(length * norm, np.finfo(float).tiny)
    return Geometry(cosine=cosine, ratio=length / norm, norm=norm)
