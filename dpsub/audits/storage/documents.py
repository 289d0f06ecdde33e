"""The zarr documents of an audit, exactly as they are written: no other codec, type or filter is ever accepted."""

from __future__ import annotations

import json
import re
from math import prod
from typing import Any, NamedTuple

Json = dict[str, Any]

GROUP: Json = {"attributes": {}, "zarr_format": 3, "node_type": "group"}
EMPTY: Json = {"kind": "inline", "must_understand": False, "metadata": {}}
VARIABLE, OTHER = 3, 0  # the levels of zstd for variables, and for indexes and canaries
# Type, fill and level of variables, of indexes, and of canaries.
KINDS = (("float32", "NaN", VARIABLE), ("int8", -1, VARIABLE), ("int64", 0, OTHER), ("float32", 0.0, OTHER))
MOST = 2**53  # of any count in a store: sizes and products of a few of them stay finite as floats
NUMBER = "(?:0|[1-9][0-9]{0,17})"


class Array(NamedTuple):
    """What is said of one array.

    Attributes:
        fill: the value of chunks that are not stored, as JSON has it.
        level: of the compression by zstd, the only codec.
        dims: the names of the dimensions, or None if they have none.
        attributes: of the array itself.
    """

    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    dtype: str
    fill: Any
    level: int
    dims: tuple[str, ...] | None
    attributes: Json

    @property
    def document(self) -> Json:
        endian = {} if self.dtype == "int8" else {"configuration": {"endian": "little"}}
        named = {} if self.dims is None else {"dimension_names": list(self.dims)}
        return {
            "shape": list(self.shape),
            "data_type": self.dtype,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(self.chunks)}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": self.fill,
            "codecs": [
                {"name": "bytes", **endian},
                {"name": "zstd", "configuration": {"level": self.level, "checksum": False}},
            ],
            "attributes": self.attributes,
            **named,
            "zarr_format": 3,
            "node_type": "array",
            "storage_transformers": [],
        }

    @property
    def chunk_bytes(self) -> int:
        return prod(self.chunks) * self.itemsize

    @property
    def bytes(self) -> int:
        return prod(self.shape) * self.itemsize

    @property
    def itemsize(self) -> int:
        return {"int8": 1, "float32": 4, "int64": 8}[self.dtype]

    def place(self, key: str) -> tuple[int, ...] | None:
        """The indices of the chunk with this key, such as "c/0/3", or None if the array has no such chunk."""
        if not re.fullmatch(f"c(/{NUMBER}){{{len(self.shape)}}}", key):
            return None
        place = tuple(map(int, key.split("/")[1:]))
        inside = (i * chunk < size for i, chunk, size in zip(place, self.chunks, self.shape, strict=True))
        return place if all(inside) else None


def read_array(node: object) -> Array:
    """What a document says of an array.

    Raises:
        ValueError: if it says anything that dpsub does not write.
    """
    try:
        return _read_array(node)
    except (LookupError, TypeError, ValueError, AttributeError):
        raise ValueError("is not an array as dpsub writes them") from None


def _read_array(node: Any) -> Array:
    compressor, grid, dims = node["codecs"][-1], node["chunk_grid"]["configuration"], node.get("dimension_names")
    said = [node["data_type"], node["fill_value"], compressor["configuration"]["level"]]
    dtype, fill, level = next((kind for kind in KINDS if same(list(kind), said)), KINDS[0])
    shape, chunks = _sizes(node["shape"]), _sizes(grid["chunk_shape"])
    array = Array(shape, chunks, dtype, fill, level, None if dims is None else tuple(dims), dict(node["attributes"]))
    whole = len(shape) == len(chunks) and all(chunk <= size for chunk, size in zip(chunks, shape, strict=True))
    if not whole or not shape or (dims is not None and len(dims) != len(shape)) or not same(array.document, node):
        raise ValueError
    return array


def same(one: object, other: object) -> bool:
    """Whether two documents are equal, types included: for Python, 1, 1.0 and True are equal."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _sizes(values: Any) -> tuple[int, ...]:
    if not isinstance(values, list) or not all(type(value) is int and 1 <= value <= MOST for value in values):
        raise ValueError
    return tuple(values)
