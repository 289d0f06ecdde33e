"""Frozen records whose arrays cannot be changed either."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any, TypeVar
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

Scalar = TypeVar("Scalar", bound=np.generic)


class Frozen:
    """A base for frozen dataclasses with arrays. Copies and transfers go through the constructor, which freezes."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        values = [getattr(self, field.name) for field in fields(self)]  # type: ignore[arg-type]
        return type(self), tuple(dict(one) if isinstance(one, MappingProxyType) else one for one in values)


def read_only(array: NDArray[Scalar]) -> NDArray[Scalar]:
    """A read-only copy; the array itself if nobody can change it."""
    if array.flags.writeable or not array.flags.owndata:
        array = array.copy()
        array.flags.writeable = False
    return array


def told(values: Any) -> str:
    """A number as it is, an array by its shape and a checksum, for the `repr` of what holds it."""
    array = np.asarray(values, dtype=np.float32)
    if array.ndim == 0:
        return repr(float(array))
    return f"({'×'.join(map(str, array.shape))}: {crc32(array.astype('<f4').tobytes()):08x})"


def read_only_mapping(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """A read-only copy, with read-only arrays."""
    return MappingProxyType(
        {name: read_only(value) if isinstance(value, np.ndarray) else value for name, value in values.items()}
    )
