"""How results that are kept in a file were made."""

import platform
from datetime import UTC, datetime

from dpsub import audits


def how_made(seconds):
    """Date, machine, commit, seconds, and the versions of libraries."""
    here, libraries = audits.made_here("cpu"), ("numpy", "scipy", "torch")
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "machine": f"{platform.machine()}, {platform.system()}",
        "commit": here["commit"],
        "seconds": seconds,
        **{name: here[f"version_{name}"] for name in libraries},
    }
