"""Where shards are computed: in threads of this process, or in other processes. A cluster is in `cluster.py`."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Generator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from threading import Event
from typing import Any, Protocol

import torch

from dpsub._core import checks
from dpsub.audits.plans import Computation, Made, Shard, Tick
from dpsub.models.kernels import begin_computing
from dpsub.trainers import devices

MOST_MESSAGE = 500  # characters
Done = Generator[tuple[Shard, Any, Made], None, None]


class Executor(Protocol):
    """Computes shards somewhere."""

    def kinds(self, what: Computation) -> list[Made]:
        """Where shards will be computed, as far as that is known. It fails early where they cannot be."""
        ...

    def each(self, what: Computation, shards: list[Shard], tick: Tick) -> Done:
        """Yield shards with what they were computed to be, as they are finished, and where they were made."""
        ...


class Threads:
    """Computes in this process: in its threads, or one shard after the other in the calling one."""

    def __init__(self, device: str) -> None:
        self._name = device

    def kinds(self, what: Computation) -> list[Made]:
        device = devices.device(self._name)
        what.side_by_side(device)
        return [what.made(device, 0.0)]

    def each(self, what: Computation, shards: list[Shard], tick: Tick) -> Done:
        device = devices.device(self._name)
        at_once = what.side_by_side(device)

        def compute(shard: Shard, stop: Event) -> tuple[Any, Made]:
            return timed(what, shard, device, stop, tick)

        if what.serial:
            for shard in shards:
                yield shard, *compute(shard, Event())
            return
        with (
            devices.matmul_precision(what.matmul_precision),
            closing(devices.side_by_side(compute, shards, at_once)) as done,
        ):
            for shard, (results, made) in done:
                yield shard, results, made


class Processes:
    """Computes in processes of this machine. They end with this one, however it ends."""

    def __init__(self, count: int) -> None:
        self._count = count

    def kinds(self, what: Computation) -> list[Made]:
        if not what.serial:
            raise ValueError(
                f"processes must be 1 for an audit that trains blocks in threads, got {self._count}: leave it out, or "
                "give the client of a dask.distributed.LocalCluster"
            )
        return []

    def each(self, what: Computation, shards: list[Shard], tick: Tick) -> Done:
        before = set(multiprocessing.active_children())
        executor = ProcessPoolExecutor(
            min(self._count, len(shards)), multiprocessing.get_context("spawn"), initializer=_begin_worker
        )
        try:
            futures = {executor.submit(alone, what, shard, torch.device("cpu")): shard for shard in shards}
            for future in as_completed(list(futures)):
                shard = futures.pop(future)
                yield shard, *_received(what, future)
        except BaseException:
            executor.shutdown(wait=False, cancel_futures=True)
            for child in set(multiprocessing.active_children()) - before:
                child.terminate()
            raise
        executor.shutdown()


def timed(what: Computation, shard: Shard, device: torch.device, stop: Event, tick: Tick) -> tuple[Any, Made]:
    """What a shard is computed to be, and where and in which time."""
    begin_computing()
    begin = time.monotonic()
    results = what.run(shard, device, stop, tick)
    return results, what.made(device, time.monotonic() - begin)


def alone(what: Computation, shard: Shard, device: torch.device) -> tuple[Any, Made]:
    """The same in another process, which nobody asks to stop, and whose progress is counted by shards."""
    return timed(what, shard, device, Event(), lambda units: None)


def _received(what: Computation, future: Future[tuple[Any, Made]]) -> tuple[Any, Made]:
    try:
        return future.result()
    except BrokenProcessPool:
        raise RuntimeError(
            "processes: a worker process ended before its run did: if it ran out of memory, take fewer; if this is a "
            'script, call the audit under `if __name__ == "__main__":`. The same call goes on from what is stored'
        ) from None
    except Exception as error:  # not of a run, whose errors are results
        if not what.not_sent:
            raise
        raise ValueError(f"{what.not_sent}, or leave processes out: {message_of(error)}") from None


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


def message_of(error: BaseException) -> str:
    """The kind and message of an error, as a text that can be stored."""
    told = "".join(traceback.format_exception_only(error)).strip()[:MOST_MESSAGE]
    return "".join(character if checks.drawable(character) else "�" for character in told) or type(error).__name__
