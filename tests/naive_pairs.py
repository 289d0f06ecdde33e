"""Three pairs for one training, and gradients of single records in float64, from autograd."""

import numpy as np
import torch
from torch.nn import functional

from dpsub import Pairs, models
from dpsub.models.interface import OPACUS_EPS

SLOTS = [7, 2, 20]


def clipped(model, theta, x, y, norm):
    """The clipped gradient of one record."""
    module = model.module(theta.float()).double()
    loss = functional.cross_entropy(module(torch.tensor(x).double()[None]), torch.tensor([int(y)]))
    parts = list(torch.autograd.grad(loss, list(module.parameters())))
    if isinstance(model, models.Linear):
        parts[0] = parts[0].T
    gradient = torch.cat([part.flatten() for part in parts])
    return gradient * min(1.0, norm / (float(gradient.norm()) + OPACUS_EPS))


def worlds(model, theta, pairs, norm):
    """(m, parameters) each: the clipped gradients of all z, and of all z′."""
    if pairs.of_records:
        return tuple(
            torch.stack([clipped(model, theta, x, y, norm) for x, y in zip(xs, ys, strict=True)])
            for xs, ys in ((pairs.z, pairs.y), (pairs.z_prime, pairs.y_prime))
        )
    gradients = torch.zeros(2, len(pairs), model.parameters, dtype=torch.float64)
    gradients[..., pairs.support.copy()] = torch.tensor(np.stack([pairs.z, pairs.z_prime])).double()
    return tuple(gradients)


def pairs_of(task, model, kind, norm=1.0):
    """Three pairs: wrong labels beside other records, or gradients that overlap."""
    if kind == "records":
        x, y = task.x_train[SLOTS], task.y_train[SLOTS]
        return Pairs(SLOTS, x, task.x_train[[1, 3, 4]], y, (y + 3) % 10, scenario="S4")
    rng = np.random.default_rng(3)
    z, z_prime = rng.normal(size=(2, 3, 4))
    z, z_prime = (norm * one / np.linalg.norm(one, axis=1, keepdims=True) for one in (z, z_prime / 2))
    return Pairs(SLOTS, z, z_prime, support=[5, 0, 9, 2], parameters=model.parameters, scenario="S2")
