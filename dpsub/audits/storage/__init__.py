"""Audits on disk: a folder that is written shard by shard, or a finished audit in one file."""

from dpsub.audits.storage.store import Store, read

__all__ = ["Store", "read"]
