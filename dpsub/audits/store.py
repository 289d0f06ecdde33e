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
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from dpsub._core import checks
from dpsub.audits.collected import Collected, Place, row_dimension, warn_of_failures
from dpsub.audits.plans import Arrays, Cut, Made, OtherAudit, Plan, Results, Shard, joined, unfilled

FORMAT = 2  # 1 were folders of zarr, by dpsub 0.1
HISTORY = ("grown_from", "refute", "refute_delta", "refuted_after")  # attributes that no plan has
SCHEMA = (
    *(f"DROP TABLE IF EXISTS {table}" for table in ("about", "arrays", "shards")),
    "CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "CREATE TABLE arrays (name TEXT PRIMARY KEY, dtype TEXT NOT NULL, shape TEXT NOT NULL, zipped INTEGER NOT NULL, "
    "data BLOB NOT NULL)",
    "CREATE TABLE shards (number INTEGER PRIMARY KEY, made TEXT NOT NULL, failed TEXT NOT NULL, "
    "zipped INTEGER NOT NULL, data BLOB NOT NULL, sha256 TEXT NOT NULL)",
)
COORDINATE = "coordinate/"  # begins the names of arrays that are coordinates
PATIENCE = 1.0  # seconds to wait for somebody who looks whether a store is being written


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
        sqlite3.Error: if the file is so damaged that it cannot be read as a database.

    Warns:
        UserWarning: if runs of a training function failed, as `audit_training` does.
    """
    audit = read(store, partial=partial)
    warn_of_failures(audit, depth=2)
    return audit


def read(store: str | os.PathLike[str], *, partial: bool = False) -> xr.Dataset:
    """`load`, without its warning."""
    audit = _existing(store)
    audit.refuse_damage()
    if audit.missing and not partial:
        raise ValueError(
            f"store must be complete, got {audit.path} with {audit.runs:,} of {audit.cut.total:,} models: "
            "run the same audit again to complete it, or give partial=True"
        )
    return audit.dataset()


def load_all(
    folder: str | os.PathLike[str], *, label: str = "q = {sample_rate:g}"
) -> dict[tuple[str, str], xr.Dataset]:
    """Read all audits of a folder, by label and scenario, as figures with several panels take them.

    An audit by `audit_training` goes by its parameter `scenario`, or else by its name.

    Args:
        folder: where the stores are: `*.db`.
        label: a format string over an audit's attributes. It has to give each audit of a scenario another label.

    Raises:
        FileNotFoundError: if the folder holds no audits.
        KeyError: if the label names an attribute that an audit does not have.
        ValueError: if one is damaged or not complete, or if two have the same label and scenario.

    Warns:
        UserWarning: with the store's name, for each audit of a training function in which runs failed.
    """
    audits: dict[tuple[str, str], xr.Dataset] = {}
    for path in sorted(Path(folder).expanduser().glob("*.db")):
        dataset = read(path)
        warn_of_failures(dataset, of=f"{path.name}: ", depth=1)
        key = label.format(**dataset.attrs), str(dataset.attrs.get("scenario", dataset.attrs.get("name")))
        if key in audits:
            raise ValueError(f"label must tell the audits in {folder} apart, got {key} for two of them: {label!r}")
        audits[key] = dataset
    if not audits:
        raise FileNotFoundError(
            f"folder must hold audits, *.db, got {Path(folder).absolute()} without any: the book's audits are in "
            "results/ of dpsub's repository, and its notebooks run in notebooks/"
        )
    return audits


def status(store: str | os.PathLike[str]) -> Status:
    """How far a stored audit is, and whether it is damaged: every checksum is computed again.

    Args:
        store: its file.

    Raises:
        ValueError: if there is no audit.
    """
    audit = _existing(store)
    return Status(
        store=audit.path,
        audit=audit.about["title"],
        models=audit.cut.total,
        stored=audit.runs,
        damaged=tuple(sorted(audit.damaged)),
        being_written=_is_being_written(audit.path),
        device=joined(made.device for made in audit.shards.values()),
        commit=joined(made.commit for made in audit.shards.values()),
        wall_seconds=audit.wall_seconds,
        failed=len(audit.messages),
    )


def _existing(store: str | os.PathLike[str]) -> Stored:
    path = located(store)
    audit = stored(path)
    if audit is None:
        raise ValueError(f"store must be an audit's file, got {path}, where there is none")
    return audit


def located(store: str | os.PathLike[str]) -> Path:
    """The absolute path of a store."""
    path = Path(store).expanduser().resolve()
    if "://" in os.fspath(store):
        raise ValueError(f"store must be a file of the file system, got {store!r}")
    if path.is_dir():
        raise ValueError(f"store must be a file, got the folder {path}: give {path / 'audit.db'}")
    return path


class Stored(Collected):
    """What a file holds. Damaged shards are noted and left out.

    Attributes:
        about: what is said of the audit, by name: the call, the title and so on.
        identity: the checksum of that.
        arrays: what all shards share, coordinates aside.
        damaged: the numbers of damaged shards.

    Raises:
        ValueError: if what the file says of the audit is damaged.
    """

    def __init__(self, path: Path, database: sqlite3.Connection) -> None:
        self.path = path
        texts = dict(database.execute("SELECT name, value FROM about"))
        if texts.pop("sha256", None) != identity_of(texts):
            raise _damaged(path, "what it says of the audit is not what was written")
        self.identity = identity_of(texts)
        self.about: dict[str, Any] = {name: json.loads(value) for name, value in texts.items()}
        self.arrays = self._arrays(database)
        layout = self.about["layout"]
        variables = {
            name: unfilled(long_name, sizes, dtype)
            for name, (sizes, dtype, _, long_name, _) in layout["variables"].items()
        }
        coordinates = {name: (dim, self.arrays.pop(COORDINATE + name)) for name, dim in layout["coordinates"].items()}
        numbers = xr.Dataset(variables, coordinates, self.about["attributes"])
        super().__init__(Cut(*layout["cut"]), numbers, may_fail=layout["may_fail"])
        self.damaged: set[int] = set()
        by_number = {shard.number: shard for shard in self.cut.shards}
        for number, made, failed, zipped, data, digest in database.execute("SELECT * FROM shards ORDER BY number"):
            if digest != digest_of(self.identity, number, made, failed, zipped, data):
                self.damaged.add(number)
                continue
            content = zlib.decompress(data) if zipped else data
            start = 0
            for values in self.part(by_number[number]).values():
                stop = start + values.nbytes
                values[...] = _numbers(content[start:stop], values.dtype.name).reshape(values.shape)
                start = stop
            self.shards[number] = Made(**json.loads(made))
            self.failed[number] = {int(run): message for run, message in json.loads(failed).items()}

    def _arrays(self, database: sqlite3.Connection) -> Arrays:
        arrays = {}
        for name, dtype, shape, zipped, data in database.execute("SELECT * FROM arrays"):
            content = b""
            with suppress(zlib.error):
                content = zlib.decompress(data) if zipped else data
            if self.about["arrays"].get(name) != digest_of(name, dtype, shape, content):
                raise _damaged(self.path, f"its array {name!r} is not what was written")
            arrays[name] = _numbers(content, dtype).reshape(json.loads(shape))
        if missing := self.about["arrays"].keys() - arrays.keys():
            raise _damaged(self.path, f"its array {missing.pop()!r} is missing")
        return arrays

    def refuse_damage(self) -> None:
        if self.damaged:
            raise ValueError(
                f"store is damaged, {self.path}: shards {', '.join(map(str, sorted(self.damaged)))} are not what was "
                f"written. {self.about['call']}(..., repair=True) computes them again, and keeps the rest"
            )


def stored(path: Path) -> Stored | None:
    """What a file holds; None if no audit was begun there.

    Raises:
        ValueError: if the file is no audit's, or what it says of the audit is damaged.
        sqlite3.Error: if the file cannot be read.
    """
    if not path.exists() or not path.stat().st_size:  # an empty file is of a process that was killed at its beginning
        return None
    # A reader changes nothing, but that it undoes the transaction of a writer that was killed in it.
    killed = path.with_name(f"{path.name}-journal").exists() and os.access(path, os.W_OK)
    with _errors_of(path), closing(connected(path, "rw" if killed else "ro")) as database:
        [[version]] = database.execute("PRAGMA user_version")
        [[tables]] = database.execute("SELECT count(*) FROM sqlite_master")
        if version == FORMAT:
            return Stored(path, database)
        if version or tables:
            raise ValueError(
                f"store must be an audit of format {FORMAT}, got {path}, a database of format {version}: give another "
                "path"
            )
    return None


class Database(Place):
    """The file of a plan. The constructor reads and checks it; only `writing` changes it.

    Its plan has the noise multiplier and the canaries of the machine that began it.
    """

    def __init__(self, path: Path, plan: Plan, *, repair: bool = False) -> None:
        super().__init__(plan)
        self.path, self._repair = path, repair
        self._read()

    def _read(self) -> Stored | None:
        there = stored(self.path)
        if there is None:
            return None
        if there.about["call"] != self.plan.call:
            raise self._other(f"stored by dpsub.{there.about['call']}, asked for by dpsub.{self.plan.call}")
        about = dict(there.about["attributes"])
        self.history = {name: about.pop(name) for name in HISTORY if name in about}
        runs = there.cut.runs
        try:
            self.plan = (self.plan.with_runs(runs) if self.plan.grows else self.plan).resumed(about, there.arrays)
        except OtherAudit as error:
            raise self._other(*error.args) from None
        if not self._repair:
            there.refuse_damage()
        self.collected = there
        if self.asked > runs:
            self.resize(self.asked)
        return there

    def _other(self, *differences: str) -> ValueError:
        listed = "".join(f"\n  {difference}" for difference in differences)
        return ValueError(
            f"store holds another audit, {self.path}:{listed}\ngive another path, or what the stored audit was "
            "made with: its parameters, and its code"
        )

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Lock the file and open it for writing. It is begun if necessary, and read again: others may have written."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with _only_writer(self.path), _errors_of(self.path):
            there = self._read()
            self._written: Collected | None = there
            self._identity = there.identity if there else ""
            with closing(connected(self.path, "rwc")) as self._connection:
                self._begin()
                self._session, self._began = f"{_now()}, process {os.getpid()}", time.monotonic()
                yield
                self._begin()

    def _begin(self) -> None:
        """Write what is said of the audit, and all that is there of it, in one transaction, unless the file says it."""
        if self._written is self.collected:
            return
        if self._written and self._written.cut.runs < self.plan.cut.runs:
            self.history["grown_from"] = [*self.history.get("grown_from", []), self._written.cut.runs]
            self.collected.numbers.attrs |= self.history
        self._written, (about, shared) = self.collected, _about(self.plan, self.history)
        texts = {name: json.dumps(value) for name, value in about.items()}
        self._identity = identity_of(texts)
        self._connection.execute("BEGIN IMMEDIATE")
        for statement in (*SCHEMA, f"PRAGMA user_version = {FORMAT}"):
            self._connection.execute(statement)
        said = [*texts.items(), ("sha256", self._identity)]
        self._connection.executemany("INSERT INTO about VALUES (?, ?)", said)
        arrays = [(*row, *_zipped(content)) for *row, content in shared]
        self._connection.executemany("INSERT INTO arrays VALUES (?, ?, ?, ?, ?)", arrays)
        for shard in self.plan.cut.shards:
            if (made := self.collected.shards.get(shard.number)) is not None:
                self._insert(shard, made)
        self._connection.execute("COMMIT")

    def write(self, shard: Shard, results: Results, made: Made) -> None:
        """Write one shard, in one transaction."""
        elapsed = round(time.monotonic() - self._began, 3)
        super().write(shard, results, made._replace(session=self._session, elapsed=elapsed, finished=_now()))
        self._insert(shard, self.collected.shards[shard.number])

    def _insert(self, shard: Shard, made: Made) -> None:
        content = b"".join(map(_bytes, self.collected.part(shard).values()))
        failed = json.dumps(self.collected.failed[shard.number])
        row = [shard.number, json.dumps(made._asdict()), failed, *_zipped(content)]
        row.append(digest_of(self._identity, *row))
        self._connection.execute("INSERT OR REPLACE INTO shards VALUES (?, ?, ?, ?, ?, ?)", row)


def connected(path: Path, mode: str) -> sqlite3.Connection:
    connection = sqlite3.connect(f"{path.as_uri()}?mode={mode}", uri=True, timeout=30, isolation_level=None)
    if mode == "rwc":
        connection.execute("PRAGMA page_size = 1024")  # most shards are of some kilobytes, and each begins a page
    return connection


@contextmanager
def _errors_of(path: Path) -> Iterator[None]:
    """Let SQLite's errors name the store."""
    try:
        yield
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_NOTADB:
            raise ValueError(f"store must be an audit's file, got {path}, {error}: give another path") from None
        error.add_note(f"store: {path}")
        raise


def _damaged(path: Path, how: str) -> ValueError:
    return ValueError(
        f"store is damaged, {path}: {how}: copy it again from an undamaged original, or give another path"
    )


def _about(plan: Plan, history: dict[str, Any]) -> tuple[dict[str, Any], list[tuple[Any, ...]]]:
    """What does not change while shards are written: texts by name, and the rows of arrays."""
    empty = plan.empty()
    shared = {f"{COORDINATE}{name}": values.values for name, values in empty.coords.items()} | plan.arrays
    rows = [(name, values.dtype.name, json.dumps(values.shape), _bytes(values)) for name, values in shared.items()]
    about = {
        "call": plan.call,
        "title": plan.title,
        "attributes": plan.attributes | history,
        "layout": {
            "cut": list(plan.cut),
            "variables": {
                # The fill value, and whether the first shard fills it: both follow from the rest, which `Stored` reads.
                name: (
                    dict(values.sizes),
                    values.dtype.name,
                    float(values.values.flat[0]),
                    values.attrs["long_name"],
                    row_dimension(empty) not in values.dims,
                )
                for name, values in empty.data_vars.items()
            },
            "coordinates": {name: values.dims[0] for name, values in empty.coords.items()},
            "may_fail": plan.calls_users,
        },
        "arrays": {name: digest_of(name, *row) for name, *row in rows},
    }
    return about, rows


def identity_of(texts: Mapping[str, str]) -> str:
    """The checksum of what is said of an audit, by name."""
    return digest_of(*chain.from_iterable(sorted(texts.items())))


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
    """Whether somebody holds the lock of `_only_writer`: then it cannot be read."""
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
