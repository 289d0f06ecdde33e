"""Writing a store so that it survives a crash of the writing process at any moment.

Each file is written under a temporary name and then renamed. A shard's numbers are on the disk before the document with
their checksums is written. A process that is killed, even by a power cut, therefore leaves whole shards, and at most
some files that no document lists.
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

from dpsub.audits.plans import Plan, Shard
from dpsub.audits.shard_provenance import Made
from dpsub.audits.shards import Arrays
from dpsub.audits.storage import zarr_layout
from dpsub.audits.storage.attributes import told
from dpsub.audits.storage.contents import Contents, Entry, vouched
from dpsub.audits.storage.files import DOCUMENT, LOCK
from dpsub.audits.storage.locks import ctrl_c_waits, naming


class StoreWriter:
    """A store that this process has locked. `Store.writing` hands it out.

    Args:
        contents: what the store holds.
        plan: the audit.
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
        """Write one shard. Ctrl-C waits until it is written."""
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
                sync_folder(folder)
            self._put(f"shards/{shard.number}/{DOCUMENT}", vouched(document))
            self.contents.entries[shard.number] = entry

    def put_root(self) -> None:
        """Write the root document, which says how much is stored. The shards' documents hold the same information."""
        document = json.loads(self._skeleton[DOCUMENT])
        files = {name: sha256(content).hexdigest() for name, content in self._skeleton.items() if name != DOCUMENT}
        attributes = {**told(self.plan.attributes, self.contents), "files": files}
        self._put(DOCUMENT, vouched({**document, "attributes": attributes}))

    def _begun_or_mended(self) -> dict[str, bytes]:
        """Begin or repair the store. Returns the files that do not change while shards are written."""
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
        """Check that nobody has removed the locked folder since, and begun another audit in its place."""
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


def sync_folder(path: Path) -> None:
    """Sync the names in a folder to the disk. Windows cannot open folders, and syncs them by itself."""
    with suppress(OSError):
        folder = os.open(path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
