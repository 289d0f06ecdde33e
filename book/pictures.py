"""The book's own pictures: its logo, and its claim in the quickstart's numbers, beside the opening and as a card.

The logo shows the densities of an attack's scores in the world with z and in the world with z′; pictures.py writes it
into book/_static. Web sites and messengers show the card beside a link to the book. Its size is the one that they ask
for, 1200 × 630.
"""

from __future__ import annotations

import math
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

STATIC = Path(__file__).resolve().parent / "_static"
SIDE = 32
GROUND, HEIGHT = 28.5, 25.0
SPREAD = 4.1  # standard deviation of each density, in units of the drawing
CENTRES = {"z_prime": 10.9, "z": 21.1}
LOGO_LIGHT = {"z_prime": "#d55e00", "z": "#0072b2"}
LOGO_DARK = {"z_prime": "#e69f00", "z": "#56b4e9"}


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


def density(centre: float) -> str:
    """The outline of one density, closed along the ground."""
    places = [centre + SPREAD * i / 8 for i in range(-20, 21)]
    points = [(x, GROUND - HEIGHT * math.exp(-(((x - centre) / SPREAD) ** 2) / 2)) for x in places]
    curve = " ".join(f"L{x:.2f} {y:.2f}" for x, y in points)
    return f"M{points[0][0]:.2f} {GROUND}{curve}L{points[-1][0]:.2f} {GROUND}Z"


def logo(colours: dict[str, str], otherwise: dict[str, str] | None = None) -> str:
    """The logo in these colours, and in others where the reader's system is dark."""
    rules = [f".{world}{{fill:{colour}}}" for world, colour in colours.items()]
    if otherwise:
        dark = "".join(f".{world}{{fill:{colour}}}" for world, colour in otherwise.items())
        rules.append(f"@media (prefers-color-scheme: dark){{{dark}}}")
    curves = "".join(
        f'<path class="{world}" fill-opacity="{opacity}" d="{density(CENTRES[world])}"/>'
        for world, opacity in (("z_prime", 1), ("z", 0.82))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {SIDE} {SIDE}" role="img" aria-label="dpsub">'
        f"<style>{''.join(rules)}</style>{curves}</svg>\n"
    )


def logos() -> dict[str, str]:
    """What is kept in book/_static, by name."""
    return {
        "logo.svg": logo(LOGO_LIGHT),
        "logo-dark.svg": logo(LOGO_DARK),
        "favicon.svg": logo(LOGO_LIGHT, LOGO_DARK),
    }


if __name__ == "__main__":
    for name, text in logos().items():
        (STATIC / name).write_text(text)
