"""The device on which models train: its choice, free memory, arithmetic precision and threads."""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from threading import Condition, Event
from typing import Any, TypeVar

import psutil
import torch

from dpsub._core import checks
from dpsub.models.mkl_kernels import begin_computing

S = TypeVar("S")
T = TypeVar("T")
_precision_freed = Condition()
# Of each thread inside `matmul_precision`: the precision, and the switches as they were before the first one entered.
_precisions: list[tuple[str, list[object]]] = []
NAMES = ("auto", "cpu", "cuda")
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
PRECISIONS = {"highest": ("ieee", "ieee"), "high": ("tf32", "tf32"), "medium": ("tf32", "bf16")}  # on CUDA and on a CPU


def keep_freed_memory() -> None:
    """Let glibc keep up to 32 MB of freed memory for the next step, in this process.

    Each step of training allocates and frees the same megabytes. By default they go back to the system every time, and
    training waits while it gets them again.
    """
    mallopt: Any = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None  # musl has none
    for threshold in (M_TRIM_THRESHOLD, M_MMAP_THRESHOLD) if mallopt else ():
        mallopt(threshold, 2**25)


def device(name: str) -> torch.device:
    """The device of this name: "cpu", "cuda", or "auto" for CUDA if there is any.

    Raises:
        ValueError: if the name is another one, or torch finds no CUDA device.
    """
    checks.choice("device", name, NAMES)
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError('device "cuda" was asked for, but torch finds no CUDA device: use "auto" or "cpu"')
    return torch.device(name)


def free_bytes(device: torch.device) -> int:
    """Free memory in bytes, without swapping; a container's limit (cgroup v2) counts."""
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
    """Within this context, products and convolutions have this precision, and cuDNN is deterministic.

    The switches belong to the process. The first thread to enter sets them, and the last to leave restores them. A
    thread that wants another precision waits until then.

    Args:
        precision: "highest" for float32; "high" and "medium" allow TF32 or bfloat16, see `PRECISIONS`.
    """
    begin_computing()
    backends: Any = torch.backends
    on_cuda, on_cpu = PRECISIONS[precision]
    switches = [
        (backends.cuda.matmul, "fp32_precision", on_cuda),
        (backends.cudnn.conv, "fp32_precision", on_cuda),
        (backends.mkldnn.matmul, "fp32_precision", on_cpu),
        (backends.mkldnn.conv, "fp32_precision", on_cpu),
        (backends.cudnn, "deterministic", True),
    ]
    with _precision_freed:
        _precision_freed.wait_for(lambda: all(other == precision for other, _ in _precisions))
        before = _precisions[0][1] if _precisions else [getattr(switch, name) for switch, name, _ in switches]
        _precisions.append((precision, before))
        for switch, name, value in switches:
            setattr(switch, name, value)
    try:
        yield
    finally:
        with _precision_freed:
            _precisions.pop()
            if not _precisions:
                for (switch, name, _), value in zip(switches, before, strict=True):
                    setattr(switch, name, value)
            _precision_freed.notify_all()


def side_by_side(work: Callable[[S, Event], T], pieces: Iterable[S], workers: int) -> Generator[tuple[S, T]]:
    """Run `work(piece, stop)` for all pieces, `workers` at a time, and yield each piece with its result as it finishes.

    Each piece runs on one torch thread. This keeps all cores busy (normals are drawn on one core) and makes the results
    independent of the number of cores. Leaving early, by an error or Ctrl-C, sets the event `stop` and waits for the
    running pieces to return.
    """
    begin_computing()
    keep_freed_memory()
    stop = Event()
    threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,))
    try:
        futures = {pool.submit(work, piece, stop): piece for piece in pieces}
        for future in as_completed(futures):
            yield futures.pop(future), future.result()
    finally:
        stop.set()
        pool.shutdown(wait=True, cancel_futures=True)
        torch.set_num_threads(threads)
