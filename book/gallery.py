"""The gallery: every figure, table and algorithm of the papers, with our figure, a verdict and the way to its page."""

from __future__ import annotations

import hashlib
import html
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import yaml

ROOT = Path(__file__).parent.parent
MARK = "<!-- the verdicts and the papers' items, made from gallery.yaml when the book is built -->"
SVG = "image/svg+xml"
VERDICTS = {
    "holds": ("●", "what was run here agrees with the paper, possibly on other data"),
    "holds in part": ("◐", "some of it agrees, or under conditions that are named"),
    "differs": ("○", "what was run here does not agree with the paper"),
    "not at the paper's scale": ("◌", "too little was run to say"),
    "implemented": ("▪", "nothing is claimed that could hold or not; dpsub has it"),
}


def papers() -> list[dict[str, Any]]:
    """The papers with their items."""
    read: list[dict[str, Any]] = yaml.safe_load((ROOT / "book" / "gallery.yaml").read_text())
    return read


def page_of(item: dict[str, Any]) -> str:
    """The page that tells more about an item."""
    return str(item.get("page") or f"notebooks/{item['notebook']}")


def verdict(name: str) -> str:
    """A verdict as a word with a mark of its own, so that no color carries it."""
    return f'<span class="dpsub-verdict"><span aria-hidden="true">{VERDICTS[name][0]}</span> {name}</span>'


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
            f"book/gallery.yaml must name a figure that {item['notebook']}.ipynb draws, got {item['figure']!r} for "
            f"{item['item']}: it draws {', '.join(drawn) or 'none'}"
        )
    file, alt, room = drawn[item["figure"]]
    target = f"../notebooks/{item['notebook']}.html#{item['figure'].lower()}"
    shown = f'<img src="../_images/{file}" alt="{html.escape(alt)}"{room} loading="lazy">'
    return f'<a class="dpsub-thumbnail" href="{target}">{shown}</a>'


def card(item: dict[str, Any], staged: Path) -> Iterator[str]:
    """A figure or a table: what the paper states, what was found, our figure, the verdict and the page."""
    yield ":::{grid-item-card}"
    yield f"**{item['item']} of the paper** {verdict(item['verdict'])}\n"
    if "figure" in item:
        yield f"{picture(item, staged)}\n"
    yield f"{item['claim']}\n"
    if "found" in item:
        yield f"**Here**: {item['found']}\n"
    ours = f"Our {{numref}}`{item['figure']}` in " if "figure" in item else ""
    yield f"{ours}{{doc}}`/{page_of(item)}`"
    yield ":::"


def algorithms(items: list[dict[str, Any]]) -> Iterator[str]:
    """The algorithms of a paper and where dpsub has them."""
    yield "| Algorithm | What it is | In dpsub | Page |\n|---|---|---|---|"
    for item in items:
        code = ", ".join(f"`{name}`" for name in item["code"])
        more = f" {item['found']}" if "found" in item else ""
        yield f"| {item['item']} | {item['claim']}{more} | {code} | {{doc}}`/{page_of(item)}` |"


def paper(of: dict[str, Any], staged: Path) -> str:
    """All items of one paper."""
    shown = [item for item in of["items"] if not item["item"].startswith("Algorithm")]
    listed = [item for item in of["items"] if item["item"].startswith("Algorithm")]
    return "\n".join([
        f"## {of['title']}\n",
        f"{{cite:t}}`{of['paper']}`. Claim by claim, with numbers: {{doc}}`/{of['claims']}`.\n",
        "::::{grid} 1 1 2 2\n:gutter: 3\n",
        *(line for item in shown for line in card(item, staged)),
        "::::\n",
        *algorithms(listed),
    ])  # fmt: skip


def contents(staged: Path) -> str:
    """What stands behind the page's introduction."""
    meanings = "\n".join(f"- {verdict(name)}: {meaning}." for name, (_, meaning) in VERDICTS.items())
    return "\n\n".join([meanings, *(paper(of, staged) for of in papers())]) + "\n"


def stage(staged: Path) -> None:
    """Write the gallery into the staged book, from the staged notebooks."""
    page = staged / "book" / "gallery.md"
    text = page.read_text()
    if MARK not in text:
        raise ValueError(f"book/gallery.md must say where the papers' items stand: {MARK}")
    page.write_text(text.replace(MARK, contents(staged)))
