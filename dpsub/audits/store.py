"""Stored audits: an SQLite database for each, with a transaction for each shard.

Three tables: `about` holds JSON by name, among it the attributes and the layout; `arrays` what all shards share, such
as coordinates and canaries; `shards` a row for each shard. Numbers are the little-endian bytes of the variables, one
after the other in the order of their names, compressed by zlib if that makes them smaller. `about` has a SHA-256 of all
that it holds, with those of the arrays. A shard's also covers that one, so that no shard passes for one of another
audit.
"""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from dpsub._core import checks
from dpsub.audits.plans import (
    Arrays,
    Cut,
    Layout,
    Made,
    OtherAudit,
    Plan,
    Results,
    Shard,
    Variable,
    joined,
    origin,
    warn_of_failures,
)

FORMAT = 2  # 1 were folders of zarr, by dpsub 0.1
SCHEMA = (
    "CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "CREATE TABLE arrays (name TEXT PRIMARY KEY, dtype TEXT NOT NULL, shape TEXT NOT NULL, zipped INTEGER NOT NULL, "
    "data BLOB NOT NULL)",
    "CREATE TABLE shards (number INTEGER PRIMARY KEY, made TEXT NOT NULL, failed TEXT NOT NULL, "
    "zipped INTEGER NOT NULL, data BLOB NOT NULL, sha256 TEXT NOT NULL)",
)
COORDINATE = "coordinate/"  # begins the names of arrays that are coordinates
PATIENCE = 1.0  # seconds to wait for somebody who looks whether a store is being written
OF_DISK = {
    sqlite3.SQLITE_FULL: errno.ENOSPC,
    sqlite3.SQLITE_READONLY: errno.EROFS,
    sqlite3.SQLITE_BUSY: errno.EAGAIN,
    sqlite3.SQLITE_IOERR: errno.EIO,
    sqlite3.SQLITE_CANTOPEN: errno.EACCES,
    sqlite3.SQLITE_PERM: errno.EACCES,
}


class Status(NamedTuple):
    """How far a stored audit is.

    Attributes:
        store: its file.
        audit: scenario and task, or the name of an audit of a training function.
        models: how many the audit has when complete, over all repeats.
        stored: how many are stored and undamaged.
        damaged: the numbers of damaged shards.
        being_written: whether a process is writing it, as far as the file system can tell.
        device, commit: where the shards come from; several are joined by " + ".
        wall_seconds: the total time of the sessions that wrote them, each up to its last shard.
        failed: how many of the stored runs of a training function failed.
    """

    store: Path
    audit: str
    models: int
    stored: int
    damaged: tuple[int, ...]
    being_written: bool
    device: str
    commit: str
    wall_seconds: float
    failed: int = 0

    @property
    def complete(self) -> bool:
        """Whether all models are stored and nothing is damaged."""
        return self.stored == self.models

    def __str__(self) -> str:
        state = "complete" if self.complete else "being written" if self.being_written else "not complete"
        made = f", {self.wall_seconds:,.0f} s on {self.device}, commit {self.commit}" if self.stored else ""
        damaged = f", damaged shards: {', '.join(map(str, self.damaged))}" if self.damaged else ""
        failed = f", {self.failed:,} failed" if self.failed else ""
        return f"{self.store}: {self.audit}, {self.stored:,} of {self.models:,} models{failed}, {state}{made}{damaged}"


@checks.checked(partial=checks.flag)
def load(store: str | os.PathLike[str], *, partial: bool = False) -> xr.Dataset:
    """Read a stored audit. The task, model and canary are not needed; every checksum is computed again.

    The file holds numbers and texts alone, no code.

    Args:
        store: its file.
        partial: read an audit that is not complete, too. What is not there yet is NaN, and its bit −1.

    Returns:
        What `audit`, `audit_steps`, `audit_one_run` or `audit_training` returned.

    Raises:
        ValueError: if there is no audit, or if it is damaged or, unless `partial`, not complete.

    Warns:
        UserWarning: if runs of a training function failed, as `audit_training` does.
    """
    found = read(located(store), partial=partial)
    warn_of_failures(found, depth=2)
    return found


def read(path: Path, *, partial: bool = False) -> xr.Dataset:
    """`load`, without its warning."""
    held = _there(path)
    found = held.dataset()
    if not partial and len(held.rows) < held.layout.cut.shards:
        total = held.layout.cut.runs * held.layout.cut.repeats
        raise ValueError(
            f"store must be complete, got {path} with {held.runs:,} of {total:,} {held.about['things']}: run the same "
            "audit again to complete it, or give partial=True"
        )
    return found


def status(store: str | os.PathLike[str]) -> Status:
    """How far a stored audit is, and whether it is damaged: every checksum is computed again.

    Args:
        store: its file.

    Raises:
        ValueError: if there is no audit.
    """
    held = _there(path := located(store))
    held.look_for_damage()
    made = [row.made for row in held.rows.values()]
    return Status(
        store=path,
        audit=held.about["title"],
        models=held.layout.cut.runs * held.layout.cut.repeats,
        stored=held.runs,
        damaged=tuple(sorted(held.damaged)),
        being_written=_is_being_written(path),
        device=joined(each.device for each in made),
        commit=joined(each.commit for each in made),
        wall_seconds=held.wall_seconds,
        failed=len(held.failed),
    )


def _there(path: Path) -> Stored:
    held = Stored(path)
    if not held.about:
        raise ValueError(f"store must be an audit's file, got {path}, where there is none")
    return held


def located(store: str | os.PathLike[str]) -> Path:
    """The absolute path of a store."""
    path = checks.path("store", store).resolve()
    if "://" in os.fspath(store) or not path.name:
        raise ValueError(f"store must be a file of the file system, got {store!r}")
    if path.is_dir():
        raise ValueError(f"store must be a file, got the folder {path}: give {path / 'audit.db'}")
    return path


class Row(NamedTuple):
    """What a store says of a shard, beside its numbers."""

    made: Made
    session: str
    elapsed: float
    finished: str
    failed: Mapping[int, str]


class Stored:
    """What a file holds.

    Attributes:
        about: what is said of the audit, by name; empty if there is none.
        identity: the checksum of that.
        layout: of the dataset, if there is an audit.
        arrays: what all shards share, coordinates aside.
        rows: what is said of the shards, by number, once they were read and are not damaged.
        damaged: the numbers of damaged shards, once they were read.

    Raises:
        ValueError: if the file is no audit's, or what it says of the audit is damaged.
        OSError: if the file cannot be read.
    """

    layout: Layout

    def __init__(self, path: Path) -> None:
        self.path = path
        self.about: dict[str, Any] = {}
        self.identity = ""
        self.rows: dict[int, Row] = {}
        self.arrays: Arrays = {}
        self.damaged: set[int] = set()
        if path.exists() and path.stat().st_size:  # an empty file is of a process that was killed at its beginning
            with reading(path) as database:
                if _has_tables(database, path):
                    self._read(database)

    def _read(self, database: sqlite3.Connection) -> None:
        told = dict(database.execute("SELECT name, value FROM about"))
        if told.pop("sha256", None) != identity_of(told):
            raise _damaged(self.path, "what it says of the audit is not what was written")
        self.identity = identity_of(told)
        self.about = {name: json.loads(value) for name, value in told.items()}
        for name, dtype, shape, zipped, data in database.execute("SELECT * FROM arrays"):
            try:
                content = zlib.decompress(data) if zipped else data
            except zlib.error:
                content = b""
            if self.about["arrays"].get(name) != digest_of(name, dtype, shape, content):
                raise _damaged(self.path, f"its array {name!r} is not what was written")
            self.arrays[name] = _numbers(content, dtype).reshape(json.loads(shape))
        if missing := self.about["arrays"].keys() - self.arrays.keys():
            raise _damaged(self.path, f"its array {missing.pop()!r} is missing")
        layout = self.about["layout"]
        self.layout = Layout(
            Cut(*layout["cut"]),
            {name: Variable(*variable) for name, variable in layout["variables"].items()},
            {name: (dim, self.arrays.pop(COORDINATE + name)) for name, dim in layout["coordinates"].items()},
            layout["may_fail"],
        )

    @property
    def runs(self) -> int:
        return sum(self.layout.cut.shard(number).runs for number in self.rows)

    @property
    def failed(self) -> dict[int, str]:
        """The messages of failed runs, by number."""
        return {run: message for row in self.rows.values() for run, message in row.failed.items()}

    @property
    def wall_seconds(self) -> float:
        """The total time of the sessions that wrote the shards, each up to its last shard."""
        sessions: dict[str, float] = {}
        for row in self.rows.values():
            sessions[row.session] = max(row.elapsed, sessions.get(row.session, 0.0))
        return sum(sessions.values())

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes of the dataset: those of the plan, and where the shards come from."""
        made = [row.made for row in self.rows.values()]
        if not made:
            return dict(self.about["attributes"])
        return {
            **self.about["attributes"],
            **origin(made),
            "commit": joined(each.commit for each in made),
            "wall_seconds": round(self.wall_seconds, 3),
            "last_written": max(row.finished for row in self.rows.values()),
        }

    def dataset(self) -> xr.Dataset:
        """The dataset of the shards that are there.

        Raises:
            ValueError: if a shard is damaged.
        """
        flat = self.layout.empty()
        for shard, arrays in self.shards():
            for name, values in arrays.items():
                flat[name][self.layout.part(name, shard)] = values
        self.refuse_damage()
        return self.layout.dataset(flat, self.attributes, self.failed)

    def look_for_damage(self) -> None:
        """Read all numbers once, to find the damaged shards."""
        for _ in self.shards():
            pass

    def refuse_damage(self) -> None:
        if self.damaged:
            raise ValueError(
                f"store is damaged, {self.path}: shards {', '.join(map(str, sorted(self.damaged)))} are not what was "
                f"written. {self.about['call']}(..., repair=True) computes them again, and keeps the rest"
            )

    def shards(self) -> Iterator[tuple[Shard, Arrays]]:
        """Read the shards, and yield their numbers, flat. Damaged ones are noted and left out."""
        with reading(self.path) as database:
            for number, made, failed, zipped, data, digest in database.execute("SELECT * FROM shards ORDER BY number"):
                if digest != digest_of(self.identity, number, made, failed, zipped, data):
                    self.damaged.add(number)
                    continue
                self.rows[number] = _row(made, failed)
                shard = self.layout.cut.shard(number)
                yield shard, self._arrays(shard, zlib.decompress(data) if zipped else data)

    def _arrays(self, shard: Shard, content: bytes) -> Arrays:
        found, start = {}, 0
        for name, variable in sorted(self.layout.variables.items()):
            part = self.layout.part(name, shard)
            stop = start + (part.stop - part.start) * np.dtype(variable.dtype).itemsize
            found[name], start = _numbers(content[start:stop], variable.dtype), stop
        return found


class Database:
    """The file of a plan. The constructor reads and checks it; only `writing` changes it."""

    def __init__(self, store: str | os.PathLike[str], plan: Plan, *, repair: bool = False) -> None:
        self.path = located(store)
        self.plan, self._repair = plan, repair
        self._held = self._read()

    def _read(self) -> Stored:
        held = Stored(self.path)
        if held.about:
            if held.about["call"] != self.plan.call:
                raise self._other(f"stored by dpsub.{held.about['call']}, asked for by dpsub.{self.plan.call}")
            try:
                self.plan = self.plan.resumed(held.about["attributes"], held.arrays)
            except OtherAudit as error:
                raise self._other(*error.args) from None
            held.look_for_damage()
            if not self._repair:
                held.refuse_damage()
        return held

    def _other(self, *others: str) -> ValueError:
        differences = "".join(f"\n  {other}" for other in others)
        return ValueError(
            f"store holds another audit, {self.path}:{differences}\ngive another path, or what the stored audit was "
            "made with: its parameters, and its code"
        )

    @property
    def missing(self) -> list[Shard]:
        return [shard for shard in self.plan.layout.shards if shard.number not in self._held.rows]

    @property
    def failed(self) -> list[Shard]:
        return [self.plan.layout.shards[number] for number, row in self._held.rows.items() if row.failed]

    @property
    def made(self) -> list[Made]:
        return [row.made for row in self._held.rows.values()]

    @contextmanager
    def writing(self) -> Iterator[Database]:
        """Lock the file and open it for writing. It is begun if necessary."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with _only_writer(self.path), _told_of(self.path):
            self._held = self._read()
            with closing(connected(self.path, "rwc")) as self._connection:
                if not self._held.about:
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
        row = [shard.number, *told, *_zipped(content)]
        row.append(digest_of(self._held.identity, *row))
        self._connection.execute("INSERT OR REPLACE INTO shards VALUES (?, ?, ?, ?, ?, ?)", row)
        self._held.rows[shard.number] = _row(*told)

    def dataset(self) -> xr.Dataset:
        """The whole audit, from the same bytes that were compared with their checksums."""
        held = Stored(self.path)
        found = held.dataset() if held.about else None
        if found is None or len(held.rows) < self.plan.layout.cut.shards:
            raise ValueError(
                f"store was changed while it was being written, {self.path}: the same call computes what is missing"
            )
        return found


def _has_tables(database: sqlite3.Connection, path: Path) -> bool:
    """Whether an audit was begun."""
    [[version]] = database.execute("PRAGMA user_version")
    tables = [name for [name] in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    if version == FORMAT and {"about", "arrays", "shards"} <= {*tables}:
        return True
    if tables or version:
        raise ValueError(
            f"store must be an audit of format {FORMAT}, got {path}, a database of format {version}: give another path"
        )
    return False


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that changes nothing, but that it undoes the transaction of a writer that was killed in it."""
    killed = path.with_name(f"{path.name}-journal").exists() and os.access(path, os.W_OK)
    with _told_of(path), closing(connected(path, "rw" if killed else "ro")) as database:
        yield database


def connected(path: Path, mode: str) -> sqlite3.Connection:
    connection = sqlite3.connect(f"{path.as_uri()}?mode={mode}", uri=True, timeout=30, isolation_level=None)
    if mode == "rwc":
        connection.execute("PRAGMA page_size = 1024")  # most shards are of some kilobytes, and each begins a page
    return connection


@contextmanager
def _told_of(path: Path) -> Iterator[None]:
    """SQLite's errors, told of the store."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_NOTADB:
            raise ValueError(
                f"store must be an audit's file, got {path}, another file, or a damaged one: give another path"
            ) from None
        if code not in OF_DISK:
            raise _damaged(path, str(error)) from None
        number = OF_DISK[code]
        raise OSError(number, f"{os.strerror(number)} ({error}); what was stored before stays", str(path)) from None


def _damaged(path: Path, how: str) -> ValueError:
    return ValueError(
        f"store is damaged, {path}: {how}: copy it again from an undamaged original, or give another path"
    )


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
            "variables": {name: list(variable) for name, variable in layout.variables.items()},
            "coordinates": {name: dimension for name, (dimension, _) in layout.coordinates.items()},
            "may_fail": layout.may_fail,
        },
    }
    about["arrays"] = {
        name: digest_of(name, values.dtype.name, json.dumps(values.shape), _bytes(values))
        for name, values in _shared(plan).items()
    }
    return {name: json.dumps(value) for name, value in about.items()}


def _shared(plan: Plan) -> Arrays:
    """What all shards share: coordinates, and what the plan keeps."""
    return {COORDINATE + name: values for name, (_, values) in plan.layout.coordinates.items()} | plan.arrays


def _begin(connection: sqlite3.Connection, plan: Plan) -> None:
    """Write what does not change while shards are written, in one transaction."""
    told = _about(plan)
    connection.execute("BEGIN IMMEDIATE")
    for statement in (*SCHEMA, f"PRAGMA user_version = {FORMAT}"):
        connection.execute(statement)
    connection.executemany("INSERT INTO about VALUES (?, ?)", [*told.items(), ("sha256", identity_of(told))])
    for name, values in _shared(plan).items():
        row = [name, values.dtype.name, json.dumps(values.shape), *_zipped(_bytes(values))]
        connection.execute("INSERT INTO arrays VALUES (?, ?, ?, ?, ?)", row)
    connection.execute("COMMIT")


def _row(made: str, failed: str) -> Row:
    told = json.loads(made)
    session, elapsed, finished = (told.pop(name) for name in ("session", "elapsed", "finished"))
    return Row(
        Made(**told), session, elapsed, finished, {int(run): message for run, message in json.loads(failed).items()}
    )


def identity_of(told: Mapping[str, str]) -> str:
    """The checksum of what is said of an audit, by name."""
    return digest_of(*(part for name in sorted(told) for part in (name, told[name])))


def digest_of(*parts: object) -> str:
    digest = sha256()
    for part in parts:
        content = part if isinstance(part, bytes) else str(part).encode()
        digest.update(len(content).to_bytes(8, "little"))
        digest.update(content)
    return digest.hexdigest()


def _bytes(values: NDArray[Any]) -> bytes:
    return np.ascontiguousarray(values, values.dtype.newbyteorder("<")).tobytes()


def _numbers(content: bytes, dtype: str) -> NDArray[Any]:
    return np.frombuffer(content, np.dtype(dtype).newbyteorder("<")).astype(dtype)


def _zipped(content: bytes) -> tuple[int, bytes]:
    """Whether they are compressed, and the bytes."""
    smaller = zlib.compress(content)
    return (1, smaller) if len(smaller) < len(content) else (0, content)


@contextmanager
def _only_writer(path: Path) -> Iterator[None]:
    """Keep other writers out, by SQLite's lock of an empty database beside the store. It ends with the process."""
    lock = path.with_name(f"{path.name}-writing")
    lock.touch()
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
        raise


def _is_being_written(path: Path) -> bool:
    lock = path.with_name(f"{path.name}-writing")
    if not lock.exists():
        return False
    try:
        with closing(sqlite3.connect(f"{lock.as_uri()}?mode=ro", uri=True, timeout=0)) as connection:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.OperationalError:
        return True
    return False


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
