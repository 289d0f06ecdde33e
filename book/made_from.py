"""What an executed notebook was made from. run.py executes a notebook again if any of it has changed.

A notebook is made from its own cells, the parameters, the device, the code in `own_code` and in `dpsub`, the files
that it reads, and the installed packages. The executed copy keeps a digest of each in its metadata. They are written
only once every cell has run. Where it is unclear whether a file is used, it counts as used.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from hashlib import sha256
from pathlib import Path

import inline
import nbformat
from nbformat import NotebookNode

KEY = "made_from"
NEVER = "it was not executed to its end"
LITERAL = re.compile(r"""(?<=["'])([^"'\n]+)(?=["'])""")  # and what stands between two of them
BUILT = ("__pycache__", "_build", ".ipynb_checkpoints")


def made_from(source: Path, parameters: dict[str, object], device: str) -> dict[str, str]:
    """A digest of each thing that an execution of this notebook depends on, by its name."""
    notebook = inline.prepared(source)
    cells = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    own = own_code(cells, source.parent / "own_code")
    text = "\n".join([cells, *(path.read_text() for path in own if path.suffix == ".py")])
    given = [value for value in parameters.values() if isinstance(value, str)]
    return {
        "notebook": digest([source.read_text(), *(cell.source for cell in notebook.cells)]),
        "parameters": digest([json.dumps(parameters, sort_keys=True)]),
        "device": digest([device]),
        "own code": digest(of_files(own, source.parent)),
        "dpsub": digest(of_files([dpsub_folder()], dpsub_folder())),
        "files": digest(of_files(read_files(text, given, source.parent), source.parent.parent)),
        "packages": digest(packages()),
    }


def changed(copy: Path, now: dict[str, str]) -> list[str]:
    """What has changed since this copy was executed; [] if nothing has."""
    try:
        metadata = nbformat.read(copy, as_version=4).metadata
    except (OSError, ValueError, nbformat.ValidationError):
        return [NEVER]
    before, record = metadata.get(KEY, {}), metadata.get("papermill", {})
    if not before or record.get("exception") or not record.get("end_time"):
        return [NEVER]
    return [part for part in sorted(before.keys() | now.keys()) if before.get(part) != now.get(part)]


def mark(copy: Path, executed: NotebookNode, now: dict[str, str]) -> None:
    """Write down what the executed notebook was made from."""
    executed.metadata[KEY] = now
    nbformat.write(executed, copy)


def own_code(text: str, folder: Path) -> list[Path]:
    """The files of this folder that the text names, those that they name, and so on."""
    files = {path.stem: path for path in folder.glob("*.py")}
    others = [path for path in folder.rglob("*") if path.is_file() and path not in files.values()]
    found: set[str] = set()
    new = files.keys() & set(re.findall(r"\w+", text))
    while new:
        found |= new
        words = {word for name in new for word in re.findall(r"\w+", files[name].read_text())}
        new = (files.keys() & words) - found
    return sorted([files[name] for name in found] + [path for path in others if not set(path.parts) & set(BUILT)])


def read_files(text: str, given: list[str], notebooks: Path) -> list[Path]:
    """The places in the repository, and the files given as parameters, that this text names.

    A name that is completed later (`f"../results/{preset}"`) stands for its whole folder, and the repository itself
    for `results`.
    """
    notebooks = notebooks.resolve()
    root, there = notebooks.parent, {path.name for path in notebooks.iterdir()} | {".."}
    places = set()
    for literal in set(LITERAL.findall(text)):
        name = literal if "{" not in literal else literal[: literal.index("{")].rpartition("/")[0]
        if name.partition("/")[0] in there:
            place = Path(os.path.normpath(notebooks / name))
            place = root / "results" if place == root else place
            if root in place.parents and place != notebooks and not set(place.parts) & set(BUILT):
                places.add(place)
    data = dpsub_data()
    places |= {folder / name for name in given for folder in (notebooks, data) if exists(folder / name)}
    return sorted(places)


def exists(place: Path) -> bool:
    try:
        return place.exists()
    except (OSError, ValueError):  # too long for a file's name, or with characters that none has
        return False


def of_files(places: Iterable[Path], start: Path) -> Iterator[str]:
    """The name and the content of each file, and of each file in a folder."""
    for place in places:
        within = sorted(place.rglob("*")) if place.is_dir() else [place]
        for path in within:
            if not set(path.parts) & set(BUILT) and not path.is_dir():
                name = path.relative_to(start) if path.is_relative_to(start) else path
                yield name.as_posix()
                yield sha256(path.read_bytes()).hexdigest() if path.is_file() else "not there"


def digest(parts: Iterable[str]) -> str:
    return sha256("\0".join(parts).encode()).hexdigest()


def dpsub_folder() -> Path:
    """The folder of the dpsub that a notebook imports, found without importing it."""
    found = importlib.util.find_spec("dpsub")
    if found is None or found.origin is None:
        raise SystemExit("dpsub is not installed in this environment: pip install --editable .")
    return Path(found.origin).parent


def dpsub_data() -> Path:
    """The folder that dpsub looks for data in."""
    from dpsub.data import downloads

    return downloads.folder()


@cache
def packages() -> list[str]:
    """Python, the machine's kind, and each installed package with its version."""
    folders = [Path(entry) for entry in sys.path if entry]
    installed = {path.name for folder in folders for path in folder.glob("*.dist-info")}
    return [sys.version, platform.platform(), platform.machine(), *sorted(installed)]
