"""HTML for web pages and notebooks that needs no kernel and loads nothing."""

from __future__ import annotations

import json
import re
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
    texts = {name: _in_script(value) for name, value in values.items()} | {"style": ASSETS.joinpath(STYLE).read_text()}
    return Page(re.sub(r"\{\{(\w+)\}\}", lambda found: texts[found[1]], ASSETS.joinpath(template).read_text()))


def _in_script(value: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
