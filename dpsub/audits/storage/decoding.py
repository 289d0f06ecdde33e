"""From the files of an audit to its dataset. Nothing is decoded but zstd frames that say how large they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import torch
import xarray as xr
from numcodecs import Zstd
from numpy.typing import NDArray

from dpsub.audits.one_run_plans import PAIR, SLOT
from dpsub.audits.plans import observed_steps
from dpsub.audits.storage.documents import Array, Json
from dpsub.audits.storage.layout import CANARIES, LEARNED, Layout
from dpsub.trainers import devices

MAGIC = b"\x28\xb5\x2f\xfd"


def decoded(files: Mapping[str, bytes], layout: Layout, attributes: Json, failed: Mapping[int, str]) -> xr.Dataset:
    """The dataset of a complete audit. Only the scores of runs that failed are NaN.

    Raises:
        ValueError: if the files hold other numbers than an audit has.
    """
    variables = {}
    for name, array in sorted(layout.variables.items()):
        values = decoded_array(name, array, files)
        right = np.isin(values, (0, 1)) if name == "bit" else np.isfinite(values)
        if name == "score" and failed:
            right[sorted(failed)] = np.isnan(values[sorted(failed)])
        if not right.all():
            raise ValueError(f"{name!r} has numbers that no audit has")
        variables[name] = (array.dims, values, {"long_name": array.attributes["long_name"]})
    return xr.Dataset(variables, indexes(files, layout, attributes), attributes)


def indexes(
    files: Mapping[str, bytes], layout: Layout, attributes: Json
) -> dict[str, tuple[tuple[str, ...] | None, NDArray[np.generic]]]:
    """The coordinates, each with its dimension.

    Raises:
        ValueError: if the files hold others than the attributes describe.
    """
    arrays = {name: array for name, array in sorted(layout.others.items()) if name not in CANARIES + LEARNED}
    check_memory(arrays.values())
    found = {}
    for name, array in arrays.items():
        values = decoded_array(name, array, files)
        if name == SLOT and array.dims == (PAIR,):
            right = values.min() >= 0 and values.max() < attributes["n"] and len(np.unique(values)) == len(values)
        else:
            expected = np.arange(array.shape[0])
            if name == "step":
                recorded = attributes.get("observed_steps") if layout.of_training else None
                expected = np.array(recorded or observed_steps(attributes["steps"], attributes["observe_every"]))
            right = np.array_equal(values, expected)
        if not right:
            raise ValueError(f"{name!r} has numbers that no audit has")
        found[name] = (array.dims, values)
    return found


def check_memory(arrays: Iterable[Array]) -> None:
    """Raise a ValueError if the free memory does not hold these arrays."""
    needed, free = sum(array.bytes for array in arrays), devices.free_bytes(torch.device("cpu"))
    if needed > free:
        raise ValueError(f"it takes {needed / 2**30:,.1f} GiB of memory, and {free / 2**30:,.1f} GiB are free")


def decoded_array(name: str, array: Array, files: Mapping[str, bytes]) -> NDArray[np.generic]:
    """The numbers of one array. Chunks that are not stored are filled, as zarr does."""
    values = np.full(array.shape, float(array.fill), np.dtype(array.dtype))
    for file, content in files.items():
        place = array.place(file[len(name) + 1 :]) if file.startswith(f"{name}/c/") else None
        if place is None:
            continue
        raw = decompressed(content, array.chunk_bytes, file)
        chunk = np.frombuffer(raw, values.dtype.newbyteorder("<")).reshape(array.chunks)
        region = tuple(slice(i * size, (i + 1) * size) for i, size in zip(place, array.chunks, strict=True))
        part = values[region]
        part[...] = chunk[tuple(slice(size) for size in part.shape)]
    return values


def decompressed(content: bytes, size: int, name: str) -> bytes:
    """What is in a zstd frame of exactly this size.

    The size is read from the frame's header before anything is decoded: a few bytes can stand for many GiB.

    Raises:
        ValueError: if it is not one frame, or one of another size.
    """
    if _size_of_frame(content) != size:
        raise ValueError(f"{name} is not {size:,} bytes, compressed by zstd in one frame")
    try:
        return bytes(Zstd().decode(content))
    except RuntimeError as error:
        raise ValueError(f"{name} is not what zstd writes: {error}") from None


def _size_of_frame(content: bytes) -> int | None:
    """The size in the header of a zstd frame; None without one, or if anything follows the frame (RFC 8878)."""
    if content[:4] != MAGIC or len(content) < 6:
        return None
    about = content[4]
    single, length = about >> 5 & 1, (1, 2, 4, 8)[about >> 6]
    if about >> 6 == 0 and not single:
        return None
    at = 5 + (not single) + (0, 1, 2, 4)[about & 3]
    size = int.from_bytes(content[at : at + length], "little") + (256 if length == 2 else 0)
    at += length
    last = 0
    while not last:
        block = int.from_bytes(content[at : at + 3], "little")
        if at + 3 > len(content):
            return None
        last, kind = block & 1, block >> 1 & 3
        at += 3 + (1 if kind == 1 else block >> 3)
    return size if at + 4 * (about >> 2 & 1) == len(content) else None
