"""Starts that an adversary chooses: trained beforehand on records that are not private."""

from __future__ import annotations

from threading import Event

import numpy as np
import torch
from numpy.typing import NDArray

from dpsub._core import checks
from dpsub._core.random_streams import torch_seed
from dpsub.crafters.record_canaries import check_not_private
from dpsub.data import Task
from dpsub.models import Model, check_fits, losses_of
from dpsub.trainers.devices import matmul_precision, side_by_side


def pretrained_start(
    task: Task,
    model: Model,
    *,
    seed: int,
    epochs: int = 5,
    batch_size: int = 32,
    learning_rate: float = 0.01,
) -> NDArray[np.float32]:
    """The worst-case start: parameters trained without privacy on the auxiliary records.

    A model that starts there has learnt what private records like these teach. Their gradients are short, and the
    gradient of a canary that differs from them is not. The accountant's ε holds for every start, so an auditor may
    choose this one. It trains without dropout.

    Args:
        task: its auxiliary records are trained on, its private records are not. If the canary is an auxiliary record,
            as of `in_distribution` and `natural`, the start has learnt it as well.
        model: the architecture. It starts at its fixed start, or at one random start drawn from the seed.
        seed: of the start and of the order of the records.
        epochs: passes over the auxiliary records. 5 are published, for MNIST. Few records need more.
        batch_size: the records of one step of plain SGD. The last batch of an epoch may have fewer.
        learning_rate: η > 0 on the batch's mean loss.

    Returns:
        (parameters,) float32 in the order of `model.flat`, as `model.starting_from` takes them.

    Raises:
        ValueError: if an argument is out of range, the model does not fit the task, the auxiliary records are missing
            or private, or the training diverges.

    Source: Annamalai and De Cristofaro (2024), section 4.1; *Adversarial Sample-Based Approach*, section 5.4,
    "worst case initialization".

    >>> from dpsub import crafters, data, models
    >>> task = data.digits(n_train=50)
    >>> model = models.mlp(task, (8,))
    >>> start = crafters.pretrained_start(task, model, seed=0, epochs=1)
    >>> start.shape, model.starting_from(start).initial[:5]
    ((522,), 'fixed')
    """
    check_fits(model, task)
    seed = checks.whole("seed", seed, at_least=0)
    epochs, batch_size = checks.whole("epochs", epochs), checks.whole("batch_size", batch_size)
    learning_rate = checks.real("learning_rate", learning_rate, above=0)
    if not len(task.y_aux):
        raise ValueError("task must have auxiliary records to train on: give x_aux and y_aux")
    check_not_private(task, "aux")
    generator = torch.Generator().manual_seed(torch_seed(seed, "crafter", 2))
    theta, losses = model.initial_parameters(1, generator).requires_grad_(), losses_of(model)
    x, y = model.inputs(torch.tensor(task.x_aux)), torch.tensor(task.y_aux)
    optimizer = torch.optim.SGD([theta], lr=learning_rate)

    def train(epochs: int, stop: Event) -> None:
        for _ in range(epochs):
            for batch in torch.split(torch.randperm(len(y), generator=generator), batch_size):
                optimizer.zero_grad()
                torch.autograd.backward(losses(model.logits(theta, x[batch])[..., 0], y[batch]).mean())
                optimizer.step()

    with matmul_precision("highest"):
        list(side_by_side(train, [epochs], 1))  # on one thread, so that the start does not depend on their number
    found = model.flat(theta.detach())[0]
    if not torch.isfinite(found).all():
        raise ValueError(f"learning_rate must be small enough that training does not diverge, got {learning_rate:g}")
    return found.numpy().copy()
