"""Audits on disk that survive whatever happens to the process that writes them.

Each file is written beside its place and then moved there, a shard's document after its numbers: what is killed at any
moment leaves whole shards, and at most some files that no document vouches for.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from hashlib import sha256
from io import BufferedIOBase
from math import isclose, prod
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from dpsub import _layout
from dpsub._contents import DOCUMENT, FORMAT, LOCK, Contents, Entry, Json, vouched
from dpsub._plans import Arrays, Made, Plan, Shard, joined, origin
from dpsub.dpsgd import DPSGD

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

SAME = 1e-6  # relative: a noise multiplier that was calibrated again, elsewhere, may differ in its last digits


class Store:
    """An audit in a folder: what is there is read and checked at once; nothing is written before `writing`."""

    def __init__(self, path: Path, plan: Plan, *, repair: bool = False) -> None:
        self.path = path
        self._asked = plan
        self._repair = repair
        self._read()

    def _read(self) -> None:
        self.contents = Contents(self.path)
        self.plan = self._asked
        if self.contents.damaged and not self._repair:
            raise ValueError(self.contents.damage)
        if self.contents.attributes is not None and not self.contents.root_damaged:
            self.plan = _as_stored(self._asked, self.path, self.contents.attributes)
        others = [entry for entry in self.contents.entries.values() if entry.audit != self.plan.fingerprint]
        if others:
            raise ValueError(
                f"store must be mended with the parameters that it was made with: what {self.path} says of itself is "
                f"damaged, and {len(others)} of its shards come from another audit than the one asked for"
            )

    @property
    def missing(self) -> list[Shard]:
        return [shard for shard in self.plan.shards if shard.number not in self.contents.entries]

    @property
    def made(self) -> list[Made]:
        return [entry.made for entry in self.contents.entries.values()]

    @contextmanager
    def writing(self) -> Iterator[None]:
        """The store to oneself, begun or mended where it has to be."""
        with _naming(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            lock = open(self.path / LOCK, "ab")  # noqa: SIM115
        with lock:
            _take(lock, self.path)
            self._read()
            self._check_room()
            self._skeleton = _layout.skeleton(self.plan)
            self._chunks = _layout.Chunks(self.plan, self._skeleton)
            with _naming(self.path):
                self._tidy()
            self._session, self._began = f"{_now()}, process {os.getpid()}", time.monotonic()
            try:
                yield
            finally:
                with suppress(OSError):  # the shards' documents say the same
                    self._put_root()

    def mend(self) -> None:
        """Where nothing has to be trained: put right what damage, or the end of a process, left behind."""
        if self.contents.root_damaged:
            with self.writing():
                pass
        elif self.contents.attributes and self.contents.attributes["models_stored"] != self.contents.models:
            with suppress(OSError), self.writing():
                pass

    def _tidy(self) -> None:
        for leftover in self.path.rglob("*.partial"):
            leftover.unlink()
        for number in self.contents.damaged_shards:
            (self.path / "shards" / str(number) / DOCUMENT).unlink(missing_ok=True)
        if self.contents.attributes is None or self.contents.root_damaged:
            for name, content in self._skeleton.items():
                if name != DOCUMENT:
                    self._put(name, content.to_bytes())
            self._put_root()

    def write(self, shard: Shard, arrays: Arrays, made: Made) -> None:
        """Put one shard where it stays; Ctrl-C has to wait for it."""
        chunks = self._chunks(shard, arrays)
        entry = Entry(
            audit=self.plan.fingerprint,
            models=shard.stop - shard.start,
            runs=str(shard),
            device=made.device,
            versions=made.versions,
            commit=made.commit,
            seconds=round(made.seconds, 3),
            session=self._session,
            elapsed=round(time.monotonic() - self._began, 3),
            finished=_now(),
            files={name: sha256(content).hexdigest() for name, content in chunks.items()},
        )
        document = {"zarr_format": 3, "node_type": "group", "attributes": asdict(entry)}
        with _ctrl_c_waits():
            for name, content in chunks.items():
                self._put(name, content)
            self._put(f"shards/{shard.number}/{DOCUMENT}", vouched(document))
            self.contents.entries[shard.number] = entry

    def dataset(self) -> xr.Dataset:
        with xr.open_dataset(self.path, engine="zarr", consolidated=True, chunks=None) as stored:
            found: xr.Dataset = stored.load()
        found.attrs = self._attributes()
        return found

    def _attributes(self) -> Json:
        """What the audit is and, so far, where it came from."""
        known: Json = {"dpsub_store": FORMAT, **self.plan.attributes}
        known["models_stored"] = self.contents.models
        if not self.made:
            return known
        return (
            known
            | origin(self.made)
            | {
                "commit": joined(made.commit for made in self.made),
                "wall_seconds": round(self.contents.wall_seconds, 1),
                "finished": max(entry.finished for entry in self.contents.entries.values()),
            }
        )

    def _put_root(self) -> None:
        document = json.loads(self._skeleton[DOCUMENT].to_bytes())
        rest = {name: content.to_bytes() for name, content in self._skeleton.items() if name != DOCUMENT}
        files = {name: sha256(content).hexdigest() for name, content in rest.items()}
        self._put(DOCUMENT, vouched({**document, "attributes": {**self._attributes(), "files": files}}))

    def _put(self, name: str, content: bytes) -> None:
        path = self.path / name
        beside = path.with_name(f"{path.name}.partial")
        with _naming(path):
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                beside.write_bytes(content)
                beside.replace(path)
            except OSError:
                with suppress(OSError):
                    beside.unlink(missing_ok=True)
                raise

    def _check_room(self) -> None:
        whole = sum(prod(v.shape) * np.dtype(v.dtype).itemsize for v in self.plan.variables.values())
        needed, free = whole * len(self.missing) / len(self.plan.shards), shutil.disk_usage(self.path).free
        if needed > free:
            raise OSError(
                errno.ENOSPC,
                f"the audit takes {needed / 2**20:,.1f} MiB more, and {free / 2**20:,.1f} MiB are free: free some, or "
                "give another path",
                str(self.path),
            )


def _as_stored(asked: Plan, path: Path, attributes: Json) -> Plan:
    """The plan with the stored numbers and canaries, if they are those asked for but for rounding."""
    others = []
    for name, value in asked.attributes.items():
        stored = attributes.get(name)
        close = isinstance(stored, float) and isinstance(value, float) and isclose(stored, value, rel_tol=SAME)
        if stored != value and not close and not name.startswith("canary_"):
            others.append(f"{name}: stored {stored!r}, asked for {value!r}")
    canaries = _layout.stored_canaries(path, asked.canaries)
    if canaries is None:
        fingerprints = attributes.get("canary_fingerprint"), asked.attributes["canary_fingerprint"]
        others.append("canary_fingerprint: stored {!r}, asked for {!r}".format(*fingerprints))
    if others or canaries is None:
        told = "".join(f"\n  {other}" for other in others)
        raise ValueError(f"store holds another audit, {path}:{told}\ngive another path, or these parameters")
    details = {
        name: value
        for name, value in attributes.items()
        if name.startswith("canary_") and name not in ("canary_fingerprint", "canary_crafted")
    }
    return replace(
        asked,
        spec=DPSGD(**{name: attributes[name] for name in asdict(asked.spec)}),
        canaries=tuple(
            replace(
                canary,
                details={
                    name.removeprefix("canary_"): value[i] if len(canaries) > 1 else value
                    for name, value in details.items()
                },
            )
            for i, canary in enumerate(canaries)
        ),
    )


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Errors of the file system say where: a full disk's does not."""
    try:
        yield
    except OSError as error:
        if error.filename is not None and Path(str(error.filename)).suffix != ".partial":
            raise
        advice = f"{error.strerror}; what was stored before stays, and the same call goes on from there"
        raise OSError(error.errno, advice, str(path)) from error


def _take(lock: BufferedIOBase, path: Path) -> None:
    """`flock`: the system lets go of it when the process ends, however it ends."""
    if fcntl is None:
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        advice = "another process is writing this store: wait for it, or give another path"
        raise BlockingIOError(error.errno, advice, str(path)) from None
    except OSError as error:
        warnings.warn(f"{path} cannot be locked ({error.strerror}): let no other process write it", stacklevel=4)


def is_taken(path: Path) -> bool:
    """Whether some process is writing this store."""
    if fcntl is None or not (path / LOCK).exists():
        return False
    with open(path / LOCK, "rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
    return False


@contextmanager
def _ctrl_c_waits() -> Iterator[None]:
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


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
