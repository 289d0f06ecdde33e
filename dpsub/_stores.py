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
from collections.abc import Iterator, Mapping
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
from zarr.storage import MemoryStore

from dpsub import _layout
from dpsub._contents import DOCUMENT, FORMAT, LOCK, Contents, Entry, Json, vouched
from dpsub._plans import Arrays, Made, Plan, Shard, fingerprint, joined, origin
from dpsub.canaries import RESERVED, CanaryPair

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

SAME = 1e-6  # relative: a noise multiplier that was calibrated again, elsewhere, may differ in its last digits

WHERE_FROM = {
    "dpsub_store", "models_stored", "device", "cpu_capability", "commit", "wall_seconds", "last_written", "files",
    "sha256",
}  # fmt: skip


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
        if self.contents.attributes:
            self.plan = _as_stored(self._asked, self.contents)
        if any(entry.audit != self.plan.fingerprint for entry in self.contents.entries.values()):
            raise ValueError(
                f"store has lost what it says of itself, {self.path}, and its shards come from another audit than the "
                "one asked for: give the parameters that it was made with, or another path"
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
            self._lock = open(self.path / LOCK, "ab")  # noqa: SIM115
        with self._lock:
            _take(self._lock, self.path)
            self._read()
            self._check_room()
            self._begin_or_mend()
            self._chunks = _layout.Chunks(self.plan, self._skeleton)
            self._session, self._began = f"{_now()}, process {os.getpid()}", time.monotonic()
            try:
                yield
            finally:
                with suppress(OSError):  # the shards' documents say the same
                    self._put_root()

    def _begin_or_mend(self) -> None:
        with _naming(self.path):
            for leftover in self.path.rglob("*.partial"):
                if leftover.is_file():
                    leftover.unlink()
            for number in self.contents.damaged_shards:
                (self.path / "shards" / str(number) / DOCUMENT).unlink(missing_ok=True)
        static = {DOCUMENT, *self.contents.attributes.get("files", ())}
        if static <= self.contents.files.keys():
            self._skeleton = {name: self.contents.files[name] for name in static}
            return
        self._skeleton = _layout.skeleton(self.plan)
        for name, content in self._skeleton.items():
            if name != DOCUMENT:
                self._put(name, content)
        self._put_root()

    def mend(self) -> None:
        """Where nothing has to be trained: put right what damage, or the end of a process, left behind."""
        if self.contents.damaged:
            with self.writing():
                pass
        elif self.contents.attributes["models_stored"] != self.contents.models:
            with suppress(OSError), self.writing():
                pass

    def write(self, shard: Shard, arrays: Arrays, made: Made) -> None:
        """Put one shard where it stays; Ctrl-C has to wait for it."""
        chunks = self._chunks(shard, arrays)
        entry = Entry(
            audit=self.plan.fingerprint,
            number=shard.number,
            runs=str(shard),
            models=shard.stop - shard.start,
            device=made.device,
            cpu_capability=made.cpu_capability,
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
        """All of it, from the very bytes that their checksums vouch for."""
        self.contents = Contents(self.path, with_numbers=True)
        if self.contents.damaged:
            raise ValueError(self.contents.damage)
        if self.missing:
            raise ValueError(
                f"store was changed while it was being written, {self.path}: the same call trains what is gone"
            )
        return _decoded(self.contents.files, self._attributes())

    def _attributes(self) -> Json:
        return _told(self.plan.attributes, self.contents)

    def _put_root(self) -> None:
        document = json.loads(self._skeleton[DOCUMENT])
        files = {name: sha256(content).hexdigest() for name, content in self._skeleton.items() if name != DOCUMENT}
        self._put(DOCUMENT, vouched({**document, "attributes": {**self._attributes(), "files": files}}))

    def _put(self, name: str, content: bytes) -> None:
        path = self.path / name
        beside = path.with_name(f"{path.name}.partial")
        with _naming(path):
            self._check_still_there()
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                beside.write_bytes(content)
                beside.replace(path)
            except OSError:
                with suppress(OSError):
                    beside.unlink(missing_ok=True)
                raise

    def _check_still_there(self) -> None:
        """The folder that was locked may have been removed since, and another audit begun in its place."""
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(self._lock.fileno()), os.stat(self.path / LOCK)):
                return
        raise OSError(errno.ESTALE, "the store was removed or replaced while it was being written", str(self.path))

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


def read(path: Path) -> xr.Dataset:
    """A complete audit without what it was made on: the attributes tell of that."""
    contents = Contents(path, with_numbers=True)
    if not contents.begun:
        raise ValueError(f"store must be an audit's folder, got {path}, where there is none")
    if contents.damaged:
        raise ValueError(contents.damage)
    about = {
        name: value
        for name, value in contents.attributes.items()
        if name not in WHERE_FROM and not name.startswith("version_")
    }
    if any(entry.audit != fingerprint(about) for entry in contents.entries.values()):
        raise ValueError(
            f"store must hold one audit, got {path}, whose shards come from another than it says: copy it anew from "
            "where it was whole"
        )
    models = about["runs"] * about["repeats"]
    if contents.models < models:
        raise ValueError(
            f"store must be complete, got {path} with {contents.models:,} of {models:,} models: the audit that began "
            "it goes on from there"
        )
    return _decoded(contents.files, _told(about, contents))


def _told(about: Json, contents: Contents) -> Json:
    """What an audit is and, so far, where it came from."""
    entries = list(contents.entries.values())
    made = [entry.made for entry in entries]
    told = {"dpsub_store": FORMAT, **about, "models_stored": contents.models}
    if made:
        told |= origin(made)
        told |= {
            "commit": joined(each.commit for each in made),
            "wall_seconds": round(contents.wall_seconds, 3),
            "last_written": max(entry.finished for entry in entries),
        }
    return told


def _decoded(files: Mapping[str, bytes], attributes: Json) -> xr.Dataset:
    memory: Any = MemoryStore(_layout.buffers(files), read_only=True)
    with xr.open_dataset(memory, engine="zarr", consolidated=True, chunks=None) as stored:
        found: xr.Dataset = stored.load()
    found.attrs = attributes
    return found


def _as_stored(asked: Plan, contents: Contents) -> Plan:
    """The plan with the stored noise multiplier and canaries, if they are those asked for but for rounding."""
    attributes, others = contents.attributes, []
    for name, value in asked.attributes.items():
        stored = attributes.get(name)
        close = name == "noise_multiplier" and isclose(attributes[name], value, rel_tol=SAME)
        if stored != value and not close and not name.startswith("canary_"):
            others.append(f"{name}: stored {stored!r}, asked for {value!r}")
    canaries: tuple[CanaryPair, ...] | None = asked.canaries
    if not any(name.startswith("canary/") for name in contents.damaged):
        canaries = _layout.stored_canaries(contents.files, asked.canaries)
    if canaries is None:
        stored, value = attributes["canary_fingerprint"], asked.attributes["canary_fingerprint"]
        others.append(f"canary_fingerprint: stored {stored!r}, asked for {value!r}")
    if others or canaries is None:
        told = "".join(f"\n  {other}" for other in others)
        raise ValueError(f"store holds another audit, {contents.path}:{told}\ngive another path, or these parameters")

    def details(i: int) -> dict[str, Any]:
        names = {name.removeprefix("canary_"): name for name in attributes if name.startswith("canary_")}
        several = len(asked.canaries) > 1
        return {
            name: attributes[full][i] if several else attributes[full]
            for name, full in names.items()
            if name not in RESERVED
        }

    return replace(
        asked,
        spec=replace(asked.spec, noise_multiplier=attributes["noise_multiplier"]),
        canaries=tuple(replace(canary, details=details(i)) for i, canary in enumerate(canaries)),
    )


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Errors of the file system say where: a full disk's does not."""
    try:
        yield
    except OSError as error:
        if error.filename is not None and Path(str(error.filename)).suffix != ".partial":
            raise
        advice = f"{error.strerror}; what was stored before stays: put this right, and the same call goes on from there"
        raise OSError(error.errno, advice, str(path)) from error


def _take(lock: BufferedIOBase, path: Path) -> None:
    """`flock`: the system lets go of it when the process ends, however it ends."""
    if fcntl is None:
        return
    for wait in (0.05, 0.1, 0.2, None):  # somebody's `is_taken` holds it for a moment
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError as error:
            if wait is None:
                advice = "somebody else is writing this store: wait for them, or give another path"
                raise BlockingIOError(error.errno, advice, str(path)) from None
            time.sleep(wait)
        except OSError as error:
            warnings.warn(f"{path} cannot be locked ({error.strerror}): let no other process write it", stacklevel=4)
            return


def is_taken(path: Path) -> bool:
    """Whether some process is writing this store."""
    if fcntl is None or not (path / LOCK).exists():
        return False
    try:
        with open(path / LOCK, "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass
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
