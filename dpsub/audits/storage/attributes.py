"""The attributes of a store: what the audit is, and where its shards came from so far."""

from __future__ import annotations

from dpsub.audits.shard_provenance import joined, origin
from dpsub.audits.storage.contents import FORMAT, Contents
from dpsub.audits.storage.documents import Json


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
