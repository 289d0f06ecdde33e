"""How the gradients of candidate records lie to the target's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.func import functional_call, jvp
from torch.nn import functional

from dpsub.crafters.reference import Reference

AT_ONCE = 4096  # records


class Geometry(NamedTuple):
    """How the gradients of candidates lie to the target's.

    Attributes:
        cosine: (k,) 0 where one of the two is 0.
        ratio: (k,) the candidates' norms over the target's.
        norm: the target's.
    """

    cosine: NDArray[np.float64]
    ratio: NDArray[np.float64]
    norm: float

    def details(self, chosen: int) -> Mapping[str, float]:
        """What a canary says of the candidate that it took."""
        return {
            "norm": self.norm,
            "norm_ratio": float(self.ratio[chosen]),
            "cosine": float(self.cosine[chosen]),
        }


def compare_gradients(reference: Reference, x: ArrayLike, y: ArrayLike) -> Geometry:
    """Compare the gradient of the target with those of the records (x, y), k of them.

    No record's gradient is formed: its product with the target's is how fast its loss changes in that direction.
    """
    model, module = reference.model, reference.module
    target = reference.gradient()
    norm = float(target.norm())
    parameters = {name: value.detach() for name, value in module.named_parameters()}
    pieces = torch.split(target, [value.numel() for value in parameters.values()])
    towards = {name: piece.view_as(parameters[name]) for name, piece in zip(parameters, pieces, strict=True)}
    products, norms = [], []
    for records, labels in zip(
        torch.split(torch.tensor(x), AT_ONCE), torch.split(torch.tensor(y), AT_ONCE), strict=True
    ):
        inputs = records.double()

        def losses(parameters: dict[str, Tensor], inputs: Tensor = inputs, labels: Tensor = labels) -> Tensor:
            return functional.cross_entropy(functional_call(module, parameters, (inputs,)), labels, reduction="none")

        products.append(jvp(losses, (parameters,), (towards,))[1])
        norms.append(model.gradient_norms(reference.theta, model.inputs(inputs), labels)[:, 0])
    length = torch.cat(norms).numpy()
    cosine = torch.cat(products).numpy() / np.maximum(length * norm, np.finfo(float).tiny)
    return Geometry(cosine=cosine, ratio=length / norm, norm=norm)
