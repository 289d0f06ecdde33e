"""Where shards are computed: in this process, or by the workers of a dask cluster."""

from __future__ import annotations

import time
import traceback
import warnings
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator
from concurrent.futures import CancelledError
from contextlib import closing, contextmanager, nullcontext
from threading import Event, Lock
from typing import Any

import torch

from dpsub.audits.plans import Made, Plan, Results, Shard, Stopped, Tick
from dpsub.models.mkl_kernels import begin_computing
from dpsub.trainers import devices

MOST_MESSAGE = 500  # characters
PATIENCE = 30  # seconds for a scheduler to answer
Computed = Generator[tuple[Shard, Results, Made], None, None]
_gpu_turn = Lock()


class Executor(ABC):
    """Computes shards somewhere."""

    def expected(self, plan: Plan) -> list[Made]:
        """Where shards will be computed, if that is known before. It fails where they cannot be."""
        return []

    @abstractmethod
    def results(self, plan: Plan, shards: list[Shard], tick: Tick) -> Computed:
        """Yield shards with what they were computed to be and where they were made, as they are finished."""


class Here(Executor):
    """Computes in this process: in its threads, or one shard after the other in the calling one."""

    def __init__(self, device: str) -> None:
        self._device = devices.device(device)

    def expected(self, plan: Plan) -> list[Made]:
        plan.at_once(self._device)  # refuses what the memory does not hold
        return [plan.made(self._device)]

    def results(self, plan: Plan, shards: list[Shard], tick: Tick) -> Computed:
        if plan.calls_users:
            for shard in shards:
                yield shard, *timed(plan, shard, self._device, tick)
            return

        def compute(shard: Shard, stop: Event) -> tuple[Results, Made]:
            def tick_unless_stopped(units: int) -> None:
                if stop.is_set():
                    raise Stopped
                tick(units)

            return timed(plan, shard, self._device, tick_unless_stopped)

        with (
            devices.matmul_precision(plan.matmul_precision),
            closing(devices.side_by_side(compute, shards, plan.at_once(self._device))) as done,
        ):
            for shard, (results, made) in done:
                yield shard, results, made


class Workers(Executor):
    """Computes on the workers of a dask client. If one dies, others compute its shards."""

    def __init__(self, client: Any, device: str) -> None:
        self._client, self._device = client, device

    def results(self, plan: Plan, shards: list[Shard], tick: Tick) -> Computed:
        import distributed

        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sending large graph")
            # As a task's result it is sent once, and made again if the worker that holds it dies.
            shared = self._client.submit(_itself, plan, pure=False)
        submitted = {
            self._client.submit(_on_worker, shared, shard, self._device, pure=False): shard for shard in shards
        }
        try:
            for future in distributed.as_completed(list(submitted), loop=self._client.loop):  # type: ignore[no-untyped-call]
                shard = submitted.pop(future)
                results, made = _result(plan, shard, future)
                tick(plan.units(shard))
                yield shard, results, made
        finally:
            # Workers drop what nobody waits for. Not cancelled, which fails clients that are connecting.
            for future in (shared, *submitted):
                future.release()


def _result(plan: Plan, shard: Shard, future: Any) -> tuple[Results, Made]:
    try:
        result: tuple[Results, Made] = future.result()
        return result
    except Exception as error:  # not of a run of a training function, whose errors are results
        error_name = type(error).__name__  # dask may not be there to import its errors from
        if isinstance(error, CancelledError) or error_name == "CommClosedError":
            raise ConnectionError(
                "client: the shards were cancelled, as they are when the scheduler ends or is restarted: call again, "
                "with a new client if necessary, to go on from what is stored"
            ) from None
        if error_name == "KilledWorker":
            raise RuntimeError(
                f"client: several workers died while they trained {shard}, the last of them at "
                f"{error.last_worker.address}: if they ran out of memory, give them more, or start fewer"  # type: ignore[attr-defined]
            ) from None
        if not plan.calls_users:
            raise
        expected = "train must be a function that the workers can import, with the libraries that it uses"
        raise ValueError(f"{expected}: {message_of(error)}") from None


@contextmanager
def where(client: Any, device: str) -> Iterator[Executor]:
    """Here or, if there is a client, on the workers of a dask client or of the scheduler at an address."""
    if client is None:
        yield Here(device)
        return
    try:
        import distributed
    except ImportError:
        raise ImportError("client needs dask.distributed: pip install 'dpsub[cluster]'") from None
    advice = "start one with `dask scheduler` and workers with `dask worker`, or leave client out"
    client_class: Any = distributed.Client
    own: Any = nullcontext()
    if isinstance(client, str):
        try:
            own = client = client_class(client, timeout=PATIENCE, set_as_default=False)
        except (OSError, ValueError) as error:
            raise ConnectionError(f"client: no scheduler answers at {client!r} ({error}): {advice}") from None
    if not isinstance(client, client_class) or client.asynchronous:
        raise ValueError(
            "client must be a dask.distributed.Client that is not asynchronous, as Client(cluster) is, or the "
            f"address of a scheduler, got {client!r}"
        )
    if client.status != "running":
        raise ConnectionError(f"client: its scheduler does not answer any more, it is {client.status!r}: {advice}")

    with own:
        yield Workers(client, device)


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


def message_of(error: BaseException) -> str:
    """The kind and message of an error."""
    return "".join(traceback.format_exception_only(error)).strip()[:MOST_MESSAGE]
