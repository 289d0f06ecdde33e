"""The contents of a stored audit. Every file is compared with its recorded checksum before it is used."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from hashlib import sha256
from pathlib import Path
from typing import Any

from dpsub._version import __version__
from dpsub.audits.plans import implied_coordinates
from dpsub.audits.shard_provenance import Made
from dpsub.audits.storage.archive import Archive
from dpsub.audits.storage.files import DOCUMENT, LOCK, Folder

FORMAT = 1

Json = dict[str, Any]


@dataclass(frozen=True)
class Entry:
    """A shard's document: what was trained, where, and the checksums of its files."""

    audit: str
    number: int
    runs: str
    models: int
    device: str
    cpu_capability: str
    versions: Mapping[str, str]
    commit: str
    seconds: float
    session: str
    elapsed: float
    finished: str
    files: Mapping[str, str]

    @property
    def made(self) -> Made:
        return Made(self.device, self.cpu_capability, dict(self.versions), self.commit, self.seconds)


class Contents:
    """What is in a store.

    Attributes:
        begun: whether there is an audit.
        packed: whether the store is one packed file, which is never written again.
        attributes: the root's attributes; empty if the root is missing or damaged.
        entries: the undamaged shards, by number.
        files: the contents of undamaged files, by name; files with numbers only if `with_numbers`.
        damaged: the damaged or missing files, by name, and what is wrong with each.
        damaged_shards: the numbers of the shards that they belong to.

    Raises:
        ValueError: if the path is some other file or folder, or a store of a format that this version does not read.
    """

    def __init__(self, path: Path, *, with_numbers: bool = False) -> None:
        self.path = path
        self.attributes: Json = {}
        self.entries: dict[int, Entry] = {}
        self.files: dict[str, bytes] = {}
        self.damaged: dict[str, str] = {}
        self.damaged_shards: set[int] = set()
        self.packed = path.is_file()
        with Archive(path) if self.packed else Folder(path) as self._source:
            self.damaged |= self._source.damaged
            self.begun = self.packed or (path.exists() and self._is_begun())
            if self.begun:
                self._read_root()
                self._read_shards(with_numbers)

    def _is_begun(self) -> bool:
        advice = f"give another path, such as {self.path / 'audit.zarr'}"
        there = sorted(item.name for item in self.path.iterdir())
        if LOCK in there or self._source.shard_documents():
            return DOCUMENT in there or bool(self._source.shard_documents())
        if DOCUMENT in there and b'"dpsub_store"' not in (self.path / DOCUMENT).read_bytes():
            raise ValueError(f"store must be an audit, got {self.path}, another zarr group: {advice}")
        if there and DOCUMENT not in there:
            raise ValueError(
                f"store must be a folder of its own, got {self.path}, which holds {there[0]!r} and no audit: {advice}"
            )
        return bool(there)

    def _read_root(self) -> None:
        attributes = self._believed(DOCUMENT)
        if attributes is None:
            self.damaged[DOCUMENT] = "is missing or not what was written (all runs)"
            return
        version = attributes.get("dpsub_store")
        if version != FORMAT:
            raise ValueError(
                f"store must be of format {FORMAT}, which dpsub {__version__} reads, got {self.path} of format "
                f"{version!r}, by dpsub {attributes.get('version_dpsub')}: use that dpsub, or give another path"
            )
        self.attributes = attributes
        attributes.setdefault("trained_coordinates", implied_coordinates(attributes["metrics"]))
        self._check(attributes["files"], "all runs", keep=True)

    def _read_shards(self, with_numbers: bool) -> None:
        for number, name in self._source.shard_documents().items():
            attributes = self._believed(name)
            if attributes is None or attributes.get("number") != number:
                self.damaged[name] = f"is not what was written (shard {number})"
                self.damaged_shards.add(number)
                continue
            entry = Entry(**{field.name: attributes[field.name] for field in fields(Entry)})
            if self._check(entry.files, entry.runs, keep=with_numbers):
                self.entries[number] = entry
            else:
                self.damaged_shards.add(number)

    def _check(self, files: Mapping[str, str], of: str, *, keep: bool) -> bool:
        """Whether the files have their recorded SHA-256. Damage is noted, and contents are kept if `keep`."""
        before = len(self.damaged)
        for name, digest in files.items():
            try:
                content = self._source.read(name)
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

    def _believed(self, name: str) -> Json | None:
        """The attributes of a zarr document, or None if its own checksum (`vouched`) is wrong or missing."""
        try:
            content = self._source.read(name)
            document = json.loads(content)
            attributes: Json = document["attributes"]
            whole = attributes["sha256"] == _digest({**document, "attributes": {**attributes, "sha256": ""}})
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None
        if not whole:
            return None
        self.files[name] = content
        return attributes

    @property
    def damage(self) -> str:
        """What is damaged, file by file, and what to do."""
        files = "".join(f"\n  {name} {problem}" for name, problem in sorted(self.damaged.items()))
        advice = "audit(..., repair=True) trains the lost shards again, and keeps the others"
        if self.packed:
            advice = "copy it again from an undamaged original, or remove it and run the audit again"
        return f"store is damaged, {self.path}:{files}\n{advice}"

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
