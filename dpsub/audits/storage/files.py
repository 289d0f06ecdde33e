"""The files of a store: in a folder, or packed into one."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, Self

DOCUMENT = "zarr.json"
LOCK = ".dpsub-lock"


class Source(Protocol):
    """Where a store's files are read from.

    Attributes:
        damaged: what is wrong with the source itself, by its name.
    """

    damaged: dict[str, str]

    def read(self, name: str) -> bytes:
        """The content of one file.

        Raises:
            OSError: if it cannot be read; FileNotFoundError if it does not exist.
        """
        ...

    def shard_documents(self) -> dict[int, str]:
        """The names of the shards' documents, by number."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


class Folder:
    """The files of a store in a folder."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.damaged: dict[str, str] = {}

    def read(self, name: str) -> bytes:
        return (self._path / name).read_bytes()

    def shard_documents(self) -> dict[int, str]:
        found = (self._path / "shards").glob(f"*/{DOCUMENT}")
        return {int(one.parent.name): f"shards/{one.parent.name}/{DOCUMENT}" for one in found if _is_number(one.parent)}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return


def _is_number(path: Path) -> bool:
    return path.name.isdecimal()
