"""The layout of an audit as a zarr group: variables as xarray reads them, and the canaries."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.codecs import ZstdCodec
from zarr.core.buffer import Buffer, default_buffer_prototype
from zarr.storage import MemoryStore

from dpsub._core.canary_pair import CanaryPair, Record
from dpsub.audits.any_plans import AnyPlan
from dpsub.audits.one_run_plans import MODEL
from dpsub.audits.plans import Arrays, Plan, Shard
from dpsub.audits.storage.documents import OTHER, VARIABLE
from dpsub.audits.storage.layout import LEARNED
from dpsub.audits.training_plans import TrainingPlan

World = NDArray[np.float32] | Record


def skeleton(plan: AnyPlan) -> dict[str, bytes]:
    """The files of an audit of which no shard is stored yet."""
    files: dict[str, Buffer] = {}
    store: Any = MemoryStore(files)
    root = zarr.create_group(store, zarr_format=3)
    for name, variable in plan.variables.items():
        sizes = {"run": plan.cut.shard_runs, MODEL: plan.cut.shard_runs, "repeat": 1}
        chunks = [min(size, sizes.get(dim, size)) for dim, size in zip(variable.dims, variable.shape, strict=True)]
        root.create_array(
            name,
            shape=variable.shape,
            chunks=tuple(chunks),
            dtype=variable.dtype,
            fill_value=variable.fill,
            compressors=ZstdCodec(level=VARIABLE),
            dimension_names=variable.dims,
            attributes={**variable.attributes},
        )
    for name, (dim, coordinate) in plan.indexes.items():
        root.create_array(name, data=coordinate, dimension_names=(dim,), compressors=ZstdCodec(level=OTHER))
    root.create_group("shards")
    canary = None if isinstance(plan, TrainingPlan) else root.create_group("canary")
    for name, worlds in worlds_of(plan.canaries).items():
        labels = [world.y for world in worlds if isinstance(world, Record)]
        arrays = [world.x if isinstance(world, Record) else world for world in worlds]
        assert canary is not None
        canary.create_array(
            name, data=np.stack(arrays), attributes={"labels": labels}, compressors=ZstdCodec(level=OTHER)
        )
    learned = plan.learning.learned if isinstance(plan, Plan) and plan.learning is not None else None
    if learned is not None:
        for name, values in zip(LEARNED, (learned.coefficients, learned.directions), strict=True):
            root.create_array(name, data=values, compressors=ZstdCodec(level=OTHER))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Consolidated metadata is currently not part")
        zarr.consolidate_metadata(store)  # xarray reads it
    return {name: content.to_bytes() for name, content in files.items()}


class Chunks:
    """Encodes the numbers of shards as files. The arrays are opened once for all shards."""

    def __init__(self, plan: AnyPlan, files: Mapping[str, bytes]) -> None:
        self._plan = plan
        self._files = buffers(files)
        group: Any = zarr.open_group(MemoryStore(self._files), mode="r+")
        with zarr.config.set({"array.write_empty_chunks": True}):  # those of failed runs too
            self._arrays = {name: group[name] for name in plan.variables}

    def __call__(self, shard: Shard, arrays: Arrays) -> dict[str, bytes]:
        before = set(self._files)
        for name, values in arrays.items():
            self._arrays[name][self._plan.region(name, shard)] = values
        return {name: self._files.pop(name).to_bytes() for name in sorted(self._files.keys() - before)}


def buffers(files: Mapping[str, bytes]) -> dict[str, Buffer]:
    """The files as zarr holds them in memory."""
    kind = default_buffer_prototype().buffer
    return {name: kind.from_bytes(content) for name, content in files.items()}


def worlds_of(canaries: tuple[CanaryPair, ...]) -> dict[str, list[World]]:
    """z and z′ of each canary; no "z_prime" if the slot is empty in the other world."""
    if not canaries:
        return {}
    worlds: dict[str, list[World]] = {"z": [canary.z for canary in canaries]}
    others: list[World] = [canary.z_prime for canary in canaries if canary.z_prime is not None]
    return {**worlds, "z_prime": others} if others else worlds
