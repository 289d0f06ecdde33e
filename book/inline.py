"""Numbers in a notebook's prose, {eval}`expression`: JupyterLab evaluates them by itself, papermill does not.

`prepare` writes the copy that papermill executes: behind each markdown cell that holds expressions stands a code cell
that evaluates them, and behind the last cell one that evaluates them all again, since that is when JupyterLab does.
`filled` puts what they gave into the text.
"""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
from nbformat import NotebookNode

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


def literal(text: str) -> str:
    """A text that Markdown shows as it is."""
    return MARKUP.sub(r"\\\1", text)
