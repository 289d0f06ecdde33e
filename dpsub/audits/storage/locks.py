"""One writer at a time, errors that name the path, and Ctrl-C that waits for a write to end."""

from __future__ import annotations

import os
import signal
import stat
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedIOBase
from pathlib import Path
from typing import Any

from dpsub.audits.storage.files import LOCK

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add the path to errors of the file system that have none, as when the disk is full, or a temporary one."""
    try:
        yield
    except OSError as error:
        if error.filename is not None and Path(str(error.filename)).suffix != ".partial":
            raise
        advice = f"{error.strerror}; what was stored before stays: put this right, and the same call goes on from there"
        raise OSError(error.errno, advice, str(path)) from error


def take(lock: BufferedIOBase, path: Path) -> None:
    """Take the lock, by `flock`: the system releases it when the process ends, however it ends."""
    if fcntl is None:
        return
    for wait in (0.05, 0.1, 0.2, None):  # another process's `is_taken` may hold it for a moment
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError as error:
            if wait is None:
                advice = "another process is writing this store: wait until it has ended, or give another path"
                raise BlockingIOError(error.errno, advice, str(path)) from None
            time.sleep(wait)
        except OSError as error:
            warnings.warn(f"{path} cannot be locked ({error.strerror}): let no other process write it", stacklevel=4)
            return


def is_taken(path: Path) -> bool:
    """Whether a process is writing this store."""
    if fcntl is None:
        return False
    try:
        if not stat.S_ISREG(os.lstat(path / LOCK).st_mode):  # opening a pipe would wait for a writer
            return False
        with open(path / LOCK, "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


@contextmanager
def ctrl_c_waits() -> Iterator[None]:
    """Handle Ctrl-C only after the block has ended."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[Any] = []
    handler = signal.signal(signal.SIGINT, lambda *arguments: came.append(arguments))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
    if came and callable(handler):
        handler(*came[0])
