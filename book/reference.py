"""What staging adds to the reference pages: the pages on dpsub's names, the gallery, and links to both."""

from __future__ import annotations

from pathlib import Path

import api
import gallery


def stage(staged: Path) -> None:
    """Complete a staged book whose pages and executed notebooks are in their places."""
    api.stage(staged)
    gallery.stage(staged)
