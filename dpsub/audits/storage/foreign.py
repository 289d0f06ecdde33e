"""What in a store's folder does not belong to its audit. A folder with anything of that kind is never written."""

from __future__ import annotations

from pathlib import Path

from dpsub.audits.storage.files import PARTIAL, SYSTEM, below
from dpsub.audits.storage.layout import Layout


def leftovers(path: Path, layout: Layout) -> list[str]:
    """The temporary files that a killed writer of this audit left.

    Raises:
        ValueError: if the folder holds anything that a writer of this audit does not make, a link or a folder in the
            place of a file included. Files that systems make, such as `.DS_Store`, are left alone.
    """
    found = []
    for name, kind in below(path) if path.is_dir() else ():
        ours = (kind == "a file" and layout.owns(name)) or (kind == "a folder" and layout.owns_folder(name))
        if ours and name.endswith(PARTIAL):
            found.append(name)
        if not ours and not (kind == "a file" and SYSTEM.fullmatch(name.rpartition("/")[2])):
            raise ValueError(
                f"store must hold only its audit to be written, got {path} with {name!r}, {kind} that does not belong "
                "there: move that away, then the same call goes on"
            )
    return found
