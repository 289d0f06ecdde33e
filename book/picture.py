"""Draw the book's claim from the quickstart's numbers: for the opening of the book, light and dark, and as a card.

Web sites and messengers show the card beside a link to the book. Its size is the one that they ask for, 1200 × 630.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import nbformat
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from dpsub import figures

RECORD = "application/papermill.record/text/plain"
CARD = (12.0, 6.3)  # inches, at 100 dots per inch


@dataclass(frozen=True)
class Numbers:
    """What the quickstart found."""

    add_remove: float
    substitute: float
    audited: float
    runs: int


@dataclass(frozen=True)
class Ink:
    """The colours of a drawing."""

    text: str
    paper: str
    add_remove: str
    attack: str


LIGHT = Ink("#222832", "#ffffff", "#8c8c8c", "#d55e00")
DARK = Ink("#ced6dd", "#121212", "#8c959f", "#e8833a")


def numbers(executed: Path) -> Numbers:
    """The numbers that an executed quickstart glued for other pages."""
    outputs = [o for cell in nbformat.read(executed, as_version=4).cells for o in cell.get("outputs", [])]
    glued = {
        output.metadata["scrapbook"]["name"]: float(output.data[RECORD])
        for output in outputs
        if RECORD in output.get("data", {})
    }
    return Numbers(glued["add_remove"], glued["substitute"], glued["audited"], int(glued["runs"]))


def draw(ax: Axes, found: Numbers, ink: Ink, size: float) -> None:
    """Two questions about one training, and how far ε lets the answers go."""
    words = {"color": ink.text, "fontsize": size, "va": "center"}
    small, bold = words | {"fontsize": 0.88 * size}, words | {"weight": "bold"}
    reported, shown, covered = found.add_remove, found.audited, found.substitute
    ax.text(0, 3.02, "Was my record in the training set?", **bold)
    ax.barh(2.48, reported, 0.5, color=ink.add_remove)
    ax.text(reported + 0.2, 2.48, f"ε = {reported:.2f}", **words)
    ax.text(0, 2.02, "add/remove ε, which libraries report", **small)
    ax.text(0, 1.28, "Which of two records was it?", **bold)
    ax.barh(0.74, reported, 0.5, color=ink.add_remove)
    ax.barh(0.74, shown - reported, 0.5, left=reported, color=ink.attack)
    ax.barh(0.74, covered, 0.5, fill=False, edgecolor=ink.text, linestyle="--", linewidth=size / 8)
    ax.text((reported + shown) / 2, 0.74, f"attack: ε ≥ {shown:.2f}", ha="center", **bold | {"color": ink.paper})
    ax.text(covered + 0.2, 0.74, f"ε = {covered:.2f}", **words)
    ax.text(0, 0.28, "dashed: substitute ε, which covers this question", **small)
    ax.set(xlim=(0, covered * 1.25), ylim=(0.1, 3.2))
    ax.axis("off")


def figure(size: tuple[float, float], paper: str) -> Figure:
    """An empty figure that can be saved without a display."""
    made = Figure(figsize=size, facecolor=paper, layout="none")
    FigureCanvasAgg(made)
    return made


def opening(found: Numbers, ink: Ink, path: Path) -> None:
    """The picture beside the opening, on nothing, so that the page's own ground shows."""
    with mpl.rc_context({"svg.hashsalt": "dpsub"}), mpl.style.context(figures.STYLE):
        made = figure((4.0, 2.9), "none")
        draw(made.add_axes((0, 0, 1, 1)), found, ink, 10.5)
        made.savefig(path, transparent=True, metadata={"Date": None})


def card(found: Numbers, path: Path) -> None:
    """The picture for those who send a link to the book."""
    with mpl.style.context(figures.STYLE):
        made = figure(CARD, LIGHT.paper)
        made.text(0.06, 0.87, "Which record was it?", fontsize=44, weight="bold", color=LIGHT.text)
        made.text(
            0.06, 0.785, "Auditing differential privacy under substitute adjacency", fontsize=22, color=LIGHT.text
        )
        draw(made.add_axes((0.06, 0.1, 0.88, 0.62)), found, LIGHT, 24)
        made.text(0.94, 0.045, "dpsub", fontsize=22, color=LIGHT.text, ha="right", weight="bold")
        made.savefig(path, dpi=100)
