"""The files of a store: in a folder, or packed into one."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol, Self

DOCUMENT = "zarr.json"
LOCK = ".dpsub-lock"
PARTIAL = ".partial"
# Files that systems make in any folder: macOS, Windows, and network file systems for files that are removed while open.
SYSTEM = re.compile(r"\.DS_Store|\._.*|Thumbs\.db|desktop\.ini|\.nfs.*|\.fuse_hidden.*")
_NUMBER = re.compile("0|[1-9][0-9]{0,17}")


class Source(Protocol):
    """Where a store's files are read from.

    Attributes:
        damaged: what is wrong with the source itself, by its name.
    """

    damaged: dict[str, str]

    def read(self, name: str, most: int) -> bytes:
        """The content of one file.

        Args:
            name: its path below the store, with "/".
            most: the most bytes that it may have.

        Raises:
            OSError: if it cannot be read, is larger, or is no regular file below the store; FileNotFoundError if it
                does not exist.
        """
        ...

    def shard_documents(self) -> dict[int, str]:
        """The names of the shards' documents, by number."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


class Folder:
    """The files of a store in a folder. Links below it are not followed, and nothing but regular files is opened."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.damaged: dict[str, str] = {}

    def read(self, name: str, most: int) -> bytes:
        check_name(name)
        path, (*folders, last) = self._path, name.split("/")
        for folder in folders:
            path /= folder
            if not stat.S_ISDIR(found := os.lstat(path).st_mode):
                raise OSError(errno.ENOTDIR, f"{folder} is {kind(found)}", str(path))
        path /= last
        if not stat.S_ISREG(found := os.lstat(path).st_mode):
            raise OSError(errno.EINVAL, f"it is {kind(found)}", str(path))
        with open(path, "rb") as file:
            content = file.read(most + 1)
        if len(content) > most:
            raise OSError(errno.EFBIG, "it is larger than what was written", str(path))
        return content

    def shard_documents(self) -> dict[int, str]:
        place = self._path / "shards"
        if not stat.S_ISDIR(_mode(place)):
            return {}
        numbers = [name for name in os.listdir(place) if is_number(name) and _mode(place / name / DOCUMENT)]
        return {int(name): f"shards/{name}/{DOCUMENT}" for name in numbers}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return


def check_name(name: str) -> None:
    """Raise an OSError for a name that could lead out of the store."""
    if any(part in ("", ".", "..") or re.search(r"[\\:\0]", part) for part in name.split("/")):
        raise OSError(errno.EINVAL, "its name is not one of a store's files", name)


def is_number(name: str) -> bool:
    """Whether this is the number of a shard or chunk as it is written: no sign, no leading 0."""
    return _NUMBER.fullmatch(name) is not None


def below(path: Path) -> Iterator[tuple[str, str]]:
    """All files and folders below a folder, in order, by name: each with its kind, "a file" for regular files."""
    for item in sorted(path.iterdir()):
        try:
            what = kind(os.lstat(item).st_mode)
        except FileNotFoundError:  # a process that writes the store has renamed it since
            continue
        yield item.name, what
        if what == "a folder":
            yield from ((f"{item.name}/{name}", inner) for name, inner in below(item))


def kind(mode: int) -> str:
    kinds = {stat.S_IFREG: "a file", stat.S_IFDIR: "a folder", stat.S_IFLNK: "a link"}
    return kinds.get(stat.S_IFMT(mode), "a pipe or device")


def _mode(path: Path) -> int:
    """The mode of a file, whatever it is, or 0 if there is none."""
    try:
        return os.lstat(path).st_mode
    except OSError:
        return 0
