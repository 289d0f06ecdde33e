"""HTML for web pages and notebooks that needs no kernel and loads nothing."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources
from typing import Any

ASSETS = resources.files("dpsub.figures")
STYLE = "page.css"


@dataclass(frozen=True)
class Page:
    """HTML that a notebook displays unchanged."""

    data: str

    def _repr_html_(self) -> str:
        return self.data

    def __repr__(self) -> str:
        return f"Page({len(self.data):,} characters of HTML)"


def filled(template: str, **values: Any) -> Page:
    """A template of this room, with the style sheet for {{style}} and each value, as JSON, for {{its name}}."""
    html = ASSETS.joinpath(template).read_text().replace("{{style}}", ASSETS.joinpath(STYLE).read_text())
    for name, value in values.items():
        html = html.replace("{{" + name + "}}", json.dumps(value, separators=(",", ":")))
    return Page(html)
