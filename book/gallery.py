"""The gallery: every figure, table and algorithm of the papers, with our figure, a verdict and the way to its page."""

from __future__ import annotations

import hashlib
import html
import os
import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import claims
import nbformat
from claims import Glued, Paper

MARK = "the papers' items, made from book/claims when the book is built"
SVG = "image/svg+xml"


def images(notebook: Path) -> dict[str, tuple[str, str, str]]:
    """The figures of an executed notebook: the file that the site keeps each in, its alternative text, its size.

    myst-nb names an image's file by the hash of its contents. So the gallery shows the files that are there already.
    """
    found = {}
    for cell in nbformat.read(notebook, as_version=4).cells:
        about = cell.metadata.get("mystnb", {})
        drawn = [output.data[SVG] for output in cell.get("outputs", []) if SVG in output.get("data", {})]
        if "figure" in about and drawn:
            contents = os.linesep.join(drawn[0].splitlines()).encode()
            file = f"{hashlib.sha256(contents).hexdigest()}.svg"
            found[about["figure"]["name"]] = (file, about["image"]["alt"], size(drawn[0]))
    return found


def size(drawn: str) -> str:
    """The attributes that keep room for a picture before it is loaded."""
    found = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', drawn)
    return f' width="{float(found[1]):.0f}" height="{float(found[2]):.0f}"' if found else ""


def picture(item: dict[str, Any], staged: Path) -> str:
    """Our figure, small, as a link to itself; loaded when it comes into view."""
    notebook = staged / "notebooks" / f"{item['notebook']}.ipynb"
    drawn = images(notebook)
    if item["figure"] not in drawn:
        raise ValueError(
            f"book/claims must name a figure that {item['notebook']}.ipynb draws, got {item['figure']!r} for "
            f"{item['item']}: it draws {', '.join(drawn) or 'none'}"
        )
    file, alt, room = drawn[item["figure"]]
    target = f"../notebooks/{item['notebook']}.html#{item['figure'].lower()}"
    shown = f'<img src="../_images/{file}" alt="{html.escape(alt)}"{room} loading="lazy">'
    return f'<a class="dpsub-thumbnail" href="{target}">{shown}</a>'


def card(name: str, items: list[dict[str, Any]], of: Paper, staged: Path, numbers: Glued) -> Iterator[str]:
    """A figure or a table: our figure, what the paper states, what was found, the verdict and the page."""
    first = items[0]
    yield f":::{{grid-item-card}}\n**{name} of the paper**\n"
    if "figure" in first:
        yield f"{picture(first, staged)}\n"
    for item in items:
        _, _, protocol = str(item["item"]).partition(", ")
        yield f"{f'*{protocol}* ' if protocol else ''}{claims.shown(of.verdict(item, numbers))}\n"
        if "claims" in item:
            yield from (f"{part}\n" for part in claims.stated(item, of.answers(item, numbers)))
            yield f"**Here**: {of.told(item['found'], numbers)}\n"
            yield f"**On**: {of.told(item['scale']['ours'], numbers)}\n"
        else:
            yield f"{item['states'][0].upper()}{item['states'][1:]}.\n"
    ours = f"Our {{numref}}`{first['figure']}` in " if "figure" in first else ""
    yield f"{ours}{{doc}}`/{claims.page_of(first)}`\n:::"


def algorithms(items: list[dict[str, Any]]) -> Iterator[str]:
    """The algorithms of a paper and where dpsub has them."""
    yield "| Algorithm | What it is | In dpsub | Page |\n|---|---|---|---|"
    for item in items:
        code = ", ".join(f"`{name}`" for name in item["code"])
        yield f"| {item['item']} | {item['states']} | {code} | {{doc}}`/{claims.page_of(item)}` |"


def paper(of: Paper, staged: Path, numbers: Glued) -> str:
    """All figures, tables and algorithms of one paper."""
    drawn = [item for item in of.items if item["item"].startswith(("Figure", "Table"))]
    listed = [item for item in of.items if item["item"].startswith("Algorithm")]
    return "\n".join([
        f"## {of.title}\n",
        f"{{cite:t}}`{of.key}`. With the papers' sentences and with the scale of each row: {{doc}}`/{of.page}`.\n",
        "::::{grid} 1 1 2 2\n:gutter: 3\n",
        *(line for name, items in groupby(drawn, claims.base) for line in card(name, [*items], of, staged, numbers)),
        "::::\n",
        *algorithms(listed),
    ])  # fmt: skip


def stage(staged: Path) -> None:
    """Write the gallery into the staged book, from the staged notebooks."""
    numbers = Glued(staged / "notebooks")
    page = staged / "book" / "gallery.md"
    claims.put(page, "the verdicts", claims.meanings())
    claims.put(page, MARK, "\n\n".join(paper(of, staged, numbers) for of in claims.papers()))
