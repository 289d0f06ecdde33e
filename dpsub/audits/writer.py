"""Writing a store, so that it survives whatever happens to the process that writes it.

Each file is written beside its place and then moved there. A shard's numbers are on the disk before the document that
vouches for them is written: what is killed at any moment, by a power cut too, leaves whole shards, and at most some
files that no document vouches for.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from hashlib import sha256
from io import BufferedIOBase
from math import prod
from pathlib import Path

import numpy as np

from dpsub.audits import zarr_layout
from dpsub.audits.contents import Contents, Entry, vouched
from dpsub.audits.locks import ctrl_c_waits, naming
from dpsub.audits.origins import Made
from dpsub.audits.plans import Plan, Shard
from dpsub.audits.shards import Arrays
from dpsub.audits.sources import DOCUMENT, LOCK
from dpsub.audits.told import told


class StoreWriter:
    """A store to oneself: what `Store.writing` hands out, and nobody else has.

    Args:
        contents: what is there.
        plan: what the store is of.
        lock: the lock file, open and held.
    """

    def __init__(self, contents: Contents, plan: Plan, lock: BufferedIOBase) -> None:
        self.path, self.contents, self.plan = contents.path, contents, plan
        self._lock = lock
        self._check_room()
        self._skeleton = self._begun_or_mended()
        self._chunks = zarr_layout.Chunks(plan, self._skeleton)
        self._session, self._began = f"{_now()}, process {os.getpid()}", time.monotonic()

    @property
    def missing(self) -> list[Shard]:
        return [shard for shard in self.plan.shards if shard.number not in self.contents.entries]

    @property
    def made(self) -> list[Made]:
        return [entry.made for entry in self.contents.entries.values()]

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
        with ctrl_c_waits():
            for name, content in chunks.items():
                self._put(name, content)
            for folder in {(self.path / name).parent for name in chunks}:
                _sync_folder(folder)
            self._put(f"shards/{shard.number}/{DOCUMENT}", vouched(document))
            self.contents.entries[shard.number] = entry

    def put_root(self) -> None:
        """Write down how much is there; the shards' documents say the same."""
        document = json.loads(self._skeleton[DOCUMENT])
        files = {name: sha256(content).hexdigest() for name, content in self._skeleton.items() if name != DOCUMENT}
        attributes = {**told(self.plan.attributes, self.contents), "files": files}
        self._put(DOCUMENT, vouched({**document, "attributes": attributes}))

    def _begun_or_mended(self) -> dict[str, bytes]:
        """The files that do not change while shards are written."""
        with naming(self.path):
            for leftover in self.path.rglob("*.partial"):
                if leftover.is_file():
                    leftover.unlink()
            for number in self.contents.damaged_shards:
                (self.path / "shards" / str(number) / DOCUMENT).unlink(missing_ok=True)
        static = {DOCUMENT, *self.contents.attributes.get("files", ())}
        if static <= self.contents.files.keys():
            return {name: self.contents.files[name] for name in static}
        self._skeleton = zarr_layout.skeleton(self.plan)
        for name, content in self._skeleton.items():
            if name != DOCUMENT:
                self._put(name, content)
        self.put_root()
        return self._skeleton

    def _put(self, name: str, content: bytes) -> None:
        path = self.path / name
        beside = path.with_name(f"{path.name}.partial")
        with naming(path):
            self._check_still_there()
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                with open(beside, "wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
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


def _sync_folder(path: Path) -> None:
    """The names in a folder, too, to the disk; where folders cannot be opened, as on Windows, the system does it."""
    with suppress(OSError):
        folder = os.open(path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
