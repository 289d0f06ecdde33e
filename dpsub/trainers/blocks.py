"""Blocks: how many models train as one bank, and how much memory they take."""

from __future__ import annotations

import torch

from dpsub._core import DPSGD
from dpsub.data import Task
from dpsub.models import Model


def block_size(model: Model) -> int:
    """The number of models in a block: 128, or the largest power of two whose parameters fit half a GiB, at least 1.

    Each block has its own stream of randomness. The size therefore depends on the model alone, never on the machine.
    """
    most = 2**27 // model.parameters
    return 1 << max(0, min(7, most.bit_length() - 1))


def block_bytes(model: Model, task: Task, spec: DPSGD, device: torch.device, runs: int, *, spare: int = 1) -> int:
    """About the most memory, in bytes, that training `runs` models as one block takes.

    `spare` is the number of further copies of the parameters to plan for, which observers hold.
    """
    of_theta = spare + (6 if spec.optimizer == "adam" else 4)  # θ, θ₀, the sum, the noise; Adam's two averages
    model = model.prepared(device, spec.sample_rate)
    floats = model.working_floats(task.x_train.shape, runs, spec.sample_rate)
    return 4 * (of_theta * model.parameters * runs + floats)
