"""Where models train: the device, its free memory, and how exactly it multiplies."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any, TypeVar

import psutil
import torch

from dpsub import _checks

T = TypeVar("T")
PRECISIONS = {"highest": ("ieee", "ieee"), "high": ("tf32", "tf32"), "medium": ("tf32", "bf16")}  # on CUDA, on a CPU


def device(name: str) -> torch.device:
    _checks.choice("device", name, ("auto", "cpu", "cuda"))
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError('device "cuda" was asked for, but torch finds no CUDA device: use "auto" or "cpu"')
    return torch.device(name)


def free_bytes(device: torch.device) -> int:
    """Memory that can be had without pushing anything out; a container's limit (cgroup v2) counts."""
    if device.type == "cuda":
        free: int = torch.cuda.mem_get_info(device)[0]
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    free = psutil.virtual_memory().available
    group = Path("/sys/fs/cgroup")
    if (group / "memory.max").exists() and (most := (group / "memory.max").read_text().strip()) != "max":
        held = int((group / "memory.current").read_text())
        cached = re.search(r"^inactive_file (\d+)", (group / "memory.stat").read_text(), re.MULTILINE)
        free = min(free, max(0, int(most) - held + int(cached[1] if cached else 0)))
    return free


@contextmanager
def matmul_precision(precision: str) -> Iterator[None]:
    """Products and convolutions in float32, or as coarse as asked for, and the same each time, as cuDNN may not be."""
    backends: Any = torch.backends
    on_cuda, on_cpu = PRECISIONS[precision]
    wanted: list[tuple[Any, str, object]] = [
        (backends.cuda.matmul, "fp32_precision", on_cuda),
        (backends.cudnn.conv, "fp32_precision", on_cuda),
        (backends.mkldnn.matmul, "fp32_precision", on_cpu),
        (backends.mkldnn.conv, "fp32_precision", on_cpu),
        (backends.cudnn, "deterministic", True),
    ]
    before = [getattr(switch, name) for switch, name, _ in wanted]
    try:
        for switch, name, value in wanted:
            setattr(switch, name, value)
        yield
    finally:
        for (switch, name, _), value in zip(wanted, before, strict=True):
            setattr(switch, name, value)


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
