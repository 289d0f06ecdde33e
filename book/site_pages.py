"""A Sphinx extension: what the opening page takes from other files, the bibliography as a list, numbers of exercises.

The opening page shows the version, the README's first example with what it prints, an explorer, and the claim of the
book as a picture in the quickstart's numbers. Each is read from its one source, or run, while the book is built.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import claims
import matplotlib as mpl
import yaml
from build import repository_url
from docutils import nodes
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.environment import BuildEnvironment
from sphinx.writers.html5 import HTML5Translator

import dpsub
from book.explorers.pages import training_page
from dpsub import figures

ROOT = Path(__file__).resolve().parent.parent
GREY, ORANGE = "#8c8c8c", "#d55e00"


def fill_in(app: Sphinx, config: Config) -> None:
    """Give the opening page what it takes from elsewhere."""
    url = repository_url(yaml.safe_load((ROOT / "_config.yml").read_text()))
    example = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)[0].strip()
    run = subprocess.run([sys.executable, "-c", example], stdout=subprocess.PIPE, text=True, check=True)
    config.myst_substitutions = {
        **config.myst_substitutions,
        "training": f"```{{raw}} html\n{training_page().data}\n```",
        "version": dpsub.__version__,
        "example": f"```python\n{example}\n```\n\n```text\n{run.stdout.strip()}\n```",
        "repository": f"[{url}]({url})" if url else "the repository that this book was built from",
    }


def draw_claim(ax: Axes, add_remove: float, substitute: float, audited: float) -> None:
    """Two questions about one training, and how far ε lets the answers go."""
    words = {"color": "#222832", "fontsize": 10.5, "va": "center"}
    small, bold = words | {"fontsize": 9.2}, words | {"weight": "bold"}
    ax.text(0, 3.02, "Was my record in the training set?", **bold)
    ax.barh(2.48, add_remove, 0.5, color=GREY)
    ax.text(add_remove + 0.2, 2.48, f"ε = {add_remove:.2f}", **words)
    ax.text(0, 2.02, "add/remove ε, which libraries report", **small)
    ax.text(0, 1.28, "Which of two records was it?", **bold)
    ax.barh(0.74, add_remove, 0.5, color=GREY)
    ax.barh(0.74, audited - add_remove, 0.5, left=add_remove, color=ORANGE)
    ax.barh(0.74, substitute, 0.5, fill=False, edgecolor="#222832", linestyle="--", linewidth=1.3)
    ax.text((add_remove + audited) / 2, 0.74, f"attack: ε ≥ {audited:.2f}", ha="center", **bold | {"color": "white"})
    ax.text(substitute + 0.2, 0.74, f"ε = {substitute:.2f}", **words)
    ax.text(0, 0.28, "dashed: substitute ε, which covers this question", **small)
    ax.set(xlim=(0, substitute * 1.25), ylim=(0.1, 3.2))
    ax.axis("off")


def draw(app: Sphinx) -> None:
    """Draw the picture of the claim into the folder that the book is built from."""
    source = Path(app.srcdir)
    if app.builder.format == "html" and (source / "notebooks" / "quickstart.ipynb").exists():
        glued = claims.Glued(source / "notebooks").values("quickstart")
        with mpl.rc_context({"svg.hashsalt": "dpsub"}), mpl.style.context(figures.STYLE):
            figure = Figure(figsize=(4.0, 2.9), layout="none")
            FigureCanvasAgg(figure)
            draw_claim(figure.add_axes((0, 0, 1, 1)), *(glued[key] for key in ("add_remove", "substitute", "audited")))
            figure.savefig(source / "book" / "images" / "claim.svg", transparent=True, metadata={"Date": None})


def without_live_code(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Leave out the scripts of thebe, which would ask for a kernel elsewhere."""
    for files in ("script_files", "css_files"):
        context[files] = [f for f in context[files] if "thebe" not in f"{f} {getattr(f, 'attributes', '')}".lower()]


def visit_work(self: HTML5Translator, node: nodes.citation) -> None:
    """An entry of the bibliography is a list item, which docutils' role="list" must consist of for screen readers."""
    HTML5Translator.visit_citation(self, node)
    self.body[-1] = self.body[-1].replace('role="doc-biblioentry"', 'role="listitem"')


def list_works(app: Sphinx) -> None:
    app.add_node(nodes.citation, override=True, html=(visit_work, HTML5Translator.depart_citation))


def number_exercises(app: Sphinx, env: BuildEnvironment) -> None:
    """Count the exercises of each page from 1."""
    for numbers in env.toc_fignumbers.values():
        exercises = numbers.get("exercise", {})
        numbers["exercise"] = {name: (i,) for i, name in enumerate(sorted(exercises, key=exercises.get), start=1)}


def setup(app: Sphinx) -> dict[str, bool]:
    list_works(app)
    app.connect("config-inited", fill_in)
    app.connect("builder-inited", draw)
    app.connect("env-check-consistency", number_exercises)  # Sphinx has counted them by then
    app.connect("html-page-context", without_live_code, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
