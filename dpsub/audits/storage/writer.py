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
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from hashlib import sha256
from io import BufferedIOBase
from math import prod
from pathlib import Path

import numpy as np

from dpsub.audits.any_plans import AnyPlan
from dpsub.audits.destinations import NO_FAILURES
from dpsub.audits.plans import Arrays, Shard
from dpsub.audits.shard_provenance import Made
from dpsub.audits.storage import zarr_layout
from dpsub.audits.storage.attributes import told
from dpsub.audits.storage.contents import Contents, vouched
from dpsub.audits.storage.documents import GROUP, Json
from dpsub.audits.storage.entries import Entry
from dpsub.audits.storage.files import DOCUMENT, LOCK, PARTIAL
from dpsub.audits.storage.foreign import leftovers
from dpsub.audits.storage.layout import Layout, layout_of
from dpsub.audits.storage.locks import ctrl_c_waits, naming


class StoreWriter:
    """A store that this process has locked. `Store.writing` hands it out.

    Args:
        contents: what the store holds.
        plan: the audit.
        lock: the lock file, open and held.
    """

    def __init__(self, contents: Contents, plan: AnyPlan, lock: BufferedIOBase) -> None:
        self.path, self.contents, self.plan = contents.path, contents, plan
        self._lock = lock
        self._check_room()
        static = {DOCUMENT, *contents.attributes.get("files", ())}
        if contents.layout is not None and static <= contents.files.keys():
            self._skeleton, layout, whole = {name: contents.files[name] for name in static}, contents.layout, True
        else:
            (self._skeleton, layout), whole = planned(plan, contents), False
        self._tidy(layout)
        if not whole:
            self._begin()
        self._chunks = zarr_layout.Chunks(plan, self._skeleton)
        self._session, self._began = f"{_now()}, process {os.getpid()}", time.monotonic()

    @property
    def missing(self) -> list[Shard]:
        return [shard for shard in self.plan.shards if shard.number not in self.contents.entries]

    @property
    def made(self) -> list[Made]:
        return [entry.made for entry in self.contents.entries.values()]

    @property
    def failed(self) -> list[Shard]:
        return [self.plan.shards[number] for number, entry in self.contents.entries.items() if entry.failed]

    def write(self, shard: Shard, arrays: Arrays, made: Made, failed: Mapping[int, str] = NO_FAILURES) -> None:
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
            failed={str(run): message for run, message in failed.items()},
        )
        attributes = {name: value for name, value in asdict(entry).items() if name != "failed" or value}
        document, name_of_it = {**GROUP, "attributes": attributes}, f"shards/{shard.number}/{DOCUMENT}"
        with ctrl_c_waits():
            if self.contents.entries.pop(shard.number, None):  # its checksums do not hold from here on
                with naming(self.path):
                    (self.path / name_of_it).unlink()
                    sync_folder((self.path / name_of_it).parent)
            for name, content in chunks.items():
                self._put(name, content)
            for folder in {(self.path / name).parent for name in chunks}:
                sync_folder(folder)
            self._put(name_of_it, vouched(document))
            self.contents.entries[shard.number] = entry
            if self.missing:  # after the last shard, `Store.writing` has the last word
                with suppress(OSError):  # the shard is stored, and its document says so
                    self.put_root()

    def put_root(self) -> None:
        """Write the root document, which says how much is stored. The shards' documents hold the same information."""
        self._put(DOCUMENT, vouched(_root(self.plan, self.contents, self._skeleton)))

    def _tidy(self, layout: Layout) -> None:
        """Remove what a killed writer of this audit left, and the documents of damaged shards."""
        if self.contents.layout is None:
            for number, entry in self.contents.entries.items():
                with self.contents.as_written(f"shards/{number}/{DOCUMENT}"):
                    entry.check_fits(layout)
        damaged = (f"shards/{number}/{DOCUMENT}" for number in self.contents.damaged_shards)
        for name in [*leftovers(self.path, layout), *damaged]:
            with naming(self.path):
                (self.path / name).unlink(missing_ok=True)

    def _begin(self) -> None:
        """Write the files that do not change while shards are written."""
        for name, content in self._skeleton.items():
            if name != DOCUMENT:
                self._put(name, content)
        self.put_root()

    def _put(self, name: str, content: bytes) -> None:
        path = self.path / name
        beside = path.with_name(path.name + PARTIAL)
        with naming(path):
            self._check_still_there()
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                with open(beside, "xb") as file:  # never through a link
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


def planned(plan: AnyPlan, contents: Contents) -> tuple[dict[str, bytes], Layout]:
    """The files of a plan of which no shard is stored yet, and their layout.

    Raises:
        ValueError: if what would be written could not be read back.
    """
    skeleton = zarr_layout.skeleton(plan)
    try:
        return skeleton, layout_of(_root(plan, contents, skeleton))
    except ValueError as error:
        raise ValueError(
            f"store cannot hold this audit, {contents.path}, since {DOCUMENT} could not be read back: {error}"
        ) from None


def _root(plan: AnyPlan, contents: Contents, skeleton: dict[str, bytes]) -> Json:
    """The root document without its checksum."""
    files = {name: sha256(content).hexdigest() for name, content in skeleton.items() if name != DOCUMENT}
    return {**json.loads(skeleton[DOCUMENT]), "attributes": {**told(plan.attributes, contents), "files": files}}


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
