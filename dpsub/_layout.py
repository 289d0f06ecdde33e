"""What an audit looks like as a zarr group: variables as xarray reads them, and the canaries."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.core.buffer import Buffer
from zarr.storage import MemoryStore

from dpsub import _dataset
from dpsub._plans import Arrays, Plan, Shard
from dpsub.canaries import CanaryPair, Record

SAME_CANARY = 1e-3  # of its norm: one that was crafted again, elsewhere, differs in its last digits

Files = dict[str, Buffer]


def skeleton(plan: Plan) -> Files:
    """The files of an audit before any of its shards is there."""
    files: Files = {}
    store: Any = MemoryStore(files)
    root = zarr.create_group(store)
    for name, variable in plan.variables.items():
        sizes = {"run": plan.shard_runs, "repeat": 1}
        chunks = [min(size, sizes.get(dim, size)) for dim, size in zip(variable.dims, variable.shape, strict=True)]
        root.create_array(
            name,
            shape=variable.shape,
            chunks=tuple(chunks),
            dtype=variable.dtype,
            fill_value=variable.fill,
            dimension_names=variable.dims,
            attributes={"long_name": _dataset.LONG_NAMES[name]},
        )
    for name, coordinate in plan.coordinates.items():
        root.create_array(name, data=coordinate, dimension_names=(name,))
    root.create_group("shards")
    canary = root.create_group("canary")
    for name, worlds in _worlds(plan.canaries).items():
        labels = [world.y for world in worlds if isinstance(world, Record)]
        arrays = [world.x if isinstance(world, Record) else world for world in worlds]
        canary.create_array(name, data=np.stack(arrays), attributes={"labels": labels})
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Consolidated metadata is currently not part")
        zarr.consolidate_metadata(store)  # xarray looks for it
    return files


class Chunks:
    """Makes the files that hold the numbers of a shard, with arrays that are opened once."""

    def __init__(self, plan: Plan, files: Files) -> None:
        self._plan = plan
        self._files = dict(files)
        group: Any = zarr.open_group(MemoryStore(self._files), mode="r+")
        self._arrays = {name: group[name] for name in plan.variables}

    def __call__(self, shard: Shard, arrays: Arrays) -> dict[str, bytes]:
        before = set(self._files)
        for name, values in arrays.items():
            self._arrays[name][self._plan.region(name, shard)] = values
        return {name: self._files.pop(name).to_bytes() for name in sorted(self._files.keys() - before)}


def stored_canaries(path: Path, asked: tuple[CanaryPair, ...]) -> tuple[CanaryPair, ...] | None:
    """The canaries that are stored, if those asked for are the same but for rounding."""
    group: Any = zarr.open_group(path / "canary", mode="r")
    worlds = _worlds(asked)
    if set(worlds) != set(group):
        return None
    stored: dict[str, list[Any]] = {}
    for name, given in worlds.items():
        arrays, labels = group[name][:], group[name].attrs["labels"]
        stored[name] = [Record(x, y) for x, y in zip(arrays, labels, strict=True)] if labels else list(arrays)
        if len(given) != len(arrays) or not all(map(_nearly_equal, given, stored[name])):
            return None
    return tuple(replace(canary, **{name: stored[name][i] for name in stored}) for i, canary in enumerate(asked))


def _worlds(canaries: tuple[CanaryPair, ...]) -> dict[str, list[NDArray[np.float32] | Record]]:
    """z and z′ of each canary; no z′ where the slot is empty."""
    worlds = {"z": [canary.z for canary in canaries]}
    others = [canary.z_prime for canary in canaries if canary.z_prime is not None]
    return {**worlds, "z_prime": others} if others else worlds


def _nearly_equal(one: NDArray[np.float32] | Record, other: NDArray[np.float32] | Record) -> bool:
    if isinstance(one, Record) != isinstance(other, Record):
        return False
    if isinstance(one, Record) and isinstance(other, Record):
        return one.y == other.y and _nearly_equal(one.x, other.x)
    x, y = np.asarray(one, dtype=np.float64), np.asarray(other, dtype=np.float64)
    return x.shape == y.shape and bool(np.linalg.norm(x - y) <= SAME_CANARY * np.linalg.norm(y))
