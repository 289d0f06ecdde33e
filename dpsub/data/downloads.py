"""Where data files are, and how they come there: downloads with a published hash, archives, arrays kept."""

from __future__ import annotations

import os
import shutil
import tempfile
import zlib
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from zipfile import BadZipFile

import numpy as np
import pooch
import requests
from numpy.typing import NDArray

Array = NDArray[np.generic]
DAMAGED = (OSError, ValueError, EOFError, KeyError, NotImplementedError, RuntimeError, BadZipFile, zlib.error)


class Source(NamedTuple):
    """Where a file is published, and the SHA-256 that was published for it."""

    url: str
    sha256: str


def folder() -> Path:
    """Where data files are looked for and downloaded to."""
    return Path(os.environ.get("DPSUB_DATA") or pooch.os_cache("dpsub")).expanduser()


def cache(kind: str) -> Path:
    """Where what was computed from data is kept: beside the data if that can be written, else in the user's cache."""
    for place in (folder(), Path(pooch.os_cache("dpsub"))):
        try:
            (place / kind).mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=place / kind):
                return place / kind
        except OSError:
            continue
    raise OSError(f"DPSUB_DATA must name a folder that can be written, got {folder()}, nor can the user's cache be")


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


def downloaded(source: Source, path: Path) -> Path:
    """The file at this path of the data folder, fetched if it is not there.

    Raises:
        ConnectionError: if the network does not give it.
        ValueError: if what comes is not what was published.
        OSError: if it cannot be written.
    """
    target = folder() / path
    where = f"get {source.url} by other means and put it at {target} (DPSUB_DATA says where the data folder is)"
    try:
        got = pooch.retrieve(
            source.url, known_hash=f"sha256:{source.sha256}", path=target.parent, fname=target.name, progressbar=True
        )
    except requests.exceptions.RequestException as error:
        host = urlsplit(source.url).netloc
        raise ConnectionError(f"no download from {host} ({type(error).__name__}): {where}") from error
    except ValueError as error:
        raise ValueError(f"checksum must be SHA-256 {source.sha256}, as published: {error}; {where}") from None
    except OSError as error:
        raise OSError(f"{target.parent} must be a folder that can be written ({error.strerror}): {where}") from error
    return Path(got)


def unpacked(source: Source, archive: str, *members: str) -> Path:
    """A folder of the data folder with what is in an archive, downloaded if need be; there whole or not at all."""
    place = folder() / archive.split(".")[0]
    if not place.is_dir():
        path = downloaded(source, Path(archive))
        with tempfile.TemporaryDirectory(dir=folder(), prefix=".unpacking-") as beside:
            whole = Path(beside) / "whole"
            shutil.unpack_archive(path, whole, filter="data" if archive.endswith(".tar.gz") else None)
            if missing := [member for member in members if not (whole / member).is_file()]:
                raise ValueError(f"{path} must hold {', '.join(members)}, got it without {', '.join(missing)}")
            try:
                whole.rename(place)
            except OSError:  # another process may have been faster
                if not place.is_dir():
                    raise
    return place


def file_digest(file: Any) -> str:
    digest = sha256()
    while piece := file.read(2**20):
        digest.update(piece)
    return digest.hexdigest()


def load_arrays(path: Path) -> dict[str, Array] | None:
    """What `save_arrays` kept, if it is there and whole."""
    try:
        with open(path, "rb") as file, np.load(file) as arrays:
            return dict(arrays)
    except DAMAGED:
        return None


def save_arrays(path: Path, **arrays: Array) -> None:
    """Keep arrays in an .npz file, which is there whole or not at all."""
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".writing-") as beside:
        part = Path(beside) / path.name
        np.savez_compressed(part, **arrays)  # type: ignore[arg-type]
        part.replace(path)
