"""Shards on a dask cluster: its workers compute them, and this process receives the results."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager, nullcontext
from threading import Lock
from typing import Any

import torch

from dpsub.audits.local_executors import Done, alone, message_of
from dpsub.audits.plans import Computation, Made, Shard, Tick, made_on
from dpsub.trainers import devices

PATIENCE = 30  # seconds for a scheduler to answer
_gpu_turn = Lock()


@contextmanager
def connected(client: Any, device: str) -> Iterator[Workers]:
    """The workers of the client that was given, or of the scheduler at the address that was given."""
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
            yield Workers(own, device)
        return
    if not isinstance(client, kind) or client.asynchronous:
        raise ValueError(
            "client must be a dask.distributed.Client that is not asynchronous, as Client(cluster) is, or the "
            f"address of a scheduler, got {client!r}"
        )
    if client.status != "running":
        raise ConnectionError(f"client: its scheduler does not answer any more, it is {client.status!r}: {advice}")
    yield Workers(client, device)


class Workers:
    """Computes on the workers of a client. If one dies, others compute the shards that it had not finished."""

    def __init__(self, client: Any, device: str) -> None:
        self._client, self._device = client, device

    def kinds(self, computation: Computation) -> list[Made]:
        return list(self._client.run(_made_here, self._device).values()) if computation.of_one_kind else []

    def each(self, computation: Computation, shards: list[Shard], tick: Tick) -> Done:
        import distributed
        from distributed.comm.core import CommClosedError

        as_completed: Any = distributed.as_completed
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sending large graph")
            # Submitted as a task: dask computes it again if the worker that holds it dies. Scattered data would be
            # lost.
            held = self._client.submit(_itself, computation, pure=False)
        futures = {self._client.submit(_computed, held, shard, self._device, pure=False): shard for shard in shards}
        try:
            for future in as_completed(list(futures), loop=self._client.loop):
                shard = futures[future]
                try:
                    results, made = future.result()
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
                except (AttributeError, ImportError, TypeError) as error:
                    if not computation.not_sent:
                        raise
                    raise ValueError(
                        f"{computation.not_sent}, on the client's workers too: {message_of(error)}"
                    ) from None
                yield shard, results, made
                del futures[future]
        finally:
            # Not cancelled, which the scheduler tells all clients: one that is connecting then fails.
            for future in [held, *futures]:
                future.release()


def _itself(computation: Any) -> Any:
    return computation


def _made_here(device: str) -> Made:
    return made_on(devices.device(device))


def _computed(computation: Computation, shard: Shard, device: str) -> tuple[Any, Made]:
    """Compute one shard with one torch thread. A worker with several threads computes as many side by side."""
    if computation.serial:
        return alone(computation, shard, torch.device("cpu"))
    where = devices.device(device)
    torch.set_num_threads(1)
    # Undo the settings of dask's nannies, which return memory at once, so that each step requests it again. Measured on
    # a bank of linear heads: workers took 8 s with these settings, 5 s without.
    devices.keep_freed_memory(whatever_is_set=True)
    with _gpu_turn if where.type == "cuda" else nullcontext(), devices.matmul_precision(computation.matmul_precision):
        computation.side_by_side(where)
        _check_limit(computation.bytes_at_once(where), where)
        return alone(computation, shard, where)


def _check_limit(block: int, where: torch.device) -> None:
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
