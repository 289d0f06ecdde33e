"""Where shards are computed: in this process, or by the workers of a dask cluster."""

from __future__ import annotations

import time
import warnings
from collections.abc import Generator
from contextlib import closing, nullcontext
from functools import partial
from threading import Event, Lock
from typing import Any

import torch

from dpsub.audits.plans import Made, Plan, Results, Shard, Stopped, Tick
from dpsub.models.mkl_kernels import begin_computing
from dpsub.trainers import devices

PATIENCE = 30  # seconds for a scheduler to answer
Computed = Generator[tuple[Shard, Results, Made], None, None]
_gpu_turn = Lock()


def here(device: torch.device, plan: Plan, shards: list[Shard], tick: Tick) -> Computed:
    """Compute in this process, in its threads or one shard after the other in the calling one: each as it is done."""
    if plan.calls_users:
        for shard in shards:
            yield shard, *timed(plan, shard, device, tick)
        return

    def compute(shard: Shard, stop: Event) -> tuple[Results, Made]:
        def tick_unless_stopped(units: int) -> None:
            if stop.is_set():
                raise Stopped
            tick(units)

        return timed(plan, shard, device, tick_unless_stopped)

    with (
        devices.matmul_precision(plan.matmul_precision),
        closing(devices.side_by_side(compute, shards, plan.at_once(device))) as done,
    ):
        for shard, (results, made) in done:
            yield shard, results, made


def by_workers(client: Any, device: str, plan: Plan, shards: list[Shard], tick: Tick) -> Computed:
    """Compute on the workers of a dask client, or of the scheduler at an address. If one dies, others go on."""
    import distributed

    connect: Any = partial(distributed.Client, timeout=PATIENCE, set_as_default=False)
    with connect(client) if isinstance(client, str) else nullcontext(client) as there:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sending large graph")
            # As a task's result it is sent once, and made again if the worker that holds it dies.
            shared = there.submit(_itself, plan, pure=False)
        submitted = {there.submit(_on_worker, shared, shard, device, pure=False): shard for shard in shards}
        try:
            for future in distributed.as_completed(list(submitted), loop=there.loop):  # type: ignore[no-untyped-call]
                shard = submitted.pop(future)
                results, made = future.result()
                tick(plan.units(shard))
                yield shard, results, made
        finally:
            # Workers drop what nobody waits for. Not cancelled, which fails clients that are connecting.
            for future in (shared, *submitted):
                future.release()


def timed(plan: Plan, shard: Shard, device: torch.device, tick: Tick = lambda units: None) -> tuple[Results, Made]:
    """What a shard is computed to be, and where and in which time."""
    begin_computing()
    begin = time.monotonic()
    results = plan.run(shard, device, tick)
    return results, plan.made(device, time.monotonic() - begin)


def _itself(plan: Any) -> Any:
    return plan


def _on_worker(plan: Plan, shard: Shard, device: str) -> tuple[Results, Made]:
    """Compute one shard, whose progress is counted when it is done."""
    if plan.calls_users:
        return timed(plan, shard, torch.device("cpu"))
    on = devices.device(device)
    torch.set_num_threads(1)  # a worker with several threads computes as many shards side by side
    # Undo the settings of dask's nannies, which return memory at once, so that each step requests it again. Measured on
    # a bank of linear heads: workers took 8 s with these settings, 5 s without.
    devices.keep_freed_memory(whatever_is_set=True)
    with _gpu_turn if on.type == "cuda" else nullcontext(), devices.matmul_precision(plan.matmul_precision):
        plan.at_once(on)  # refuses what the memory does not hold
        return timed(plan, shard, on)
