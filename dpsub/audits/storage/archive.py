"""A packed store: the files of a finished audit in one zip file that ends with its own checksum."""

from __future__ import annotations

import errno
import os
import struct
import zipfile
from hashlib import sha256
from pathlib import Path
from typing import Self

from dpsub.audits.storage.files import DOCUMENT, check_name, is_number

PACKED = ".zip"
# A packed store ends with these bytes and 64 digits, the checksum of everything before the digits.
SIGNED = b"dpsub sha256 "
DIGITS = 64
BROKEN = (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, ValueError, OverflowError, struct.error)


class Archive:
    """The files of a packed store: a zip file without compression that ends with its own checksum."""

    def __init__(self, path: Path) -> None:
        self.damaged: dict[str, str] = {}
        signed, digest = _signature(path)
        if not signed and not zipfile.is_zipfile(path):
            raise ValueError(
                f"store must be an audit's folder, or an audit packed into one file, got the file {path}, which is "
                "neither, or was cut short: give another path"
            )
        if not signed or digest != signed:
            self.damaged[path.name] = "is not what was written"
        try:
            self._zip = zipfile.ZipFile(path)
        except BROKEN:
            raise ValueError(
                f"store is damaged, {path}: its list of files cannot be read; copy it again from an undamaged original"
            ) from None

        listed = self._zip.infolist()
        self.names = {info.filename for info in listed}
        # Names that share their bytes could stand for far more than the file's size.
        if len(self.names) < len(listed) or sum(info.file_size for info in listed) > path.stat().st_size:
            self.damaged[path.name] = "lists files that it does not hold"

    def read(self, name: str, most: int) -> bytes:
        check_name(name)
        try:
            about = self._zip.getinfo(name)
            if about.compress_type != zipfile.ZIP_STORED:
                raise OSError(errno.EINVAL, "it is compressed, and packed stores are not", name)
            if about.file_size > most:
                raise OSError(errno.EFBIG, "it is larger than what was written", name)
            return self._zip.read(name)
        except KeyError:
            raise FileNotFoundError(name) from None
        except BROKEN as error:
            raise OSError(errno.EIO, f"it is not what was written: {error}", name) from None

    def shard_documents(self) -> dict[int, str]:
        parts = [(name, name.split("/")) for name in self._zip.namelist()]
        return {
            int(of[1]): name
            for name, of in parts
            if len(of) == 3 and of[0] == "shards" and is_number(of[1]) and of[2] == DOCUMENT
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._zip.close()


def _signature(path: Path) -> tuple[bytes, bytes]:
    """The checksum of a packed store and the one that it ends with; both empty if it does not end with one."""
    digest, left = sha256(), path.stat().st_size - DIGITS
    with open(path, "rb") as file:
        file.seek(max(0, left - len(SIGNED)))
        if left < len(SIGNED) or file.read(len(SIGNED)) != SIGNED:
            return b"", b""
        file.seek(0)
        while left and (piece := file.read(min(left, 2**20))):
            digest.update(piece)
            left -= len(piece)
        return digest.hexdigest().encode(), file.read()


def write_archive(path: Path, files: dict[str, bytes]) -> None:
    """Pack files into one. The same files give the same bytes."""
    with zipfile.ZipFile(path, "x", zipfile.ZIP_STORED) as archive:
        for name in sorted(files):
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), files[name])
        archive.comment = SIGNED + b"0" * DIGITS
    content = path.read_bytes()[:-DIGITS]
    with open(path, "wb") as file:
        file.write(content + sha256(content).hexdigest().encode())
        file.flush()
        os.fsync(file.fileno())
