"""Where shards are computed: in this process, or by the workers of a dask cluster."""

from __future__ import annotations

import time
import warnings
from collections.abc import Generator, Sequence
from contextlib import closing, nullcontext
from functools import partial
from itertools import groupby
from threading import Event, Lock
from typing import Any

import torch

from dpsub.audits.plans import Made, Plan, Results, Shard, Stopped, Tick
from dpsub.models.mkl_kernels import begin_computing
from dpsub.trainers import devices

PATIENCE = 30  # seconds for a scheduler to answer
Group = Sequence[Shard]
Computed = Generator[tuple[Shard, Results, Made], None, None]
_gpu_turn = Lock()


def here(device: torch.device, plan: Plan, shards: list[Shard], tick: Tick) -> Computed:
    """Compute in this process, in its threads or one shard after the other in the calling one: each as it is done."""
    if plan.calls_users:
        for shard in shards:
            yield from _asked([shard], [shard], *timed(plan, [shard], device, tick))
        return

    def compute(group: Group, stop: Event) -> tuple[list[Results], Made]:
        def tick_unless_stopped(units: int) -> None:
            if stop.is_set():
                raise Stopped
            tick(units if len(group) == 1 else 0)  # of several, those that are asked for are counted when they are done

        return timed(plan, group, device, tick_unless_stopped)

    with (
        devices.matmul_precision(plan.matmul_precision),
        closing(devices.side_by_side(compute, grouped(plan, shards, device), plan.at_once(device))) as done,
    ):
        for group, computed in done:
            for shard, results, made in _asked(shards, group, *computed):
                tick(plan.units(shard) if len(group) > 1 else 0)
                yield shard, results, made


def grouped(plan: Plan, shards: Sequence[Shard], device: torch.device) -> list[Group]:
    """The groups of shards that are computed together in which these shards are.

    They are whole even if some of their shards are there already: in another group, shards would round differently.
    """
    size, of_repeat = plan.together(device), len(plan.cut.shards) // plan.cut.repeats

    def place(shard: Shard) -> tuple[int, int]:
        return shard.repeat, shard.number % of_repeat // size

    wanted = set(map(place, shards))
    return [list(group) for where, group in groupby(plan.cut.shards, place) if where in wanted]


def _asked(shards: Sequence[Shard], group: Group, results: Sequence[Results], made: Made) -> Computed:
    made = made._replace(seconds=made.seconds / len(group))
    for shard, result in zip(group, results, strict=True):
        if shard in shards:
            yield shard, result, made


def by_workers(client: Any, device: str, plan: Plan, shards: list[Shard], tick: Tick) -> Computed:
    """Compute on the workers of a dask client, or of the scheduler at an address. If one dies, others go on."""
    import distributed

    connect: Any = partial(distributed.Client, timeout=PATIENCE, set_as_default=False)
    with connect(client) if isinstance(client, str) else nullcontext(client) as there:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sending large graph")
            # As a task's result it is sent once, and made again if the worker that holds it dies.
            shared = there.submit(_itself, plan, pure=False)
        # Of "auto" it is not known here whether workers have a GPU.
        groups = grouped(plan, shards, torch.device("cuda" if device == "cuda" else "cpu"))
        submitted = {there.submit(_on_worker, shared, group, device, pure=False): group for group in groups}
        try:
            for future in distributed.as_completed(list(submitted), loop=there.loop):  # type: ignore[no-untyped-call]
                group = submitted.pop(future)
                for shard, result, made in _asked(shards, group, *future.result()):
                    tick(plan.units(shard))
                    yield shard, result, made
        finally:
            # Workers drop what nobody waits for. Not cancelled, which fails clients that are connecting.
            for future in (shared, *submitted):
                future.release()


def timed(
    plan: Plan, group: Group, device: torch.device, tick: Tick = lambda units: None
) -> tuple[list[Results], Made]:
    """What shards are computed to be, and where and in which time."""
    begin_computing()
    begin = time.monotonic()
    results = plan.run_together(group, device, tick)
    return results, plan.made(device, time.monotonic() - begin)


def _itself(plan: Any) -> Any:
    return plan


def _on_worker(plan: Plan, group: Group, device: str) -> tuple[list[Results], Made]:
    """Compute shards, whose progress is counted when they are done."""
    if plan.calls_users:
        return timed(plan, group, torch.device("cpu"))
    on = devices.device(device)
    torch.set_num_threads(1)  # a worker with several threads computes as many shards side by side
    # Undo the settings of dask's nannies, which return memory at once, so that each step requests it again. Measured on
    # a bank of linear heads: workers took 8 s with these settings, 5 s without.
    devices.keep_freed_memory()
    with _gpu_turn if on.type == "cuda" else nullcontext(), devices.matmul_precision(plan.matmul_precision):
        plan.at_once(on)  # refuses what the memory does not hold
        return timed(plan, group, on)
