"""Shards on a dask cluster: its workers train them, and this process receives the results."""

from __future__ import annotations

import ctypes
import time
import warnings
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import CancelledError
from contextlib import closing, contextmanager, nullcontext, suppress
from functools import cache
from threading import Event, Lock
from typing import Any

import torch

from dpsub.audits.any_plans import BankPlan
from dpsub.audits.plans import Arrays, Shard
from dpsub.audits.shard_provenance import Made, made_on
from dpsub.audits.shards import bytes_of_a_block, train_shard, workers
from dpsub.trainers import devices

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
PATIENCE = 30  # seconds for a scheduler to answer
_gpu_turn = Lock()


@contextmanager
def connected(client: Any) -> Iterator[Any]:
    """The client that was given, or a new one for the scheduler at the address that was given."""
    try:
        import distributed
    except ImportError:
        raise ImportError("client needs dask.distributed: pip install 'dpsub[cluster]'") from None
    advice = "start one with `dask scheduler` and workers with `dask worker`, or leave client out"
    kind: Any = distributed.Client
    if isinstance(client, str):
        try:
            own = kind(client, timeout=PATIENCE, set_as_default=False)
        except (OSError, ValueError) as error:
            raise ConnectionError(f"client: no scheduler answers at {client!r} ({error}): {advice}") from None
        with own:
            yield own
        return
    if not isinstance(client, kind) or client.asynchronous:
        raise ValueError(
            "client must be a dask.distributed.Client that is not asynchronous, as Client(cluster) is, or the "
            f"address of a scheduler, got {client!r}"
        )
    if client.status != "running":
        raise ConnectionError(f"client: its scheduler does not answer any more, it is {client.status!r}: {advice}")
    yield client


def kinds(client: Any, device: str) -> list[Made]:
    """The device and versions of each connected worker."""
    return list(client.run(_made_here, device).values())


def trained(client: Any, plan: BankPlan, shards: list[Shard], device: str) -> Generator[tuple[Shard, Arrays, Made]]:
    """Yield the shards of a plan as workers finish them."""
    with closing(results(client, plan, _train, shards, device)) as found:
        for shard, (arrays, made) in found:
            yield shard, arrays, made


def results(
    client: Any, what: Any, train: Callable[..., Any], shards: list[Shard], *options: Any
) -> Generator[tuple[Shard, Any]]:
    """Yield shards, each with `train(what, number, *options)`, as workers finish them.

    If a worker dies, others train the shards that it had not finished.
    """
    import distributed
    from distributed.comm.core import CommClosedError

    as_completed: Any = distributed.as_completed
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sending large graph")
        # Submitted as a task: dask computes it again if the worker that holds it dies. Scattered data would be lost.
        held = client.submit(_itself, what, pure=False)
    futures = {client.submit(train, held, shard.number, *options, pure=False): shard for shard in shards}
    try:
        for future in as_completed(list(futures), loop=client.loop):
            shard = futures[future]
            try:
                found = future.result()
            except distributed.KilledWorker as error:
                raise RuntimeError(
                    f"client: several workers died while they trained {shard}, the last of them at "
                    f"{error.last_worker.address}: if they ran out of memory, give them more, or start fewer"
                ) from None
            except (CancelledError, CommClosedError):  # the second while results are fetched
                raise ConnectionError(
                    "client: the shards were cancelled, as they are when the scheduler ends or is restarted: call "
                    "again, with a new client if necessary, to go on from what is stored"
                ) from None
            yield shard, found
            del futures[future]
    finally:
        with suppress(Exception):
            client.cancel([held, *futures], force=True)


def _itself(what: Any) -> Any:
    return what


def _made_here(device: str) -> Made:
    return made_on(devices.own_device(device))


def _train(plan: BankPlan, number: int, device: str) -> tuple[Arrays, Made]:
    """Train one shard with one torch thread. A worker with several threads trains as many shards side by side."""
    with own_turn(plan, device) as where:
        workers(plan, where)
        check_limit(bytes_of_a_block(plan, where), where)
        begin = time.monotonic()
        arrays = train_shard(plan, plan.shards[number], where, Event())
        return arrays, made_on(where, time.monotonic() - begin)


@contextmanager
def own_turn(plan: BankPlan, device: str) -> Iterator[torch.device]:
    """A worker's device, for one shard of a plan at a time on a GPU, and one torch thread."""
    where = devices.own_device(device)
    torch.set_num_threads(1)
    _keep_memory()
    with _gpu_turn if where.type == "cuda" else nullcontext(), devices.matmul_precision(plan.matmul_precision):
        yield where


def check_limit(block: int, where: torch.device) -> None:
    """Check dask's limit, in bytes of a block: dask would stop the worker, retry on others, and stop those too."""
    from distributed import get_worker

    worker: Any = get_worker()
    limit, threads = worker.memory_manager.memory_limit, worker.state.nthreads
    needed = threads * block
    if where.type == "cpu" and limit and needed > limit:
        raise ValueError(
            f"client's workers must have more memory, or fewer threads: {threads} blocks at once take about "
            f"{needed / 2**30:.1f} GiB, and a worker is stopped at {limit / 2**30:.1f} GiB"
        )


@cache
def _keep_memory() -> None:
    """Undo the glibc settings of dask's nannies, which return memory at once, so that each step requests it again.

    Measured on a bank of linear heads: workers took 8 s with these settings, 5 s without.
    """
    with suppress(OSError, AttributeError, TypeError):  # not glibc
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_THRESHOLD, 2**26)
        mallopt(M_TRIM_THRESHOLD, 2**28)
