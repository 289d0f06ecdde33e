"""The data folder: downloads checked against a published hash, archives, and a cache of arrays."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np
import pooch
import requests
from numpy.typing import NDArray

Array = NDArray[Any]


class Source(NamedTuple):
    """The address of a published file, and the SHA-256 published for it."""

    url: str
    sha256: str


def folder() -> Path:
    """The data folder: where files are read from and downloaded to."""
    return Path(os.environ.get("DPSUB_DATA") or pooch.os_cache("dpsub")).expanduser()


def cache(kind: str) -> Path:
    """A writable folder for what is computed from data: in the data folder if possible, else in the user's cache."""
    for place in (folder(), Path(pooch.os_cache("dpsub"))):
        try:
            (place / kind).mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=place / kind):
                return place / kind
        except OSError:
            continue
    raise OSError(
        f"DPSUB_DATA must name a folder that can be written, got {folder()}: neither it nor the user's cache can"
    )


def local(path: str | os.PathLike[str]) -> Path:
    """The file at this path, or else at this path in the data folder."""
    given = Path(path).expanduser()
    found = given if given.is_file() else folder() / given
    if not found.is_file():
        raise FileNotFoundError(
            f"path must name a file, got {os.fspath(path)!r}: there is neither {given.absolute()} nor {found}; the "
            "environment variable DPSUB_DATA names the data folder"
        )
    return found


def downloaded(source: Source, path: Path) -> Path:
    """The file at this path in the data folder, downloaded if it is missing.

    Raises:
        ConnectionError: if the download fails.
        ValueError: if the download does not have the published hash.
        OSError: if the file cannot be written.
    """
    target = folder() / path
    known, place = f"sha256:{source.sha256}", {"path": target.parent, "fname": target.name}
    try:
        return Path(pooch.retrieve(source.url, known_hash=known, progressbar=True, **place))
    except requests.exceptions.RequestException as error:
        raise ConnectionError(
            f"no download from {urlsplit(source.url).netloc} ({type(error).__name__}): get {source.url} by other means "
            f"and put it at {target} (DPSUB_DATA names the data folder)"
        ) from error


def unpacked(source: Source, archive: str) -> Path:
    """The folder into which an archive is unpacked, downloaded if missing. The folder appears complete or not at all.

    Raises:
        ConnectionError, OSError, ValueError: as in `downloaded`.
    """
    place = folder() / archive.split(".")[0]
    if not place.is_dir():
        path = downloaded(source, Path(archive))
        with tempfile.TemporaryDirectory(dir=folder(), prefix=".unpacking-") as beside:
            whole = Path(beside) / "whole"
            shutil.unpack_archive(path, whole)  # the hash was checked; `filter` would take Python 3.11.4
            try:
                whole.rename(place)
            except OSError:  # another process may have been faster
                if not place.is_dir():
                    raise
    return place


def load_arrays(path: Path, *names: str) -> dict[str, Array] | None:
    """The arrays of these names that `save_arrays` wrote, or None if the file or one of them is missing or damaged."""
    try:
        with open(path, "rb") as file, np.load(file) as arrays:
            return {name: arrays[name] for name in names}
    except Exception:  # NumPy and zipfile have many for a damaged file
        return None


def save_arrays(path: Path, **arrays: Array) -> None:
    """Write arrays to an .npz file, which appears complete or not at all."""
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".writing-") as beside:
        part = Path(beside) / path.name
        np.savez_compressed(part, **arrays)  # type: ignore[arg-type]
        part.replace(path)
