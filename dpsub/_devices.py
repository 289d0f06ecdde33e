"""Where models train: the device, its free memory, and how exactly it multiplies."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import TypeVar

import psutil
import torch

from dpsub import _checks

T = TypeVar("T")
PRECISIONS = ("highest", "high", "medium")


def device(name: str) -> torch.device:
    _checks.choice("device", name, ("auto", "cpu", "cuda"))
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError('device "cuda" was asked for, but torch finds no CUDA device: use "auto" or "cpu"')
    return torch.device(name)


def free_bytes(device: torch.device) -> int:
    """Memory that can be had without pushing anything out; a container's limit counts."""
    if device.type == "cuda":
        free: int = torch.cuda.mem_get_info(device)[0]
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    free = psutil.virtual_memory().available
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.exists() and used.exists() and (most := limit.read_text().strip()) != "max":
        free = min(free, max(0, int(most) - int(used.read_text())))
    return free


@contextmanager
def matmul_precision(precision: str) -> Iterator[None]:
    """Products in float32 as asked for; convolutions follow, which CUDA would otherwise round to TF32 by default."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        with torch.backends.cudnn.flags(
            enabled=True, benchmark=False, deterministic=True, allow_tf32=precision != "highest"
        ):
            yield
    finally:
        torch.set_float32_matmul_precision(before)


def side_by_side(work: Callable[[int, Event], T], count: int, workers: int) -> Generator[tuple[int, T]]:
    """`work(0)` to `work(count - 1)`, numbered, as they finish, `workers` at a time with one torch thread each.

    One thread a piece keeps cores busy that a single piece would leave idle (normals are drawn on one core), and makes
    the results independent of how many cores there are. Leaving early, by an error or Ctrl-C, sets the event that each
    piece is given, and waits for the pieces to notice.
    """
    stop = Event()
    threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,))
    try:
        futures = {pool.submit(work, i, stop): i for i in range(count)}
        for future in as_completed(futures):
            yield futures.pop(future), future.result()
    finally:
        stop.set()
        pool.shutdown(wait=True, cancel_futures=True)
        torch.set_num_threads(threads)
