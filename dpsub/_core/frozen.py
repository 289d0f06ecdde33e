"""Frozen records whose arrays cannot be changed either."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from dpsub._core import checks

Scalar = TypeVar("Scalar", bound=np.generic)


class Frozen:
    """A base for frozen dataclasses. Copies and transfers go through the constructor, which checks and freezes.

    Attributes:
        CHECKS: the checks of fields, by name, beside those of `checks.ARGUMENTS`. A field holds what its checks return.
    """

    CHECKS: ClassVar[Mapping[str, checks.Check]] = {}

    def __post_init__(self) -> None:
        names = [field.name for field in fields(self)]  # type: ignore[arg-type]
        checks.check_fields(self, *names, **self.CHECKS)

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


def read_only_mapping(name: str, values: object) -> Mapping[str, Any]:
    """A read-only copy, with read-only arrays. A check of a field."""
    if not isinstance(values, Mapping):
        raise ValueError(f"{name} must be a mapping from names to values, got {values!r}")
    return MappingProxyType(
        {name: read_only(value) if isinstance(value, np.ndarray) else value for name, value in values.items()}
    )
