"""Training a block of an audit of one training."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event

import numpy as np
import torch

from dpsub._core.random_streams import torch_seed
from dpsub.audits.one_run_plans import OneRunPlan
from dpsub.audits.plans import Arrays, Stopped
from dpsub.trainers import ScoredSteps, assemble_pairs, block_bytes, block_size

COPIES = 6  # of all parameters, which the steps' scores take beside the bank's own
WHITENING = 6  # further copies, which whitening takes


def train_one_run_block(
    plan: OneRunPlan, block: int, device: torch.device, stop: Event, tick: Callable[[int], None] | None = None
) -> Arrays:
    """The scores and coins of a block's models, (models, pairs), and the metrics.

    Raises:
        Stopped: if `stop` was set before all of it was trained.
    """
    bits = plan.coins(block)
    bank, slots = assemble_pairs(
        plan.model,
        plan.task,
        plan.spec,
        pairs=plan.pairs,
        bits=bits,
        generator=torch.Generator(device).manual_seed(torch_seed(plan.seed, "one_run", block)),
    )
    steps = ScoredSteps(bank, slots, expected=plan.subtract_expected, whiten=plan.whiten)
    for _ in range(plan.spec.steps):
        if stop.is_set():
            raise Stopped
        steps.advance()
        if tick is not None:
            tick(bank.runs)
    found = {"score": slots.scores(bank), "step_score": steps.scores}
    if "accuracy" in plan.metrics:
        x, y = (torch.tensor(one, device=device) for one in (plan.task.x_test, plan.task.y_test))
        found["accuracy"] = bank.accuracy(x, y, bank.runs)
    if "weights" in plan.metrics:
        found["weights"] = bank.model.flat(bank.theta)
    arrays = {name: values.detach().cpu().numpy().astype(np.float32) for name, values in found.items()}
    return {**arrays, "bit": bits}


def bytes_of_one_run_block(plan: OneRunPlan, device: torch.device) -> int:
    """About the most memory, in bytes, that a block takes."""
    runs, n, m = min(plan.runs, block_size(plan.model)), len(plan.task.y_train), len(plan.pairs)
    bank = block_bytes(plan.model, plan.task, plan.spec, device, runs, spare=COPIES + WHITENING * (plan.whiten > 0))
    bank += 4 * n * runs * (plan.whiten > 0)
    in_slots = 4 * (4 * m * runs * plan.model.classes if plan.pairs.of_records else 3 * plan.pairs.z.size)
    return bank + bank * 2 * m // n + in_slots
