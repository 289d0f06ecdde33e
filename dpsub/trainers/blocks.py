"""Blocks: how many models train as one bank, and how much memory that takes."""

from __future__ import annotations

import torch

from dpsub._core import DPSGD
from dpsub.data import Task
from dpsub.models import Model


def block_size(model: Model) -> int:
    """How many models train as one block: 128, fewer where the parameters of so many would take over half a GiB.

    Randomness comes in such blocks, so it depends on the model alone, never on the machine.
    """
    most = 2**27 // model.parameters
    return 1 << max(0, min(7, most.bit_length() - 1))


def block_bytes(model: Model, task: Task, spec: DPSGD, device: torch.device, runs: int) -> int:
    """About the most memory that the training of so many models as one block takes."""
    of_theta = 7 if spec.optimizer == "adam" else 5  # θ, θ₀, the sum, noise, one to spare; Adam's two averages
    model = model.prepared(device, spec.sample_rate)
    floats = model.working_floats(task.x_train.shape, runs, spec.sample_rate)
    return 4 * (of_theta * model.parameters * runs + floats)
