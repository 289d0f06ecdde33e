"""A packed store: the files of a finished audit in one zip file that ends with its own checksum."""

from __future__ import annotations

import os
import zipfile
from hashlib import sha256
from pathlib import Path
from typing import Self

from dpsub.audits.storage.files import DOCUMENT

PACKED = ".zip"
# A packed store ends with these bytes and 64 digits, the checksum of everything before the digits.
SIGNED = b"dpsub sha256 "
DIGITS = 64


class Archive:
    """The files of a packed store: a zip file without compression that ends with its own checksum."""

    def __init__(self, path: Path) -> None:
        self.damaged: dict[str, str] = {}
        content = path.read_bytes()
        signed, digest = content[:-DIGITS], content[-DIGITS:]
        if not signed.endswith(SIGNED) and not zipfile.is_zipfile(path):
            raise ValueError(
                f"store must be an audit's folder, or an audit packed into one file, got the file {path}, which is "
                "neither, or was cut short: give another path"
            )
        if not signed.endswith(SIGNED) or sha256(signed).hexdigest().encode() != digest:
            self.damaged[path.name] = "is not what was written"
        try:
            self._zip = zipfile.ZipFile(path)
        except (zipfile.BadZipFile, NotImplementedError):
            raise ValueError(
                f"store is damaged, {path}: its list of files cannot be read; copy it again from an undamaged original"
            ) from None

    def read(self, name: str) -> bytes:
        try:
            if self._zip.getinfo(name).compress_type != zipfile.ZIP_STORED:
                raise OSError(f"{name} is compressed, and packed stores are not")
            return self._zip.read(name)
        except KeyError:
            raise FileNotFoundError(name) from None
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
            raise OSError(5, f"not what was written: {error}") from None

    def shard_documents(self) -> dict[int, str]:
        parts = [(name, name.split("/")) for name in self._zip.namelist()]
        return {
            int(of[1]): name
            for name, of in parts
            if len(of) == 3 and of[0] == "shards" and of[1].isdecimal() and of[2] == DOCUMENT
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._zip.close()


def write_archive(path: Path, files: dict[str, bytes]) -> None:
    """Pack files into one. The same files give the same bytes."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(files):
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), files[name])
        archive.comment = SIGNED + b"0" * DIGITS
    content = path.read_bytes()[:-DIGITS]
    with open(path, "wb") as file:
        file.write(content + sha256(content).hexdigest().encode())
        file.flush()
        os.fsync(file.fileno())
