"""Stored audits: an SQLite database for each, with a transaction for each shard."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sqlite3
import time
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from dpsub._core import checks
from dpsub.audits.plans import Arrays, Made, OtherAudit, Plan, Results, Shard, joined, warn_of_failures
from dpsub.audits.stored_file import (
    COORDINATE,
    FORMAT,
    SCHEMA,
    Stored,
    connected,
    digest_of,
    identity_of,
    of_disk,
    row_of,
)

PATIENCE = 1.0  # seconds to wait for somebody who looks whether a store is being written


class Status(NamedTuple):
    """How far a stored audit is.

    Attributes:
        store: its file.
        audit: scenario and task, or the name of an audit of a training function.
        models: how many the audit has when complete, over all repeats; 0 if damage leaves that unknown.
        stored: how many are stored and undamaged.
        damaged: what is damaged, and what is wrong with it.
        being_written: whether a process is writing it, as far as the file system can tell.
        device, commit: where the shards come from; several are joined by " + ".
        wall_seconds: the total time of the sessions that wrote them, each up to its last shard.
        failed: how many of the stored runs of a training function failed.
    """

    store: Path
    audit: str
    models: int
    stored: int
    damaged: dict[str, str]
    being_written: bool
    device: str
    commit: str
    wall_seconds: float
    failed: int = 0

    @property
    def complete(self) -> bool:
        """Whether all models are stored and nothing is damaged."""
        return self.stored == self.models and not self.damaged

    def __str__(self) -> str:
        state = "complete" if self.complete else "being written" if self.being_written else "not complete"
        made = f", {self.wall_seconds:,.0f} s on {self.device}, commit {self.commit}" if self.stored else ""
        damaged = "".join(f"\n  damaged: {name} {problem}" for name, problem in self.damaged.items())
        failed = f", {self.failed:,} failed" if self.failed else ""
        return f"{self.store}: {self.audit}, {self.stored:,} of {self.models:,} models{failed}, {state}{made}{damaged}"


@checks.checked(partial=checks.flag)
def load(store: str | os.PathLike[str], *, partial: bool = False) -> xr.Dataset:
    """Read a stored audit. The task, model and canary are not needed; every checksum is computed again.

    Audits of others are safe to read: the file is opened for reading, it must hold the tables that dpsub writes and
    nothing else, no code in it runs, and lengths are checked before memory is taken.

    Args:
        store: its file.
        partial: read an audit that is not complete, too. What is not there yet is NaN, and its bit −1.

    Returns:
        What `audit`, `audit_steps`, `audit_one_run` or `audit_training` returned.

    Raises:
        ValueError: if there is no audit, if it is damaged or, unless `partial`, not complete, or if it is not as dpsub
            writes it.

    Warns:
        UserWarning: if runs of a training function failed, as `audit_training` does.
    """
    found = read(located(store), partial=partial)
    warn_of_failures(found, depth=2)
    return found


def read(path: Path, *, partial: bool = False) -> xr.Dataset:
    """`load`, without its warning."""
    held = _there(path)
    if held.layout is not None and not held.damaged and not partial and len(held.shards) < held.layout.cut.shards:
        total = held.layout.cut.runs * held.layout.cut.repeats
        raise ValueError(
            f"store must be complete, got {path} with {held.runs:,} of {total:,} {held.about['things']}: run the same "
            "audit again to complete it, or give partial=True"
        )
    return held.dataset()


def status(store: str | os.PathLike[str]) -> Status:
    """How far a stored audit is, and whether it is damaged: every checksum is computed again.

    Args:
        store: its file.

    Raises:
        ValueError: if there is no audit, or it is not as dpsub writes it.
    """
    held = _there(path := located(store))
    held.look_for_damage()
    made = [row.made for row in held.shards.values()]
    return Status(
        store=path,
        audit=held.about.get("title", "unknown"),
        models=held.layout.cut.runs * held.layout.cut.repeats if held.layout else 0,
        stored=held.runs,
        damaged=held.damaged,
        being_written=_is_being_written(path),
        device=joined(each.device for each in made),
        commit=joined(each.commit for each in made),
        wall_seconds=held.wall_seconds,
        failed=len(held.failed),
    )


def _there(path: Path) -> Stored:
    held = Stored(path)
    if not held.begun:
        raise ValueError(f"store must be an audit's file, got {path}, where there is none")
    return held


def located(store: str | os.PathLike[str]) -> Path:
    """The absolute path of a store."""
    given = checks.path("store", store)
    if "://" in os.fspath(store):
        raise ValueError(f"store must be a path in the file system, got {store!r}")
    try:
        path = given.resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise ValueError(f"store must be a path in the file system, got {store!r}: {error}") from None
    if not path.name:
        raise ValueError(f"store must be a file of its own, got {path}")
    return path


class Database:
    """The file of a plan. The constructor reads and checks it; only `writing` changes it."""

    def __init__(self, store: str | os.PathLike[str], plan: Plan, *, repair: bool = False) -> None:
        self.path = located(store)
        self.plan, self._repair = plan, repair
        self._held = self._read()

    def _read(self) -> Stored:
        held = Stored(self.path, (identity_of(_about(self.plan)), self.plan.layout) if self._repair else None)
        if not self._repair:
            held.check()
        if held.about:
            if held.about["call"] != self.plan.call:
                raise self._other(f"stored by dpsub.{held.about['call']}, asked for by dpsub.{self.plan.call}")
            try:
                self.plan = self.plan.resumed(held.about["attributes"], held.arrays)
            except OtherAudit as error:
                raise self._other(*error.args) from None
        if held.begun:
            held.look_for_damage()
        if not self._repair:
            held.check()
        return held

    def _other(self, *others: str) -> ValueError:
        differences = "".join(f"\n  {other}" for other in others)
        return ValueError(
            f"store holds another audit, {self.path}:{differences}\ngive another path, or what the stored audit was "
            "made with: its parameters, and its code"
        )

    @property
    def missing(self) -> list[Shard]:
        return [shard for shard in self.plan.layout.shards if shard.number not in self._held.shards]

    @property
    def failed(self) -> list[Shard]:
        return [self.plan.layout.shards[number] for number, row in self._held.shards.items() if row.failed]

    @property
    def made(self) -> list[Made]:
        return [row.made for row in self._held.shards.values()]

    @property
    def is_whole(self) -> bool:
        return not self.missing and not self._held.damaged

    def prepare(self, plan: Plan) -> None:
        self.plan = plan

    @contextmanager
    def writing(self) -> Iterator[Database]:
        """Lock the file and open it for writing. It is begun or repaired if necessary."""
        with self._of_disk():
            self.path.parent.mkdir(parents=True, exist_ok=True)
        with _only_writer(self.path), self._of_disk():
            self._held = self._read()
            self._check_room()
            if self._held.damaged:
                self._rescue()
            with closing(connected(self.path, "rwc")) as self._connection:
                if not self._held.begun:
                    _begin(self._connection, self.plan)
                    self._held = Stored(self.path)
                self._session, self._began = f"{_now()}, process {os.getpid()}", time.monotonic()
                yield self

    def write(self, shard: Shard, results: Results, made: Made) -> None:
        """Write one shard, in one transaction."""
        about = {
            **made._asdict(),
            "seconds": round(made.seconds, 3),
            "session": self._session,
            "elapsed": round(time.monotonic() - self._began, 3),
            "finished": _now(),
        }
        told = json.dumps(about), json.dumps({str(run): message for run, message in results.failed.items()})
        content = b"".join(_bytes(results.arrays[name]) for name in sorted(results.arrays))
        _insert(self._connection, self._held.identity, shard.number, *told, *_zipped(content))
        self._held.shards[shard.number] = row_of(*told, shard)

    def dataset(self) -> xr.Dataset:
        """The whole audit, from the same bytes that were compared with their checksums."""
        held = Stored(self.path)
        held.check()
        if len(held.shards) < self.plan.layout.cut.shards:
            raise ValueError(
                f"store was changed while it was being written, {self.path}: the same call computes what is missing"
            )
        return held.dataset()

    def _check_room(self) -> None:
        layout = self.plan.layout
        whole = sum(prod(one.shape) * np.dtype(one.dtype).itemsize for one in layout.variables.values())
        needed = whole * len(self.missing) // layout.cut.shards
        free = shutil.disk_usage(self.path.parent).free
        if needed > free:
            told = f"the audit takes {needed / 2**20:.1f} MiB more, and {free / 2**20:.1f} MiB are free"
            raise OSError(errno.ENOSPC, f"{told}; what was stored before stays", str(self.path))

    def _rescue(self) -> None:
        """Put what is not damaged into a new file, in the place of the old one."""
        beside = self.path.with_name(f"{self.path.name}-rescued")
        beside.unlink(missing_ok=True)
        with closing(connected(beside, "rwc")) as connection, closing(connected(self.path, "ro")) as old:
            identity = _begin(connection, self.plan)
            for number in self._held.shards:
                [row] = old.execute("SELECT * FROM shards WHERE number = ?", [number])
                _insert(connection, identity, *row[:-1])
        beside.replace(self.path)
        self.path.with_name(f"{self.path.name}-journal").unlink(missing_ok=True)
        self._held = Stored(self.path)

    @contextmanager
    def _of_disk(self) -> Iterator[None]:
        """Name the store in errors of the disk."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            raise of_disk(self.path, error) from None


def _about(plan: Plan) -> dict[str, str]:
    """What a store says of an audit: JSON by name."""
    layout = plan.layout
    about = {
        "call": plan.call,
        "title": plan.title,
        "things": plan.things,
        "attributes": plan.attributes,
        "layout": {
            "cut": list(layout.cut),
            "variables": {name: list(one) for name, one in layout.variables.items()},
            "coordinates": {name: dimension for name, (dimension, _) in layout.coordinates.items()},
            "may_fail": layout.may_fail,
        },
    }
    about["arrays"] = {
        name: digest_of(name, values.dtype.name, json.dumps(values.shape), _bytes(values))
        for name, values in _arrays(plan).items()
    }
    return {name: json.dumps(value) for name, value in about.items()}


def _arrays(plan: Plan) -> Arrays:
    """What all shards share: coordinates, and what the plan keeps."""
    return {COORDINATE + name: values for name, (_, values) in plan.layout.coordinates.items()} | plan.arrays


def _begin(connection: sqlite3.Connection, plan: Plan) -> str:
    """Write what does not change while shards are written, in one transaction. Its checksum is returned."""
    told = _about(plan)
    connection.execute("BEGIN IMMEDIATE")
    for statement in (*SCHEMA, f"PRAGMA user_version = {FORMAT}"):
        connection.execute(statement)
    connection.executemany("INSERT INTO about VALUES (?, ?)", [*told.items(), ("sha256", identity_of(told))])
    for name, values in _arrays(plan).items():
        row = [name, values.dtype.name, json.dumps(values.shape), *_zipped(_bytes(values))]
        connection.execute("INSERT INTO arrays VALUES (?, ?, ?, ?, ?)", row)
    connection.execute("COMMIT")
    return identity_of(told)


def _insert(connection: sqlite3.Connection, identity: str, *row: Any) -> None:
    values = [*row, digest_of(identity, *row)]
    connection.execute("INSERT OR REPLACE INTO shards VALUES (?, ?, ?, ?, ?, ?)", values)


def _bytes(values: np.ndarray[Any, Any]) -> bytes:
    return np.ascontiguousarray(values, values.dtype.newbyteorder("<")).tobytes()


def _zipped(content: bytes) -> tuple[int, bytes]:
    """Whether they are compressed, and the bytes."""
    smaller = zlib.compress(content)
    return (1, smaller) if len(smaller) < len(content) else (0, content)


@contextmanager
def _only_writer(path: Path) -> Iterator[None]:
    """Keep other writers out, by SQLite's lock of an empty database beside the store. It ends with the process."""
    lock = _lock_of(path)
    try:
        with closing(sqlite3.connect(lock, timeout=PATIENCE, isolation_level=None)) as connection:
            connection.execute("BEGIN EXCLUSIVE")
            try:
                yield
            finally:
                with suppress(OSError):
                    lock.unlink()
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_BUSY:
            raise BlockingIOError(errno.EAGAIN, "another process is writing this store", str(path)) from None
        raise of_disk(path, error) from None


def _is_being_written(path: Path) -> bool:
    lock = _lock_of(path)
    if not lock.exists():
        return False
    try:
        with closing(sqlite3.connect(f"{lock.as_uri()}?mode=ro", uri=True, timeout=0)) as connection:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.OperationalError:
        return True
    return False


def _lock_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-writing")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
