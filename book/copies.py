"""The executed copies of the notebooks: what papermill executes, what a copy was made from, what the site shows of it.

**Numbers in prose**, {eval}`expression`: JupyterLab evaluates them by itself, papermill does not. In the copy that
papermill executes, a code cell behind each markdown cell evaluates its expressions, and one behind the last cell
evaluates all of them again, since that is when JupyterLab does. `filled` puts what they gave into the text.

**What a copy was made from**: its own cells, the parameters, the device, the code in `own_code`, `studies` and
`dpsub`, the files that it reads, and the installed packages. It keeps a digest of each in its metadata, written only
once every cell has run. If any has changed, run.py executes the notebook again. A file of which it is unclear whether
it is used counts as used.
"""

from __future__ import annotations

import ast
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

import nbformat
import tables
from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parent.parent
EXPRESSION = re.compile(r"\{eval\}`([^`]+)`")
TAG = "inline-values"
TEXTS = "application/vnd.dpsub.inline-values+json"
MARKUP = re.compile(r"([\\`*_$\[\]<>{}|])")
EVALUATE = """\
from IPython.display import display as _display

_texts = {{
{items}
}}
_known = globals().get("_known", {{}})
for _expression, _text in _texts.items():
    if not isinstance(_text, str):
        raise TypeError(f"{{{{eval}}}}`{{_expression}}` must give text, got {{_text!r}}: write it as an f-string")
    if _known.setdefault(_expression, _text) != _text:
        raise ValueError(
            f"{{{{eval}}}}`{{_expression}}` must stay what it is, got {{_text!r}} after {{_known[_expression]!r}}: "
            "JupyterLab shows what it is at the end, so give what is assigned again another name"
        )
_display({{{mime!r}: _texts}}, raw=True)
"""
KEY = "made_from"
NEVER = "it was not executed to its end"
LITERAL = re.compile(r"""(?<=["'])([^"'\n]+)(?=["'])""")  # and what stands between two of them
BUILT = ("__pycache__", "_build", ".ipynb_checkpoints")
INJECTED = "injected-parameters"
FOLDED = "hide-input"
SEEN = {"text/plain", "text/html", "text/markdown", "image/svg+xml", "image/png"}
WIDGET = "application/vnd.jupyter.widget-view+json"
GLUES = "from own_code.glue import"
HERO = "hero"
READS_BEST = "*Reads best on the book's site, or in JupyterLab with `` pip install 'dpsub[notebooks]' ``.*"


def expressions(cell: NotebookNode) -> list[str]:
    """What a markdown cell's prose asks for; none in a code cell."""
    return EXPRESSION.findall(cell.source) if cell.cell_type == "markdown" else []


def evaluates(cell: NotebookNode) -> bool:
    """Whether the cell stands in the prepared copy only."""
    return TAG in cell.metadata.get("tags", [])


def evaluating(wanted: list[str]) -> NotebookNode:
    """A cell that displays the text of each expression."""
    items = "\n".join(f"    {expression!r}: ({expression})," for expression in dict.fromkeys(wanted))
    source = EVALUATE.format(items=items, mime=TEXTS)
    return nbformat.v4.new_code_cell(source, metadata={"tags": [TAG]})


def prepared(source: Path) -> NotebookNode:
    """A copy of a notebook that evaluates the expressions of its prose where they stand."""
    notebook = nbformat.read(source, as_version=4)
    cells = []
    for cell in notebook.cells:
        wanted = expressions(cell)
        cells += [cell, evaluating(wanted)] if wanted else [cell]
    everything = [expression for cell in cells for expression in expressions(cell)]
    notebook.cells = [*cells, evaluating(everything)] if everything else cells
    return notebook


def prepare(source: Path, target: Path) -> None:
    """Write that copy where papermill executes it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(prepared(source), target)


def texts(cell: NotebookNode) -> dict[str, str]:
    """What an executed cell says of its expressions."""
    found = [output["data"][TEXTS] for output in cell.get("outputs", []) if TEXTS in output.get("data", {})]
    return found[0] if found else {}


def filled(notebook: NotebookNode) -> NotebookNode:
    """The notebook with texts in place of expressions, and without the cells that evaluated them.

    Raises:
        KeyError: with the expression, if one was not evaluated behind its cell.
    """
    cells: list[NotebookNode] = []
    for cell, following in zip(notebook.cells, [*notebook.cells[1:], NotebookNode()], strict=True):
        if expressions(cell):
            known = texts(following)
            cell.source = EXPRESSION.sub(lambda found, known=known: literal(known[found[1]]), cell.source)
        if not evaluates(cell):
            cells.append(cell)
    notebook.cells = cells
    return notebook


def for_readers(notebook: NotebookNode) -> NotebookNode:
    """The notebook without the cell that leaves numbers for other pages: it needs `own_code`, which a copy may lack."""
    notebook.cells = [cell for cell in notebook.cells if GLUES not in cell.source]
    return notebook


def literal(text: str) -> str:
    """A text that Markdown shows as it is."""
    return MARKUP.sub(r"\\\1", text)


def made_from(source: Path, parameters: dict[str, object], device: str) -> dict[str, str]:
    """A digest of each thing that an execution of this notebook depends on, by its name."""
    notebook = prepared(source)
    cells = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    own, text = own_code(cells, source.parent / "own_code"), cells
    text += "".join(path.read_text() for path in own if path.suffix == ".py")
    topics = [path for path in (source.parent.parent / "studies").glob("*/") if f"studies.{path.name}" in text]
    studied = [path for topic in topics for path in own_code(text, topic)]
    text += "".join(path.read_text() for path in studied if path.suffix == ".py")
    given = [value for value in parameters.values() if isinstance(value, str)]
    return {
        "notebook": digest([source.read_text(), *(cell.source for cell in notebook.cells)]),
        "parameters": digest([json.dumps(parameters, sort_keys=True)]),
        "device": digest([device]),
        "own code": digest(of_files([*own, *studied], source.parent.parent)),
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


class NotReady(Exception):
    """An executed notebook that must not be published."""


def check(executed: NotebookNode, source: NotebookNode, name: str) -> None:
    """Refuse what papermill leaves of a run that failed, was interrupted, or was of another source.

    papermill writes its output even when a cell fails, and a book built without execution would publish it.
    """
    again = f"execute it again (`make notebooks`, or `make rerun PRESET=...`) and look at what {name}.ipynb raises"
    record = executed.metadata.get("papermill", {})
    if record.get("exception"):
        raise NotReady(f"{name}: a cell failed: {again}")
    if not record.get("end_time"):
        raise NotReady(f"{name}: it was not executed to its end: {again}")
    added = {INJECTED, TAG}
    cells = [cell for cell in executed.cells if not added & set(cell.metadata.get("tags", []))]
    for i, cell in enumerate(cells):
        if cell.cell_type != "code":
            continue
        if cell.source.strip() and cell.execution_count is None:
            raise NotReady(f"{name}: cell {i} was not executed: {again}")
        if any(output.output_type == "error" for output in cell.outputs):
            raise NotReady(f"{name}: cell {i} shows an error: {again}")
    if [cell.source for cell in cells] != [cell.source for cell in source.cells]:
        raise NotReady(f"{name}: notebooks/{name}.ipynb has changed since: {again}")


def clean(executed: NotebookNode) -> NotebookNode:
    """What a page without a kernel can show: no widgets, readable tables, and the parameters that were used."""
    executed.metadata.pop("widgets", None)
    executed.metadata.pop("papermill", None)
    executed.metadata.pop(KEY, None)
    used = [cell.source for cell in executed.cells if INJECTED in cell.metadata.get("tags", [])]
    executed.cells = [cell for cell in executed.cells if INJECTED not in cell.metadata.get("tags", [])]
    for cell in executed.cells:
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if WIDGET not in output.get("data", {})]
            for output in cell.outputs:
                if "text/html" in output.get("data", {}):
                    output.data["text/html"] = tables.readable(output.data["text/html"])
        tags = cell.metadata.get("tags", [])
        if "parameters" in tags:
            cell.metadata.tags = [tag for tag in tags if tag != "parameters"]
            for values in used:
                cell.source = with_values(cell.source, values.replace(f"{ROOT}/", "../"))
    return executed


def with_values(parameters: str, used: str) -> str:
    """The parameters' block with these values in place of its own, and its comments."""
    values = {name: ast.unparse(value) for name, value in assigned(used)}
    lines = parameters.encode().split(b"\n")  # ast counts bytes
    for name, value in reversed(assigned(parameters)):
        if name in values:
            first, last = value.lineno - 1, value.end_lineno - 1
            new = values[name].replace("'", '"').encode()
            lines[first : last + 1] = [lines[first][: value.col_offset] + new + lines[last][value.end_col_offset :]]
    return b"\n".join(lines).decode()


def assigned(code: str) -> list[tuple[str, ast.expr]]:
    """The names and values of assignments, in their order."""
    return [(node.targets[0].id, node.value) for node in ast.parse(code).body if isinstance(node, ast.Assign)]


def as_page(executed: NotebookNode, name: str) -> NotebookNode:
    """The notebook as the site has it: texts in place of expressions, captions with their figures."""
    try:
        executed = filled(clean(executed))
    except KeyError as missing:
        raise NotReady(
            f"{name}: {{eval}}`{missing.args[0]}` has no executed value: execute it with book/run.py (`make notebooks`)"
        ) from None
    executed.cells[0].source = executed.cells[0].source.removesuffix(READS_BEST).rstrip()
    return with_hero_on_top(without_idle_bars(with_captions(executed, name)))


def with_captions(notebook: NotebookNode, name: str) -> NotebookNode:
    """The notebook with each cell tagged `caption` made the caption of the figure above it."""
    cells: list[NotebookNode] = []
    for cell in notebook.cells:
        if "caption" not in cell.metadata.get("tags", []):
            cells.append(cell)
            continue
        figure = cells[-1].metadata.get("mystnb", {}).get("figure") if cells else None
        if not figure or "caption" in figure:
            raise NotReady(f"{name}: this caption has no figure of its own above it: {cell.source[:60]!r}")
        figure["caption"] = cell.source
    notebook.cells = cells
    return notebook


def without_idle_bars(notebook: NotebookNode) -> NotebookNode:
    """The notebook without bars that unfold code and have nothing beneath them.

    Folded code that shows nothing joins the next code, if that is folded and shows something. Otherwise it is out of
    sight, and stays in the page for the links from names to what they import.
    """
    cells: list[NotebookNode] = []
    silent: list[NotebookNode] = []
    for cell in notebook.cells:
        folded = FOLDED in cell.metadata.get("tags", [])
        if folded and not shows(cell):
            silent.append(cell)
            continue
        if cell.cell_type == "code":
            if folded:
                cell.source = "\n\n".join(one.source for one in [*silent, cell])
            else:
                cells += out_of_sight(silent)
            silent = []
        cells.append(cell)
    notebook.cells = cells + out_of_sight(silent)
    return notebook


def with_hero_on_top(notebook: NotebookNode) -> NotebookNode:
    """The notebook with what is tagged `hero` beneath its title: what the page found, where a reader begins."""
    title, *others = notebook.cells
    hero = [cell for cell in others if HERO in cell.metadata.get("tags", [])]
    below = [cell for cell in others if cell not in hero]
    notebook.cells = [title, *hero, *below]
    return notebook


def shows(cell: NotebookNode) -> bool:
    """Whether a reader of the page sees an output of this code."""
    return any(output.get("name") == "stdout" or SEEN & output.get("data", {}).keys() for output in cell.outputs)


def out_of_sight(cells: list[NotebookNode]) -> list[NotebookNode]:
    for cell in cells:
        cell.metadata.tags = ["no-bar"]  # custom.css
    return cells
