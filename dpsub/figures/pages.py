"""HTML for web pages and notebooks that needs no kernel and loads nothing."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

ASSETS = resources.files("dpsub.figures") / "assets"
STYLE = "page.css"


@dataclass(frozen=True)
class Page:
    """HTML that a notebook displays unchanged."""

    data: str

    def _repr_html_(self) -> str:
        return self.data

    def __repr__(self) -> str:
        return f"Page({len(self.data):,} characters of HTML)"


def filled(template: str | Path, **values: Any) -> Page:
    """A template of this room's assets, or of the path.

    {{style}} stands for the style sheet, {{its name}} for each value, as JSON, and any other {{name}} for the script or
    the piece of HTML of that name.
    """
    texts = {name: _in_script(value) for name, value in values.items()}

    def text(found: re.Match[str]) -> str:
        name = found[1]
        if name in texts:
            return texts[name]
        if name == "style":
            return ASSETS.joinpath(STYLE).read_text()
        script = ASSETS.joinpath(f"{name}.js")
        return (script if script.is_file() else ASSETS.joinpath(f"{name}.html")).read_text()

    source = template if isinstance(template, Path) else ASSETS.joinpath(template)
    return Page(re.sub(r"\{\{(\w+)\}\}", text, source.read_text()))


def _in_script(value: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
