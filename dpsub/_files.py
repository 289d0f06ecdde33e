"""Where data files are, how they come there, and what is in them."""

from __future__ import annotations

import os
from pathlib import Path

import pooch


def folder() -> Path:
    """Where data files are looked for and downloaded to."""
    return Path(os.environ.get("DPSUB_DATA") or pooch.os_cache("dpsub"))


def local(path: str | os.PathLike[str]) -> Path:
    """A file as it is named, or else in the data folder."""
    given = Path(path).expanduser()
    found = given if given.is_file() else folder() / given
    if not found.is_file():
        raise FileNotFoundError(
            f"path must be a file, or one in the data folder, got {os.fspath(path)!r}: there is neither "
            f"{given.absolute()} nor {found}; the environment variable DPSUB_DATA says where the data folder is"
        )
    return found
