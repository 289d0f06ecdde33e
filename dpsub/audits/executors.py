"""Where shards are computed: in this process, in others of this machine, or on a dask cluster."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent import futures
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from threading import Event, Lock
from typing import Any, Protocol

import torch

from dpsub._core import checks
from dpsub.audits.plans import Made, Plan, Results, Shard, Tick, made_on
from dpsub.models.mkl_kernels import begin_computing
from dpsub.trainers import devices

MOST_MESSAGE = 500  # characters
PATIENCE = 30  # seconds for a scheduler to answer
Done = Generator[tuple[Shard, Results, Made], None, None]
_gpu_turn = Lock()


class Executor(Protocol):
    """Computes shards somewhere."""

    def kinds(self, plan: Plan) -> list[Made]:
        """Where shards will be computed, as far as that is known. It fails early where they cannot be."""
        ...

    def each(self, plan: Plan, shards: list[Shard], tick: Tick) -> Done:
        """Yield shards with what they were computed to be, as they are finished, and where they were made."""
        ...


class Here:
    """Computes in this process: in its threads, or one shard after the other in the calling one."""

    def __init__(self, device: str) -> None:
        self._device = devices.device(device)

    def kinds(self, plan: Plan) -> list[Made]:
        plan.side_by_side(self._device)
        return [plan.made(self._device, 0.0)]

    def each(self, plan: Plan, shards: list[Shard], tick: Tick) -> Done:
        def compute(shard: Shard, stop: Event) -> tuple[Results, Made]:
            return timed(plan, shard, self._device, stop, tick)

        if plan.serial:
            for shard in shards:
                yield shard, *compute(shard, Event())
            return
        at_once = plan.side_by_side(self._device)
        with (
            devices.matmul_precision(plan.matmul_precision),
            closing(devices.side_by_side(compute, shards, at_once)) as done,
        ):
            for shard, (results, made) in done:
                yield shard, results, made


@dataclass(frozen=True)
class Elsewhere:
    """Computes in other processes.

    Attributes:
        submit: a call to another process, for its future.
        completed: futures, as they are finished.
        release: futures whose results nobody waits for any more.
        shared: makes of the plan what is sent with each shard.
        compute: a shard there, from that.
        kinds: as `Executor.kinds`.
    """

    submit: Callable[..., Any]
    completed: Callable[[list[Any]], Iterable[Any]]
    release: Callable[[list[Any]], object]
    shared: Callable[[Plan], Any]
    compute: Callable[[Any, Shard], tuple[Results, Made]]
    kinds: Callable[[Plan], list[Made]]

    def each(self, plan: Plan, shards: list[Shard], tick: Tick) -> Done:
        held = self.shared(plan)
        submitted = {self.submit(self.compute, held, shard): shard for shard in shards}
        try:
            for future in self.completed(list(submitted)):
                shard = submitted.pop(future)
                yield shard, *_received(plan, shard, future)
        finally:
            self.release([held, *submitted])


def _received(plan: Plan, shard: Shard, future: Any) -> tuple[Results, Made]:
    try:
        found: tuple[Results, Made] = future.result()
        return found
    except BrokenProcessPool:
        raise RuntimeError(
            "processes: a worker process ended before its run did: if it ran out of memory, take fewer; if this is a "
            'script, call the audit under `if __name__ == "__main__":`. The same call goes on from what is stored'
        ) from None
    except Exception as error:  # not of a run of a training function, whose errors are results
        kind = type(error).__name__  # dask may not be there to import its errors from
        if isinstance(error, futures.CancelledError) or kind == "CommClosedError":
            raise ConnectionError(
                "client: the shards were cancelled, as they are when the scheduler ends or is restarted: call again, "
                "with a new client if necessary, to go on from what is stored"
            ) from None
        if kind == "KilledWorker":
            raise RuntimeError(
                f"client: several workers died while they trained {shard}, the last of them at "
                f"{error.last_worker.address}: if they ran out of memory, give them more, or start fewer"  # type: ignore[attr-defined]
            ) from None
        if not plan.not_sent:
            raise
        raise ValueError(f"{plan.not_sent}: {message_of(error)}") from None


@contextmanager
def processes(count: int) -> Iterator[Elsewhere]:
    """Processes of this machine. They end with this one, however it ends."""
    before = set(multiprocessing.active_children())
    executor = futures.ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), initializer=_begin_worker)

    def kinds(plan: Plan) -> list[Made]:
        if not plan.serial:
            raise ValueError(
                f"processes must be 1 for an audit that trains blocks in threads, got {count}: leave it out, or give "
                "the client of a dask.distributed.LocalCluster"
            )
        return []

    try:
        yield Elsewhere(
            submit=executor.submit,
            completed=futures.as_completed,
            release=lambda left: None,  # ended below
            shared=lambda plan: plan,
            compute=_alone_on_cpu,
            kinds=kinds,
        )
    except BaseException:
        executor.shutdown(wait=False, cancel_futures=True)
        for child in set(multiprocessing.active_children()) - before:
            child.terminate()
        raise
    executor.shutdown()


@contextmanager
def workers(client: Any, device: str) -> Iterator[Elsewhere]:
    """The workers of a dask client, or of the scheduler at an address. If one dies, others compute its shards."""
    try:
        import distributed
    except ImportError:
        raise ImportError("client needs dask.distributed: pip install 'dpsub[cluster]'") from None
    advice = "start one with `dask scheduler` and workers with `dask worker`, or leave client out"
    kind: Any = distributed.Client
    own: Any = nullcontext()
    if isinstance(client, str):
        try:
            own = client = kind(client, timeout=PATIENCE, set_as_default=False)
        except (OSError, ValueError) as error:
            raise ConnectionError(f"client: no scheduler answers at {client!r} ({error}): {advice}") from None
    if not isinstance(client, kind) or client.asynchronous:
        raise ValueError(
            "client must be a dask.distributed.Client that is not asynchronous, as Client(cluster) is, or the "
            f"address of a scheduler, got {client!r}"
        )
    if client.status != "running":
        raise ConnectionError(f"client: its scheduler does not answer any more, it is {client.status!r}: {advice}")

    def shared(plan: Plan) -> Any:
        """The plan as a task's result: sent once, and made again if the worker that holds it dies."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sending large graph")
            return client.submit(_itself, plan, pure=False)

    def kinds(plan: Plan) -> list[Made]:
        return list(client.run(_made_there, device).values()) if plan.of_one_kind else []

    def release(left: list[Any]) -> None:
        """Workers drop what nobody waits for. Not cancelled, which fails clients that are connecting."""
        for future in left:
            future.release()

    with own:
        yield Elsewhere(
            submit=partial(client.submit, pure=False),
            completed=partial(distributed.as_completed, loop=client.loop),
            release=release,
            shared=shared,
            compute=partial(_on_worker, device=device),
            kinds=kinds,
        )


def timed(plan: Plan, shard: Shard, device: torch.device, stop: Event, tick: Tick) -> tuple[Results, Made]:
    """What a shard is computed to be, and where and in which time."""
    begin_computing()
    begin = time.monotonic()
    results = plan.run(shard, device, stop, tick)
    return results, plan.made(device, time.monotonic() - begin)


def _alone(plan: Plan, shard: Shard, device: torch.device) -> tuple[Results, Made]:
    """The same in another process, which nobody asks to stop, and whose progress is counted by shards."""
    return timed(plan, shard, device, Event(), lambda units: None)


def _alone_on_cpu(plan: Plan, shard: Shard) -> tuple[Results, Made]:
    return _alone(plan, shard, torch.device("cpu"))


def _begin_worker() -> None:
    """Leave Ctrl-C to the process that began this one, and end when it has ended, even if it was killed."""
    devices.keep_freed_memory()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _itself(plan: Any) -> Any:
    return plan


def _made_there(device: str) -> Made:
    return made_on(devices.device(device))


def _on_worker(plan: Plan, shard: Shard, device: str) -> tuple[Results, Made]:
    """Compute one shard with one torch thread. A worker with several threads computes as many side by side."""
    if plan.serial:
        return _alone_on_cpu(plan, shard)
    where = devices.device(device)
    torch.set_num_threads(1)
    # Undo the settings of dask's nannies, which return memory at once, so that each step requests it again. Measured on
    # a bank of linear heads: workers took 8 s with these settings, 5 s without.
    devices.keep_freed_memory(whatever_is_set=True)
    with _gpu_turn if where.type == "cuda" else nullcontext(), devices.matmul_precision(plan.matmul_precision):
        plan.side_by_side(where)
        _check_limit(plan.bytes_at_once(where), where)
        return _alone(plan, shard, where)


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


def message_of(error: BaseException) -> str:
    """The kind and message of an error, as a text that can be stored."""
    told = "".join(traceback.format_exception_only(error)).strip()[:MOST_MESSAGE]
    return "".join(character if checks.drawable(character) else "�" for character in told) or type(error).__name__
