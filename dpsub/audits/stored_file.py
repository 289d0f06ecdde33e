"""What an audit's file holds: an SQLite database, read as if a stranger had made it.

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
import zlib
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from math import isfinite, prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr
from numpy.typing import NDArray

from dpsub._core import checks
from dpsub.audits.plans import Arrays, Cut, Layout, Made, Shard, Variable, joined, origin
from dpsub.trainers import devices

FORMAT = 2  # 1 were folders of zarr, by dpsub 0.1
SCHEMA = (
    "CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "CREATE TABLE arrays (name TEXT PRIMARY KEY, dtype TEXT NOT NULL, shape TEXT NOT NULL, zipped INTEGER NOT NULL, "
    "data BLOB NOT NULL)",
    "CREATE TABLE shards (number INTEGER PRIMARY KEY, made TEXT NOT NULL, failed TEXT NOT NULL, "
    "zipped INTEGER NOT NULL, data BLOB NOT NULL, sha256 TEXT NOT NULL)",
)
MAGIC = b"SQLite format 3\0"
ARCHIVE = b"PK\x03\x04"
SUPER_JOURNAL = bytes.fromhex("d9d505f920a163d7")  # ends a journal that names another file
DTYPES = ("float32", "float64", "int8", "int64", "bool")
MOST = 2**53
MOST_TEXT = 2**26  # bytes
COORDINATE = "coordinate/"  # begins the names of arrays that are coordinates
ADVICE = "copy it again from an undamaged original, or give another path"
OF_DISK = [getattr(sqlite3, f"SQLITE_{name}") for name in ["BUSY", "CANTOPEN", "FULL", "IOERR", "PERM", "READONLY"]]
FORGED = (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError, sqlite3.DatabaseError)


@dataclass(frozen=True)
class Row:
    """What a store says of a shard, beside its numbers."""

    made: Made
    session: str
    elapsed: float
    finished: str
    failed: Mapping[int, str]


class Stored:
    """What a file holds.

    Attributes:
        about: what is said of the audit, by name; empty if there is none, or it is damaged.
        identity: the checksum of that.
        layout: of the dataset; None if there is none, or it is damaged.
        shards: the shards that are there and not damaged, by number.
        arrays: what all shards share, coordinates aside.
        damaged: what is damaged, and what is wrong with it.

    Args:
        path: the file.
        asked: identity and layout of the audit that is looked for, to find its shards where `about` is damaged.

    Raises:
        ValueError: if the path is a folder or another file, or the database is of another format or not as dpsub
            writes it.
        OSError: if the file cannot be read.
    """

    def __init__(self, path: Path, asked: tuple[str, Layout] | None = None) -> None:
        self.path = path
        self.about: dict[str, Any] = {}
        self.identity = ""
        self.layout: Layout | None = None
        self.shards: dict[int, Row] = {}
        self.arrays: Arrays = {}
        self.damaged: dict[str, str] = {}
        if not _is_database(path):
            return
        undo_interrupted(path)
        try:
            with closing(connected(path, "ro")) as database:
                if not _has_tables(database, path):
                    return
                self._read_about(database)
                if self.layout is None and asked is not None:
                    self.identity, self.layout = asked
                if self.layout is not None:
                    self._read_shards(database)
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # the second of damaged names of tables
            if is_of_disk(error):
                raise of_disk(path, error) from None
            self.damaged["the file"] = f"is not what was written: {error}"

    @property
    def begun(self) -> bool:
        """Whether there is an audit, damaged or not."""
        return bool(self.about or self.damaged)

    @property
    def runs(self) -> int:
        return sum(self.shard(number).runs for number in self.shards)

    @property
    def failed(self) -> dict[int, str]:
        """The messages of failed runs, by number."""
        return {run: message for row in self.shards.values() for run, message in row.failed.items()}

    @property
    def wall_seconds(self) -> float:
        """The total time of the sessions that wrote the shards, each up to its last shard."""
        sessions: dict[str, float] = {}
        for row in self.shards.values():
            sessions[row.session] = max(row.elapsed, sessions.get(row.session, 0.0))
        return sum(sessions.values())

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes of the dataset: those of the plan, and where the shards come from."""
        made = [row.made for row in self.shards.values()]
        if not made:
            return dict(self.about["attributes"])
        return {
            **self.about["attributes"],
            **origin(made),
            "commit": joined(each.commit for each in made),
            "wall_seconds": round(self.wall_seconds, 3),
            "last_written": max(row.finished for row in self.shards.values()),
        }

    def shard(self, number: int) -> Shard:
        assert self.layout is not None
        return self.layout.cut.shard(number)

    def check(self) -> None:
        """Raise a ValueError if something is damaged."""
        if self.damaged:
            told = "".join(f"\n  {name} {problem}" for name, problem in sorted(self.damaged.items()))
            raise ValueError(
                f"store is damaged, {self.path}:{told}\n{self.about.get('call', 'audit')}(..., repair=True) computes "
                "what is lost again, and keeps the rest"
            )

    def dataset(self) -> xr.Dataset:
        """The dataset of the shards that are there.

        Raises:
            ValueError: if something is damaged, or the memory does not hold it.
        """
        self.check()
        assert self.layout is not None
        variables = self.layout.variables.values()
        _check_memory(self.path, sum(prod(one.shape) * np.dtype(one.dtype).itemsize for one in variables))
        flat = self.layout.empty()
        for shard, arrays in self.numbers():
            for name, values in arrays.items():
                flat[name][self.layout.part(name, shard)] = values
        self.check()
        return self.layout.dataset(flat, self.attributes, self.failed)

    def look_for_damage(self) -> None:
        """Read all numbers once. Damage is noted, and damaged shards are left out."""
        for _ in self.numbers():
            pass

    def numbers(self) -> Iterator[tuple[Shard, Arrays]]:
        """The numbers of the shards, flat. Damage is noted, and damaged shards are left out."""
        with closing(connected(self.path, "ro")) as database:
            for number in sorted(self.shards):
                shard = self.shard(number)
                with self._noted(f"shard {number}", f" ({shard})"):
                    yield shard, self._numbers(database, shard)
        self.shards = {number: row for number, row in self.shards.items() if f"shard {number}" not in self.damaged}

    def _read_about(self, database: sqlite3.Connection) -> None:
        with self._noted("what the audit is"):
            _check_lengths(database, "SELECT max(length(value)) FROM about")
            told = dict(database.execute("SELECT name, value FROM about ORDER BY name"))
            digest = told.pop("sha256", None)
            if digest != identity_of(told):
                raise ValueError("its checksum is another one")
            about = {name: json.loads(value) for name, value in told.items()}
            for name in ("call", "title", "things"):
                checks.text(name, about[name])
            _check_plain(about["attributes"])
            self.about, self.identity = about, digest
        with self._noted("what all shards share"):
            _check_lengths(database, "SELECT max(length(name), length(dtype), length(shape)) FROM arrays")
            for name, dtype, shape, length in database.execute("SELECT name, dtype, shape, length(data) FROM arrays"):
                with self._noted(f"array {name!r}"):
                    digest = self.about.get("arrays", {}).get(checks.text("name", name))
                    self.arrays[name] = _array(database, name, dtype, shape, length, digest)
        for name in self.about.get("arrays", {}).keys() - self.arrays.keys():
            self.damaged.setdefault(f"array {name!r}", "is missing")
        if self.about:
            coordinates = {name: self.arrays.pop(name) for name in list(self.arrays) if name.startswith(COORDINATE)}
            with self._noted("what the dataset is"):
                self.layout = _layout(self.about["layout"], coordinates)

    def _read_shards(self, database: sqlite3.Connection) -> None:
        assert self.layout is not None
        with self._noted("the shards"):
            _check_lengths(database, "SELECT max(length(made), length(failed)) FROM shards")
            for number, made, failed in database.execute("SELECT number, made, failed FROM shards ORDER BY number"):
                with self._noted(f"shard {number}"):
                    if not 0 <= number < self.layout.cut.shards:
                        raise ValueError("there is no shard of that number")
                    self.shards[number] = row_of(made, failed, self.shard(number))

    def _numbers(self, database: sqlite3.Connection, shard: Shard) -> Arrays:
        assert self.layout is not None
        variables = self.layout.variables
        parts = {name: self.layout.part(name, shard) for name in sorted(variables)}
        sizes = {name: part.stop - part.start for name, part in parts.items()}
        whole = sum(size * np.dtype(variables[name].dtype).itemsize for name, size in sizes.items())
        [[length]] = database.execute("SELECT length(data) FROM shards WHERE number = ?", [shard.number])
        if length > whole:
            raise ValueError("it is longer than a shard")
        [row] = database.execute("SELECT * FROM shards WHERE number = ?", [shard.number])
        if row[-1] != digest_of(self.identity, *row[:-1]):
            raise ValueError("its checksum is another one")
        content, start, found = _unzipped(row[4], row[3], whole), 0, {}
        for name, size in sizes.items():
            dtype = np.dtype(variables[name].dtype)
            values = np.frombuffer(content, dtype.newbyteorder("<"), size, start).astype(dtype)
            _check_numbers(name, values, shard, self.shards[shard.number].failed)
            start += values.nbytes
            found[name] = values
        return found

    @contextmanager
    def _noted(self, name: str, where: str = "") -> Iterator[None]:
        """Note damage, instead of raising it."""
        try:
            yield
        except FORGED as error:
            if is_of_disk(error):
                raise of_disk(self.path, error) from None
            self.damaged[name] = f"is not what was written{where}: {error}"


def connected(path: Path, mode: str) -> sqlite3.Connection:
    """A connection that trusts nothing in the file, and that survives a power cut if it writes."""
    connection = sqlite3.connect(f"{path.as_uri()}?mode={mode}", uri=True, timeout=30, isolation_level=None)
    connection.text_factory = partial(str, encoding="utf-8", errors="replace")  # what is no text has another checksum
    for setting in ("trusted_schema = OFF", "cell_size_check = ON"):
        connection.execute(f"PRAGMA {setting}")
    if mode != "ro":
        # Of a new file: most shards are of some kilobytes, and each begins a page.
        for setting in ("page_size = 1024", "journal_mode = DELETE", "synchronous = FULL"):
            connection.execute(f"PRAGMA {setting}")
    return connection


def undo_interrupted(path: Path) -> None:
    """Let SQLite undo the transaction of a process that was killed in it.

    A reader cannot do that. A journal that names another file is not dpsub's, and would be acted on.
    """
    journal = path.with_name(f"{path.name}-journal")
    if not journal.is_file() or not os.access(path, os.W_OK):
        return
    with suppress(FileNotFoundError), open(journal, "rb") as file:  # it goes when its writer has finished
        file.seek(-min(8, file.seek(0, os.SEEK_END)), os.SEEK_END)
        if file.read() == SUPER_JOURNAL:
            raise ValueError(f"store must be as dpsub writes it, got {path} with a journal that names other files")
    try:
        with closing(connected(path, "rw")) as database:
            database.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.DatabaseError as error:
        if is_of_disk(error):
            raise of_disk(path, error) from None  # else it is damaged, as whoever reads it will see


def is_of_disk(error: Exception) -> bool:
    """Whether the disk failed, or a lock, and not what is in the file."""
    return isinstance(error, sqlite3.Error) and (getattr(error, "sqlite_errorcode", 0) & 0xFF) in OF_DISK


def of_disk(path: Path, error: Exception) -> OSError:
    """The error of a file that cannot be read or written."""
    known = {sqlite3.SQLITE_FULL: errno.ENOSPC, sqlite3.SQLITE_READONLY: errno.EROFS, sqlite3.SQLITE_BUSY: errno.EAGAIN}
    number = known.get(getattr(error, "sqlite_errorcode", 0) & 0xFF)
    if number is None:
        there = next((one for one in (path, *path.parents) if one.exists()), path)
        read_only = bool(os.statvfs(there).f_flag & os.ST_RDONLY) if hasattr(os, "statvfs") else False
        number = errno.EROFS if read_only else errno.EIO if os.access(there, os.W_OK) else errno.EACCES
    return OSError(number, f"{os.strerror(number)} ({error}); what was stored before stays", str(path))


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


def row_of(made: str, failed: str, shard: Shard) -> Row:
    """A shard's row, from its texts. What dpsub does not write raises a ValueError, KeyError or TypeError."""
    told, messages = json.loads(made), json.loads(failed)
    texts = [told[name] for name in ("device", "cpu_capability", "commit", "session", "finished")]
    if not all(isinstance(one, str) and checks.drawable(one) for one in (*texts, *told["versions"].values())):
        raise ValueError("where it comes from must be texts")
    if not {"torch", "dpsub"} <= told["versions"].keys():
        raise ValueError("its versions of torch and dpsub are missing")
    seconds, elapsed = (checks.real(name, told[name], at_least=0) for name in ("seconds", "elapsed"))
    runs = {int(run): checks.text("a message", message) for run, message in messages.items()}
    if not all(shard.start <= run < shard.stop for run in runs):
        raise ValueError("it has failed runs that are not its own")
    device, capability, commit, session, finished = texts
    return Row(Made(device, capability, told["versions"], commit, seconds), session, elapsed, finished, runs)


def _is_database(path: Path) -> bool:
    """Whether there is a database. What else a path may be is refused."""
    if path.is_dir():
        advice = f"an audit is one database: give {path / 'audit.db'}"
        if (path / "zarr.json").exists():
            advice = "which dpsub 0.1 wrote: read it with dpsub 0.1, or give another path"
        raise ValueError(f"store must be a file, got the folder {path}: {advice}")
    if not path.exists():
        return False
    if not path.is_file():
        raise ValueError(f"store must be a file, got {path}, a pipe or device")
    with open(path, "rb") as file:
        begin = file.read(len(MAGIC))
    if begin.startswith(ARCHIVE):
        raise ValueError(f"store must be an audit's file, got {path}, an archive: dpsub 0.1 reads those that it packed")
    if begin and begin != MAGIC:
        raise ValueError(f"store must be an audit's file, got {path}, another file: give another path")
    return bool(begin)  # an empty file is of a process that was killed before its first transaction


def _has_tables(database: sqlite3.Connection, path: Path) -> bool:
    """Whether an audit was begun. A database with other tables than dpsub's is refused, before anything is selected."""
    held = [sql for [sql] in database.execute("SELECT sql FROM sqlite_master ORDER BY rowid") if sql is not None]
    [[version]] = database.execute("PRAGMA user_version")
    if held == list(SCHEMA) and version == FORMAT:
        return True
    if held or version:
        raise ValueError(
            f"store must be an audit of format {FORMAT}, got {path}, a database of format {version} with "
            f"{'these' if held == list(SCHEMA) else 'other'} tables: {ADVICE}"
        )
    return False


def _check_lengths(database: sqlite3.Connection, query: str) -> None:
    if any((longest or 0) > MOST_TEXT for [longest] in database.execute(query)):
        raise ValueError(f"its texts must be at most {MOST_TEXT:,} bytes")


def _array(
    database: sqlite3.Connection, name: str, dtype: str, shape: str, length: int, digest: str | None
) -> NDArray[Any]:
    sizes = json.loads(shape)
    if dtype not in DTYPES or not isinstance(sizes, list) or not all(type(n) is int and n >= 0 for n in sizes):
        raise ValueError(f"it must be an array of {', '.join(DTYPES)}")
    if length > (whole := prod(sizes) * np.dtype(dtype).itemsize):
        raise ValueError("it is longer than its shape")
    _check_memory(name, whole)
    [row] = database.execute("SELECT * FROM arrays WHERE name = ?", [name])
    content = _unzipped(row[4], row[3], whole)
    if digest != digest_of(name, dtype, shape, content):
        raise ValueError("its checksum is another one")
    return np.frombuffer(content, np.dtype(dtype).newbyteorder("<")).astype(dtype).reshape(sizes)


def _unzipped(data: bytes, zipped: int, size: int) -> bytes:
    content = data
    if zipped:
        try:
            content = zlib.decompressobj().decompress(data, size + 1)
        except zlib.error as error:
            raise ValueError(f"zlib cannot read it ({error})") from None
    if len(content) != size:
        raise ValueError(f"it must be {size:,} bytes")
    return content


def _layout(told: Mapping[str, Any], coordinates: Arrays) -> Layout:
    cut = Cut(*(checks.whole("cut", number, at_most=MOST) for number in told["cut"]))
    variables = {}
    for name, (sizes, dtype, fill, long_name, of_first) in told["variables"].items():
        shape = {checks.text("dimension", dim): checks.whole(dim, size, at_most=MOST) for dim, size in sizes.items()}
        of_repeat, of_run = divmod(prod(shape.values()), cut.repeats if of_first else cut.repeats * cut.runs)
        if dtype not in DTYPES or of_run or not of_repeat or prod(shape.values()) > MOST:
            raise ValueError(f"{name!r} must have as many numbers for each run, of {', '.join(DTYPES)}")
        variables[name] = Variable(shape, dtype, float(fill), checks.text("long_name", long_name), bool(of_first))
    if not {"score", "bit"} <= variables.keys():
        raise ValueError("an audit has scores and bits")
    sizes = {dim: size for one in variables.values() for dim, size in one.sizes.items()}
    placed = {}
    for name, dimension in told["coordinates"].items():
        values = coordinates[COORDINATE + name]
        if values.shape != (sizes[dimension],):
            raise ValueError(f"the coordinate {name!r} must have one value for each {dimension!r}")
        placed[name] = dimension, values
    return Layout(cut, variables, placed, bool(told["may_fail"]))


def _check_plain(attributes: Mapping[str, Any]) -> None:
    for name, value in attributes.items():
        for one in value if isinstance(value, list) else [value]:
            fine = checks.drawable(one) if isinstance(one, str) else isinstance(one, int | float) and isfinite(one)
            if not fine or not checks.drawable(name):
                raise ValueError(f"{name!r} must be a text, a finite number or a list of them")


def _check_numbers(name: str, values: NDArray[Any], shard: Shard, failed: Mapping[int, str]) -> None:
    """Check that bits are 0 or 1, and that numbers are finite, those of failed runs aside."""
    right = np.isin(values, (0, 1)) if name == "bit" else np.isfinite(values)
    if name != "bit" and failed:
        right.reshape(shard.runs, -1)[[run - shard.start for run in failed]] = True
    if not right.all():
        raise ValueError(f"{name!r} has numbers that no audit has")


def _check_memory(what: object, needed: int) -> None:
    free = devices.free_bytes(torch.device("cpu"))
    if needed > free:
        raise ValueError(
            f"store must fit the memory, got {what}, which takes {needed / 2**30:,.1f} GiB where {free / 2**30:,.1f} "
            "GiB are free: free some"
        )
