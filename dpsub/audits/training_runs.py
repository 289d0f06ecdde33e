"""Runs of a training function: in this process, in others, or on a dask cluster."""

from __future__ import annotations

import multiprocessing
import os
import platform
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, suppress
from functools import cache
from importlib import metadata
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpsub._core import checks
from dpsub._core.provenance import commit, versions
from dpsub.audits import cluster
from dpsub.audits.failed_runs import message_of
from dpsub.audits.plans import Arrays, Shard
from dpsub.audits.shard_provenance import Made
from dpsub.audits.training_plans import TrainingPlan

Train = Callable[[int, int], Any]
FRAMEWORKS = ("opacus", "jax", "flax", "optax", "tensorflow", "keras")
IMPORTABLE = (
    "train must be importable by name in other processes: write it at the top level of a file that can be imported, "
    "not in another function or a notebook"
)
_turn = threading.RLock()  # one run at a time in a process: seeds of torch and NumPy are the process's


class Trained(NamedTuple):
    """The runs of one shard. Failed ones have scores of NaN, and a message by their number."""

    arrays: Arrays
    failed: dict[int, str]
    made: Made


Results = Generator[tuple[Shard, Trained], None, None]


def train_runs(train: Train, plan: TrainingPlan, number: int) -> Trained:
    """Train the runs of one shard, one after the other."""
    shard = plan.shards[number]
    scores = np.full((shard.stop - shard.start, len(plan.observed)), np.nan, np.float32)
    bits, failed = plan.bits[shard.start : shard.stop], {}
    with _turn:
        begin = time.monotonic()
        for row, run in enumerate(range(shard.start, shard.stop)):
            try:
                scores[row] = _scores(train(int(bits[row]), plan.run_seed(run)), len(plan.observed))
            except Exception as error:  # whatever it is, it costs this run alone
                failed[run] = message_of(error)
        seconds = time.monotonic() - begin
    loaded = tuple(name for name in FRAMEWORKS if name in sys.modules)
    return Trained(
        {"score": scores, "bit": bits}, failed, Made(platform.machine(), "", _versions(loaded), commit(), seconds)
    )


def here(train: Train, plan: TrainingPlan, shards: list[Shard]) -> Results:
    for shard in shards:
        yield shard, train_runs(train, plan, shard.number)


def in_processes(train: Train, plan: TrainingPlan, shards: list[Shard], processes: int) -> Results:
    """Train in processes of this machine. They end with this one, however it ends."""
    before = set(multiprocessing.active_children())
    executor = ProcessPoolExecutor(
        min(processes, len(shards)), multiprocessing.get_context("spawn"), initializer=_begin_worker
    )
    try:
        futures = {executor.submit(train_runs, train, plan, shard.number): shard for shard in shards}
        for future in as_completed(list(futures)):
            shard = futures.pop(future)
            yield shard, _received(future)
    except BaseException:
        executor.shutdown(wait=False, cancel_futures=True)
        for child in set(multiprocessing.active_children()) - before:
            child.terminate()
        raise
    executor.shutdown()


def _received(future: Future[Trained]) -> Trained:
    try:
        return future.result()
    except BrokenProcessPool:
        raise RuntimeError(
            "processes: a worker process ended before its run did: if it ran out of memory, take fewer; if this is a "
            'script, call audit_training under `if __name__ == "__main__":`. The same call goes on from what is stored'
        ) from None
    except Exception as error:  # not of a run, whose errors are results
        raise ValueError(f"{IMPORTABLE}, or leave processes out: {message_of(error)}") from None


def on_cluster(client: Any, train: Train, plan: TrainingPlan, shards: list[Shard]) -> Results:
    """Train on the workers of a dask cluster."""
    with closing(cluster.results(client, (train, plan), _train_held, shards)) as results:
        try:
            yield from results
        except (AttributeError, ImportError, TypeError) as error:  # not of a run, whose errors are results
            raise ValueError(f"{IMPORTABLE}, on the client's workers too: {message_of(error)}") from None


def check_importable(train: Train) -> None:
    """Check that another process finds the function by its name."""
    holder: Any = getattr(train, "__func__", train)  # a bound method's, a partial's, or an object's class
    holder = holder if hasattr(holder, "__qualname__") else getattr(holder, "func", type(holder))
    module = sys.modules.get(getattr(holder, "__module__", None) or "")
    found: Any = module
    with suppress(AttributeError):
        for part in holder.__qualname__.split("."):
            found = getattr(found, part)
    typed_in = getattr(module, "__name__", "") == "__main__" and not hasattr(module, "__file__")
    if found is not holder or typed_in:
        raise ValueError(f"{IMPORTABLE}, or leave processes out, got {train!r}")


def _train_held(held: tuple[Train, TrainingPlan], number: int) -> Trained:
    return train_runs(*held, number)


def _begin_worker() -> None:
    """Leave Ctrl-C to the process that began this one, and end when it has ended, even if it was killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _scores(returned: Any, steps: int) -> NDArray[np.float32]:
    """The scores of one run.

    Raises:
        ValueError: if they are not numbers, not finite, or not one for each step.
    """
    checks.no_mask("train's scores", returned)
    values = np.asarray(returned)
    if values.dtype.kind not in "iuf":
        raise ValueError(f"train must return a number or a sequence of numbers, got a {type(returned).__name__}")
    if values.shape != (steps,) and (values.shape, steps) != ((), 1):
        expected = "one score" if steps == 1 else f"{steps} scores, one for each of steps"
        raise ValueError(f"train must return {expected}, got shape {values.shape}")
    with np.errstate(over="ignore"):
        found = values.astype(np.float32)
    if not np.isfinite(found).all():
        raise ValueError(f"train must return finite scores, got {values[~np.isfinite(found)].flat[0]}")
    return found


@cache
def _versions(loaded: tuple[str, ...]) -> dict[str, str]:
    """The versions of the libraries of every audit, and of these."""
    found = versions("torch")
    for name in loaded:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found
