"""Executed copies of the notebooks: what papermill executes, and what the site shows of it.

JupyterLab evaluates the expressions of a notebook's prose, {eval}`expression`, by itself; papermill does not. In the
copy that papermill executes, a code cell behind each markdown cell evaluates its expressions, and one behind the last
cell evaluates all of them again, since that is when JupyterLab does.
"""

from __future__ import annotations

import json
import platform
import re
import sys
from functools import cache
from hashlib import sha256
from importlib.metadata import distributions
from pathlib import Path

import nbformat
from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parent.parent
EXPRESSION = re.compile(r"\{eval\}`([^`]+)`")
MARKUP = re.compile(r"([\\`*_$\[\]<>{}|])")
EVALUATES = "inline-values"  # the tag of cells that stand in the prepared copy only
TEXTS = "application/vnd.dpsub.inline-values+json"
EVALUATE = """\
from IPython.display import display as _display

_texts = {{{items}}}
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
CODE_AND_RESULTS = ("dpsub", "studies", "book/explorers", "results")
INJECTED = "injected-parameters"  # papermill's tag
PRESET_OF_PAGE = "# What this page was made with, where it differs"  # for papermill's own comment
WIDGET = "application/vnd.jupyter.widget-view+json"
READS_BEST = "*Reads best on the book's site, or in JupyterLab with `` pip install 'dpsub[notebooks]' ``.*"

NEEDS = """\
# This notebook uses studies and kept results of dpsub's repository, which the package does not hold.
from importlib.util import find_spec

if find_spec("studies") is None:
    raise ModuleNotFoundError(
        "This notebook needs dpsub's repository: in a copy of it, run "
        "pip install --editable '.[notebooks]' and open notebooks/{name}"
    )"""


class NotReady(Exception):
    """An executed notebook that must not be published."""


def tags(cell: NotebookNode) -> list[str]:
    return list(cell.metadata.get("tags", []))


def expressions(cell: NotebookNode) -> list[str]:
    """The expressions of a markdown cell's prose."""
    return EXPRESSION.findall(cell.source) if cell.cell_type == "markdown" else []


def evaluating(wanted: list[str]) -> NotebookNode:
    """A cell that displays the text of each expression."""
    items = "".join(f"{expression!r}: ({expression}), " for expression in dict.fromkeys(wanted))
    return nbformat.v4.new_code_cell(EVALUATE.format(items=items, mime=TEXTS), metadata={"tags": [EVALUATES]})


def prepare(source: Path, target: Path) -> None:
    """Write the copy that papermill executes, which evaluates the expressions of its prose where they stand."""
    notebook = nbformat.read(source, as_version=4)
    cells = []
    for cell in notebook.cells:
        wanted = expressions(cell)
        cells += [cell, evaluating(wanted)] if wanted else [cell]
    everything = [expression for cell in cells for expression in expressions(cell)]
    notebook.cells = [*cells, evaluating(everything)] if everything else cells
    target.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, target)


@cache
def surroundings(root: Path) -> str:
    """A digest of what every notebook may depend on: code, kept results, and the installed packages."""
    parts = [sys.version, platform.platform(), *sorted(f"{d.name} {d.version}" for d in distributions())]
    for path in sorted(path for folder in CODE_AND_RESULTS for path in (root / folder).rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            parts += [path.relative_to(root).as_posix(), sha256(path.read_bytes()).hexdigest()]
    return sha256("\n".join(parts).encode()).hexdigest()


def made_from(source: Path, parameters: dict[str, object], device: str) -> str:
    """A digest of what an execution of this notebook depends on."""
    given = json.dumps(parameters, sort_keys=True)
    parts = [source.read_text(), EVALUATE, given, device, surroundings(source.parent.parent)]
    return sha256("\n".join(parts).encode()).hexdigest()


def is_made_from(copy: Path, digest: str) -> bool:
    """Whether this is a complete execution of what the digest stands for."""
    try:
        metadata = nbformat.read(copy, as_version=4).metadata
    except (OSError, ValueError):
        return False
    return bool(metadata.get(KEY) == digest)


def check(executed: NotebookNode, source: NotebookNode, name: str) -> None:
    """Refuse the copy that papermill leaves of a run that failed or was interrupted, and a run of another source."""
    again = f"execute it again (`make notebooks`, or `make rerun PRESET=...`) and look at what {name}.ipynb raises"
    if KEY not in executed.metadata:  # written once every cell has run
        raise NotReady(f"{name}: it was not executed to its end: {again}")
    cells = [cell.source for cell in executed.cells if not {INJECTED, EVALUATES} & set(tags(cell))]
    if cells != [cell.source for cell in source.cells]:
        raise NotReady(f"{name}: notebooks/{name}.ipynb has changed since: {again}")


def filled(notebook: NotebookNode, name: str) -> NotebookNode:
    """The notebook with texts in place of expressions, and without the cells that evaluated them."""
    cells: list[NotebookNode] = []
    for cell, following in zip(notebook.cells, [*notebook.cells[1:], None], strict=True):
        if expressions(cell):
            outputs = following.get("outputs", []) if following is not None else []
            texts = next((output["data"][TEXTS] for output in outputs if TEXTS in output.get("data", {})), {})
            for expression in expressions(cell):
                if expression not in texts:
                    raise NotReady(
                        f"{name}: {{eval}}`{expression}` has no executed value: execute it by `make notebooks`"
                    )
            plain = {name: MARKUP.sub(r"\\\1", re.sub(r"^-(?=\d)", "−", text)) for name, text in texts.items()}
            cell.source = EXPRESSION.sub(lambda match, plain=plain: plain[match[1]], cell.source)
        if EVALUATES not in tags(cell):
            cells.append(cell)
    notebook.cells = cells
    return notebook


def as_download(source: NotebookNode, name: str) -> NotebookNode:
    """The notebook as the site offers it: without what serves the book, and with what it needs beyond the package."""
    cells = [cell for cell in source.cells if "from studies.glue import" not in cell.source]
    if any("from studies" in cell.source or "from book" in cell.source for cell in cells):
        needs = nbformat.v4.new_code_cell(NEEDS.format(name=name), id="needs")
        cells = [cells[0], needs, *cells[1:]]
    return NotebookNode(source | {"cells": cells})


def as_page(executed: NotebookNode, name: str) -> NotebookNode:
    """The notebook as the site has it: texts for expressions, captions with their figures, its finding on top."""
    import tables  # a batch of notebooks needs no parser of HTML

    page = filled(executed, name)
    for key in ("widgets", "papermill", KEY):
        page.metadata.pop(key, None)
    cells: list[NotebookNode] = []
    for cell in page.cells:
        if "caption" in tags(cell):
            figure = cells[-1].metadata.get("mystnb", {}).get("figure") if cells else None
            if not figure or "caption" in figure:
                raise NotReady(f"{name}: this caption has no figure of its own above it: {cell.source[:60]!r}")
            figure["caption"] = cell.source
            continue
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if WIDGET not in output.get("data", {})]
            for output in cell.outputs:
                if "text/html" in output.get("data", {}):
                    output.data["text/html"] = tables.readable(output.data["text/html"])
            if INJECTED in tags(cell):
                cell.source = cell.source.replace(f"{ROOT}/", "../").replace("# Parameters", PRESET_OF_PAGE, 1)
        cells.append(cell)
    title, *others = cells
    title.source = title.source.removesuffix(READS_BEST).rstrip()
    page.cells = [title, *sorted(others, key=lambda cell: "hero" not in tags(cell))]  # the sort is stable
    return page
