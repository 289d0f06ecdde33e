"""The contents of a stored audit. Every file is compared with its recorded checksum before it is used."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from reprlib import repr as short

from dpsub._version import __version__
from dpsub.audits.any_plans import function_of
from dpsub.audits.one_run_plans import is_of_one_run
from dpsub.audits.plans import fingerprint, implied_coordinates
from dpsub.audits.storage.archive import Archive
from dpsub.audits.storage.decoding import indexes
from dpsub.audits.storage.documents import Json, same
from dpsub.audits.storage.entries import Entry, entry_of
from dpsub.audits.storage.files import DOCUMENT, LOCK, SYSTEM, Folder
from dpsub.audits.storage.layout import MOST_BYTES, Layout, layout_of
from dpsub.audits.storage.recorded import text
from dpsub.audits.training_plans import WHERE_FROM, is_of_training

FORMAT = 1
ADVICE = "copy it again from an undamaged original, or give another path"
MOST_UNKNOWN = 2**31  # bytes of a shard's file where no root document says how many it has


class Contents:
    """What is in a store.

    Attributes:
        begun: whether there is an audit.
        packed: whether the store is one packed file, which is never written again.
        attributes: the root's attributes; empty if the root is missing or damaged.
        layout: the arrays that they describe; None if the root is missing or damaged.
        entries: the undamaged shards, by number.
        files: the contents of undamaged files, by name; files with numbers only if `with_numbers`.
        damaged: the damaged or missing files, by name, and what is wrong with each.
        damaged_shards: the numbers of the shards that they belong to.

    Files that no document lists are not read.

    Raises:
        ValueError: if the path is some other file or folder, a store of a format that this version does not read, or
            one with documents that dpsub does not write, although their checksums are right.
    """

    def __init__(self, path: Path, *, with_numbers: bool = False) -> None:
        self.path = path
        self.attributes: Json = {}
        self.entries: dict[int, Entry] = {}
        self.files: dict[str, bytes] = {}
        self.damaged: dict[str, str] = {}
        self.damaged_shards: set[int] = set()
        self.layout: Layout | None = None
        self.listed = {DOCUMENT}
        self.packed = path.is_file()
        if path.exists() and not self.packed and not path.is_dir():
            raise ValueError(f"store must be an audit's folder, or an audit packed into one file, got {path}")
        with Archive(path) if self.packed else Folder(path) as self._source:
            self.damaged |= self._source.damaged
            self.begun = self.packed or (path.exists() and self._is_begun())
            if self.begun:
                self._read_root()
                self._read_shards(with_numbers)
            if isinstance(self._source, Archive) and not self.damaged and self._source.names != self.listed:
                other = min(self._source.names ^ self.listed)
                raise ValueError(f"store must hold only its audit, got {path} with {other[:80]!r}: {ADVICE}")

    def _is_begun(self) -> bool:
        advice = f"give another path, such as {self.path / 'audit.zarr'}"
        there = sorted(item.name for item in self.path.iterdir() if not SYSTEM.fullmatch(item.name))
        if LOCK in there or self._source.shard_documents():
            return DOCUMENT in there or bool(self._source.shard_documents())
        if DOCUMENT in there:
            try:
                audit = b'"dpsub_store"' in self._source.read(DOCUMENT, MOST_BYTES)
            except OSError as error:
                raise ValueError(f"store must be an audit, got {self.path}: {error.strerror}: {advice}") from None
            if not audit:
                raise ValueError(f"store must be an audit, got {self.path}, another zarr group: {advice}")
        if there and DOCUMENT not in there:
            raise ValueError(
                f"store must be a folder of its own, got {self.path}, which holds {there[0]!r} and no audit: {advice}"
            )
        return bool(there)

    def _read_root(self) -> None:
        root = self._believed(DOCUMENT, "is missing or not what was written (all runs)")
        if root is None:
            return
        attributes: Json = root["attributes"]
        version = attributes.get("dpsub_store")
        if type(version) is not int or version != FORMAT:
            maker = short(attributes.get("version_dpsub")).strip("'")
            raise ValueError(
                f"store must be of format {FORMAT}, which dpsub {__version__} reads, got {self.path} of format "
                f"{short(version)}, by dpsub {maker}: use that dpsub, or give another path"
            )
        with self.as_written(DOCUMENT):
            implied = {}
            if not is_of_training(attributes) and not is_of_one_run(attributes):
                metrics = text("metrics", attributes.get("metrics"))
                implied = {"trained_coordinates": implied_coordinates(metrics)}
            self.layout = layout_of({**root, "attributes": {**implied, **attributes}})
        self.attributes = attributes
        for name, value in implied.items():
            attributes.setdefault(name, value)
        self._check(attributes["files"], "all runs", keep=True)
        for name, node in self.layout.documents.items():
            if name in self.files:
                with self.as_written(name):
                    if not same(json.loads(self.files[name]), node):
                        raise ValueError(f"it differs from what {DOCUMENT} says")
        if not self.damaged:
            with self.as_written("index"):
                indexes(self.files, self.layout, attributes)

    def _read_shards(self, with_numbers: bool) -> None:
        ours = fingerprint(self.about) if self.attributes else None
        for number, name in self._source.shard_documents().items():
            problem = f"is not what was written (shard {number})"
            self.listed.add(name)
            document = self._believed(name, problem)
            if document is None or not same(document["attributes"].get("number"), number):
                self.damaged.setdefault(name, problem)
                self.damaged_shards.add(number)
                continue
            with self.as_written(name):
                entry = entry_of(document)
                if self.layout and entry.audit == ours:
                    entry.check_fits(self.layout)
            if self._check(entry.files, entry.runs, keep=with_numbers):
                self.entries[number] = entry
            else:
                self.damaged_shards.add(number)

    def _check(self, files: Mapping[str, str], of: str, *, keep: bool) -> bool:
        """Whether the files have their recorded SHA-256. Damage is noted, and contents are kept if `keep`."""
        before = len(self.damaged)
        self.listed |= files.keys()
        for name, digest in files.items():
            try:
                content = self._source.read(name, self.layout.most_bytes(name) if self.layout else MOST_UNKNOWN)
            except FileNotFoundError:
                self.damaged[name] = f"is missing ({of})"
                continue
            except OSError as error:
                self.damaged[name] = f"cannot be read: {error.strerror} ({of})"
                continue
            if sha256(content).hexdigest() != digest:
                self.damaged[name] = f"is not what was written ({of})"
            elif keep:
                self.files[name] = content
        return len(self.damaged) == before

    def _believed(self, name: str, problem: str) -> Json | None:
        """A zarr document, or None if its own checksum (`vouched`) is wrong or missing, which is noted as damage."""
        try:
            content = self._source.read(name, MOST_BYTES)
            document: Json = json.loads(content)
            attributes = document["attributes"]
            whole = attributes["sha256"] == _digest({**document, "attributes": {**attributes, "sha256": ""}})
        except FileNotFoundError:
            whole = False
        except OSError as error:
            whole, problem = False, f"cannot be read: {error.strerror}"
        except (ValueError, KeyError, TypeError, RecursionError):
            whole = False
        if not whole:
            self.damaged[name] = problem
            return None
        self.files[name] = content
        return document

    @contextmanager
    def as_written(self, name: str) -> Iterator[None]:
        """Name the store and the file in errors about what dpsub does not write."""
        try:
            yield
        except (ValueError, RecursionError) as error:
            problem = "it is nested too deeply" if isinstance(error, RecursionError) else error
            raise ValueError(
                f"store must be as dpsub writes it, got {self.path}, whose {name} is not: {problem}: {ADVICE}"
            ) from None

    @property
    def about(self) -> Json:
        """What the audit is: the attributes without where the shards come from."""
        return {
            name: value
            for name, value in self.attributes.items()
            if name not in WHERE_FROM and not name.startswith("version_")
        }

    @property
    def damage(self) -> str:
        """What is damaged, file by file, and what to do."""
        files = "".join(f"\n  {name} {problem}" for name, problem in sorted(self.damaged.items()))
        advice = f"{function_of(self.attributes)}(..., repair=True) trains the lost shards again, and keeps the others"
        if self.packed:
            advice = "copy it again from an undamaged original, or remove it and run the audit again"
        return f"store is damaged, {self.path}:{files}\n{advice}"

    @property
    def failed(self) -> dict[int, str]:
        """The messages of the failed runs of a training function, by the runs' numbers."""
        return {int(run): message for entry in self.entries.values() for run, message in entry.failed.items()}

    @property
    def models(self) -> int:
        return sum(entry.models for entry in self.entries.values())

    @property
    def wall_seconds(self) -> float:
        """The total time of the sessions that wrote the shards, each up to its last shard."""
        sessions: dict[str, float] = {}
        for entry in self.entries.values():
            sessions[entry.session] = max(entry.elapsed, sessions.get(entry.session, 0.0))
        return sum(sessions.values())


def vouched(document: Json) -> bytes:
    """A zarr document as bytes, with a checksum of itself among its attributes."""
    attributes = {**document["attributes"], "sha256": ""}
    attributes["sha256"] = _digest({**document, "attributes": attributes})
    return json.dumps({**document, "attributes": attributes}, indent=1).encode()


def _digest(document: Json) -> str:
    return sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
