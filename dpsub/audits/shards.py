"""Training one shard. Devices of one kind compute the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event

import numpy as np
import torch
from torch import Tensor

from dpsub._core.random_streams import stream, torch_seed
from dpsub.audits.any_plans import BankPlan
from dpsub.audits.one_run_blocks import bytes_of_one_run_block, train_one_run_block
from dpsub.audits.one_run_plans import OneRunPlan
from dpsub.audits.plans import Arrays, Plan, Shard, Stopped
from dpsub.audits.step_blocks import COPIES, train_step_block
from dpsub.audits.step_plans import StepPlan
from dpsub.trainers import assemble, block_bytes, block_size, devices


def train_shard(
    plan: BankPlan, shard: Shard, device: torch.device, stop: Event, tick: Callable[[int], None] | None = None
) -> Arrays:
    """The numbers of one shard, by variable.

    Args:
        plan, shard, device: what to train, and where.
        stop: set to end early.
        tick: called after each step of an audit of steps or of one training, with the number of its trainings.

    Raises:
        Stopped: if `stop` was set before all of it was trained.
        ValueError: if the training diverged.
    """
    if isinstance(plan, OneRunPlan):
        blocks = [train_one_run_block(plan, block, device, stop, tick) for block in shard.blocks]
    elif isinstance(plan, StepPlan):
        blocks = [train_step_block(plan, block, device, stop, tick) for block in shard.blocks]
    else:
        blocks = [_train_block(plan, shard.repeat, block, device, stop) for block in shard.blocks]
    found = {name: np.concatenate([block[name] for block in blocks if name in block]) for name in blocks[0]}
    for name, values in found.items():
        if not np.isfinite(values).all():
            wrong = f"{int((~np.isfinite(values)).sum())} numbers of {name!r} in {shard} are not finite"
            raise ValueError(f"spec must be such that training does not diverge: {wrong}")
    return found


def _train_block(plan: Plan, repeat: int, block: int, device: torch.device, stop: Event) -> Arrays:
    size, seed = block_size(plan.model), plan.seeds[repeat]
    runs = min(size, plan.runs - block * size)
    bits = stream(seed, "audit", block).integers(0, 2, size, dtype=np.int8)[:runs]
    bank = assemble(
        plan.model,
        plan.task,
        plan.spec,
        bits=bits,
        generator=torch.Generator(device).manual_seed(torch_seed(seed, "audit", block)),
        canary=plan.canaries[repeat if len(plan.canaries) > 1 else 0],
        coordinates=plan.coordinates,
    )
    # Observers of only some runs observe those of the first block.
    observers = [one for one in (plan.score(repeat), *plan.observers) if one.most_runs is None or block == 0]
    watches = {one.name: one.watch(bank, plan.task, min(runs, plan.rows(one))) for one in observers}
    observed, last = set(plan.observed), {plan.spec.steps}
    due = {one.name: observed if "step" in one.dims else last for one in observers}
    seen: dict[str, list[Tensor]] = {name: [] for name in watches}
    for step in range(1, plan.spec.steps + 1):
        if stop.is_set():
            raise Stopped
        looking = [name for name in watches if step in due[name]]
        for name in looking:
            watches[name].before_step()
        bank.advance()
        for name in looking:
            seen[name].append(watches[name].after_step())
    stacked = {
        one.name: torch.stack(seen[one.name], dim=1) if "step" in one.dims else seen[one.name][0] for one in observers
    }
    return {"bit": bits, **{name: values.cpu().numpy() for name, values in stacked.items()}}


def bytes_of_a_block(plan: BankPlan, device: torch.device) -> int:
    """About the most memory, in bytes, that a block of this audit takes."""
    if isinstance(plan, OneRunPlan):
        return bytes_of_one_run_block(plan, device)
    runs = min(plan.runs, block_size(plan.model))
    spare = COPIES if isinstance(plan, StepPlan) else max(plan.score_copies, *(one.copies for one in plan.observers), 0)
    return block_bytes(plan.model, plan.task, plan.spec, device, runs, spare=spare)


def workers(plan: BankPlan, device: torch.device) -> int:
    """How many blocks train side by side, one thread each: one on CUDA; on a CPU, as many as the memory holds.

    Raises:
        ValueError: if the memory does not hold one block.
    """
    needed, free = bytes_of_a_block(plan, device), devices.free_bytes(device)
    if needed > free:
        pairs, fewer = "", "records"
        if isinstance(plan, OneRunPlan):
            pairs, fewer = f" with {len(plan.pairs)} pairs", "records or pairs"
        raise ValueError(
            f"model and task must fit the memory: a block of {min(plan.runs, block_size(plan.model))} models of "
            f"{plan.model.parameters} parameters on {len(plan.task.y_train)} records{pairs} takes about "
            f"{needed / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB are free on {device}: free some, or use a smaller "
            f"model, fewer {fewer}, or a larger device"
        )
    return 1 if device.type == "cuda" else min(torch.get_num_threads(), free // needed)
