"""The attributes of a store: what the audit is, and where its shards came from so far."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import xarray as xr
from zarr.storage import MemoryStore

from dpsub.audits.shard_provenance import joined, origin
from dpsub.audits.storage import zarr_layout
from dpsub.audits.storage.contents import FORMAT, Contents, Json


def told(about: Json, contents: Contents) -> Json:
    """The attributes of an audit, with the provenance of the shards that are stored."""
    entries = list(contents.entries.values())
    made = [entry.made for entry in entries]
    found = {"dpsub_store": FORMAT, **about, "models_stored": contents.models}
    if made:
        found |= origin(made)
        found |= {
            "commit": joined(each.commit for each in made),
            "wall_seconds": round(contents.wall_seconds, 3),
            "last_written": max(entry.finished for entry in entries),
        }
    return found


def decoded(files: Mapping[str, bytes], attributes: Json) -> xr.Dataset:
    memory: Any = MemoryStore(zarr_layout.buffers(files), read_only=True)
    with xr.open_dataset(memory, engine="zarr", consolidated=True, chunks=None) as stored:
        found: xr.Dataset = stored.load()
    found.attrs = attributes
    return found
