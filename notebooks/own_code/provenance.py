"""How results that are kept in a file were made."""

import platform
from datetime import UTC, datetime
from importlib.metadata import version

from dpsub._core.provenance import commit, versions

__all__ = ["commit", "how_made", "versions"]


def how_made(seconds):
    """Date, machine, commit, seconds, and the versions of libraries."""
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "machine": f"{platform.machine()}, {platform.system()}",
        "commit": commit(),
        "seconds": seconds,
        **{name: version(name) for name in ("numpy", "scipy", "torch")},
    }
