"""What a stored audit holds, as far as it can be believed: every file is vouched for by a checksum."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from hashlib import sha256
from pathlib import Path
from typing import Any

from dpsub._plans import Made
from dpsub._version import __version__

FORMAT = 1
DOCUMENT = "zarr.json"
LOCK = ".dpsub-lock"

Json = dict[str, Any]


@dataclass(frozen=True)
class Entry:
    """What a shard's document says of it, in the order in which people ask."""

    audit: str
    models: int
    runs: str
    device: str
    versions: Mapping[str, str]
    commit: str
    seconds: float
    session: str
    elapsed: float
    finished: str
    files: Mapping[str, str]

    @property
    def made(self) -> Made:
        return Made(self.device, dict(self.versions), self.commit, self.seconds)


class Contents:
    """What is in a folder.

    Attributes:
        attributes: the root's; None where no audit has begun.
        entries: of the shards that are there and whole.
        damaged: files that are not what was written, and what is wrong.
        damaged_shards: the shards that they belong to.
        root_damaged: whether one of them belongs to none, but to all.

    Raises:
        ValueError: if the path is a file, something else's folder, or a store that this version does not know.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.attributes: Json | None = None
        self.entries: dict[int, Entry] = {}
        self.damaged: dict[str, str] = {}
        self.damaged_shards: set[int] = set()
        self.root_damaged = False
        if path.exists() and self._is_begun():
            self._read_root()
            self._read_shards()

    def _is_begun(self) -> bool:
        if not self.path.is_dir():
            raise ValueError(f"store must be a folder, or not there yet, got the file {self.path}: give another path")
        there = sorted(item.name for item in self.path.iterdir())
        begun = DOCUMENT in there or bool(self._shard_documents())
        if there and LOCK not in there and not begun:
            raise ValueError(
                f"store must be a folder of its own, got {self.path}, which holds {there[0]!r} and no audit: give "
                f"another path, such as {self.path / 'audit.zarr'}"
            )
        return begun

    def _shard_documents(self) -> list[Path]:
        return list((self.path / "shards").glob(f"[0-9]*/{DOCUMENT}"))

    def _read_root(self) -> None:
        document, whole = believed(self.path / DOCUMENT)
        self.attributes = document.get("attributes", {})
        version = self.attributes.get("dpsub_store")
        if version is None and not (self.path / "shards").exists():
            raise ValueError(f"store must be an audit, got {self.path}, another zarr group: give another path")
        if whole and version != FORMAT:
            raise ValueError(
                f"store must be of format {FORMAT}, which dpsub {__version__} reads, got {self.path} of format "
                f"{version!r}, by dpsub {self.attributes.get('version_dpsub')}: use that dpsub, or give another path"
            )
        if whole:
            self.root_damaged = not self._check(self.attributes["files"], "all runs")
        else:
            self.damaged[DOCUMENT] = "is missing or not what was written (all runs)"
            self.root_damaged = True

    def _read_shards(self) -> None:
        for path in self._shard_documents():
            number = int(path.parent.name)
            document, whole = believed(path)
            attributes = document.get("attributes", {})
            if not whole or not {field.name for field in fields(Entry)} <= set(attributes):
                self.damaged[path.relative_to(self.path).as_posix()] = f"is not what was written (shard {number})"
                self.damaged_shards.add(number)
                continue
            entry = Entry(**{field.name: attributes[field.name] for field in fields(Entry)})
            if self._check(entry.files, entry.runs):
                self.entries[number] = entry
            else:
                self.damaged_shards.add(number)

    def _check(self, files: Mapping[str, str], of: str) -> bool:
        """Whether the files have the SHA-256 that they should have."""
        before = len(self.damaged)
        for name, digest in files.items():
            try:
                if sha256((self.path / name).read_bytes()).hexdigest() != digest:
                    self.damaged[name] = f"is not what was written ({of})"
            except FileNotFoundError:
                self.damaged[name] = f"is missing ({of})"
        return len(self.damaged) == before

    @property
    def damage(self) -> str:
        """What is damaged, file by file, and what to do."""
        files = "".join(f"\n  {name} {problem}" for name, problem in sorted(self.damaged.items()))
        advice = "audit(..., repair=True) trains again what is lost, and keeps the rest"
        return f"store is damaged, {self.path}:{files}\n{advice}"

    @property
    def models(self) -> int:
        return sum(entry.models for entry in self.entries.values())

    @property
    def wall_seconds(self) -> float:
        """How long the sessions took that wrote the shards, each up to its last one."""
        sessions: dict[str, float] = {}
        for entry in self.entries.values():
            sessions[entry.session] = max(entry.elapsed, sessions.get(entry.session, 0.0))
        return sum(sessions.values())


def vouched(document: Json) -> bytes:
    """A zarr document, with a checksum of itself among its attributes."""
    attributes = {**document["attributes"], "sha256": ""}
    attributes["sha256"] = _digest({**document, "attributes": attributes})
    return json.dumps({**document, "attributes": attributes}, indent=1).encode()


def believed(path: Path) -> tuple[Json, bool]:
    """The zarr document in a file, empty where none can be read, and whether its checksum is right."""
    try:
        document = json.loads(path.read_bytes())
        attributes = document["attributes"]
        digest = attributes["sha256"]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return {}, False
    return document, digest == _digest({**document, "attributes": {**attributes, "sha256": ""}})


def _digest(document: Json) -> str:
    return sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
