"""Frozen records whose arrays cannot be changed either, and what tells two of them apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from hashlib import sha256
from typing import Any, ClassVar
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from dpsub._core import checks


class Frozen:
    """A base for frozen dataclasses. Copies and transfers go through the constructor, which checks and freezes.

    Attributes:
        CHECKS: the checks of fields, by name, beside those of `checks.ARGUMENTS`. A field holds what its checks return.
    """

    CHECKS: ClassVar[Mapping[str, checks.Check]] = {}

    def __post_init__(self) -> None:
        for field in fields(self):  # type: ignore[arg-type]
            if check := self.CHECKS.get(field.name) or checks.ARGUMENTS.get(field.name):
                object.__setattr__(self, field.name, check(field.name, getattr(self, field.name)))

    def freeze(self, name: str, **about: Any) -> None:
        """Check the array that a field holds, as `checks.array` does, and keep it as a read-only one."""
        object.__setattr__(self, name, read_only(checks.array(name, getattr(self, name), **about)))

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return type(self), tuple(getattr(self, field.name) for field in fields(self))  # type: ignore[arg-type]


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """A read-only copy; the array itself if nobody can change it."""
    if array.flags.writeable or not array.flags.owndata:
        array = array.copy()
        array.flags.writeable = False
    return array


def fingerprint(*parts: object) -> str:
    """16 hexadecimal digits that change with any part: with the numbers of an array, and with the `repr` of others."""
    found = sha256()
    for part in parts:
        if isinstance(part, np.ndarray):
            found.update(part.astype(part.dtype.newbyteorder("<")).tobytes())
        else:
            found.update(repr(part).encode())
    return found.hexdigest()[:16]


def digest(values: Any) -> str:
    """A number as it is; of an array its shape and a checksum: for the `repr` of what holds it."""
    array = np.asarray(values, dtype=np.float32)
    if array.ndim == 0:
        return repr(float(array))
    return f"({'×'.join(map(str, array.shape))}: {crc32(array.astype('<f4').tobytes()):08x})"
