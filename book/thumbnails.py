"""Small pictures of our figures, beside what the papers claim of theirs."""

from __future__ import annotations

import hashlib
import html
import math
import os
import re
from pathlib import Path
from typing import Any

import nbformat

SVG = "image/svg+xml"
HIGHEST = 220  # pixels
PIXELS = 4 / 3  # a point's, in CSS


def images(notebook: Path) -> dict[str, tuple[str, str, str]]:
    """The figures of an executed notebook: the file that the site keeps each in, its alternative text, its room.

    myst-nb names an image's file by the hash of its contents. So claims show the files that are there already.
    """
    found = {}
    for cell in nbformat.read(notebook, as_version=4).cells:
        about = cell.metadata.get("mystnb", {})
        drawn = [output.data[SVG] for output in cell.get("outputs", []) if SVG in output.get("data", {})]
        if "figure" in about and drawn:
            contents = os.linesep.join(drawn[0].splitlines()).encode()
            file = f"{hashlib.sha256(contents).hexdigest()}.svg"
            found[about["figure"]["name"]] = (file, about["image"]["alt"], room(drawn[0], HIGHEST))
    return found


def room(drawn: str, highest: float = math.inf) -> str:
    """The attributes that keep room for a picture before it is loaded, at most so many pixels high."""
    found = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', drawn)
    if not found:
        return ""
    width, height = (PIXELS * float(points) for points in found.groups())
    scale = min(1, highest / height)
    return f'width="{scale * width:.0f}" height="{scale * height:.0f}"'


def picture(item: dict[str, Any], notebooks: Path) -> str:
    """Our figure of a paper's item, small, as a link to itself; loaded when it comes into view."""
    drawn = images(notebooks / f"{item['notebook']}.ipynb")
    if item["figure"] not in drawn:
        raise ValueError(
            f"book/claims must name a figure that {item['notebook']}.ipynb draws, got {item['figure']!r} for "
            f"{item['item']}: it draws {', '.join(drawn) or 'none'}"
        )
    file, alt, space = drawn[item["figure"]]
    target = f"../notebooks/{item['notebook']}.html#{item['figure'].lower()}"
    shown = f'<img src="../_images/{file}" alt="{html.escape(alt)}" {space} loading="lazy">'
    return f'<a class="dpsub-thumbnail" href="{target}">{shown}</a>'
