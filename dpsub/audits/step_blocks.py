"""Training a block of an audit of steps."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event

import numpy as np
import torch

from dpsub._core.random_streams import torch_seed
from dpsub.audits.plans import Arrays, Stopped
from dpsub.audits.step_plans import StepPlan
from dpsub.trainers import assemble
from dpsub.trainers.step_canaries import StepSlot, at_each_step

LONGER = 1e-5  # relative, by rounding
COPIES = 4  # of all parameters, which the canary's gradients and the score take beside the bank's own


def train_step_block(
    plan: StepPlan, block: int, device: torch.device, stop: Event, tick: Callable[[int], None] | None = None
) -> Arrays:
    """The scores and bits of a block's trainings, (trainings, steps).

    Raises:
        Stopped: if `stop` was set before all of it was trained.
        ValueError: if the canary was longer than max_grad_norm at some step.
    """
    worlds, sampled = plan.coins(block)
    bank = assemble(
        plan.model,
        plan.task,
        plan.spec,
        bits=np.zeros(worlds.shape[1], dtype=np.int8),
        generator=torch.Generator(device).manual_seed(torch_seed(plan.seeds[0], "steps", block)),
        empty_slot=plan.canary.slot,
    )
    canary = at_each_step(plan.canary, bank)
    in_world, in_batch = (torch.tensor(np.ascontiguousarray(one), device=device) for one in (worlds, sampled))
    seen, longest = [], torch.zeros((), device=device)
    for step in range(plan.spec.steps):
        if stop.is_set():
            raise Stopped
        gradients = canary.gradients(bank, step + 1)
        if not plan.canaries:  # pairs are checked before
            longest = torch.maximum(longest, gradients.longest)
            if step in (0, plan.spec.steps - 1):  # in between it would make a GPU wait
                _check_norm(float(longest), plan.spec.max_grad_norm)
        bank.slot = slot = StepSlot(gradients, in_world[step], plan.canary_rate)
        bank.advance(slot_sampled=in_batch[step])
        seen.append(slot.scores(bank))
        if tick is not None:
            tick(bank.runs)
    return {"score": torch.stack(seen, dim=1).cpu().numpy(), "bit": np.ascontiguousarray(worlds.T)}


def _check_norm(longest: float, max_grad_norm: float) -> None:
    if not longest <= max_grad_norm * (1 + LONGER):
        raise ValueError(
            f"canary must have gradients of norm <= max_grad_norm = {max_grad_norm:g} at each step, got {longest:g}: "
            "craft it for the spec of this audit"
        )
