"""How things look in every figure: one style, one colour and marker for one meaning."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text

from dpsub.estimators import LowerBound

STYLE = "dpsub.figures.dpsub"  # plt.style.use(figures.STYLE)
SINGLE, DOUBLE = (3.4, 2.4), (6.8, 2.6)  # inches

# One look for one meaning, in every figure; colours from Okabe and Ito's palette, never without a marker or a dash.
LOOKS: dict[str, dict[str, Any]] = {
    "substitute": {"color": "black", "linestyle": "--", "label": r"$\varepsilon_S$ (accounting)"},
    "group": {"color": "black", "linestyle": ":", "label": r"$\varepsilon_S$ (group privacy)"},
    "add_remove": {"color": "0.55", "linestyle": "-", "label": r"$\varepsilon_{AR}$ (accounting)"},
    "ceiling": {"color": "0.75", "linestyle": (0, (1, 3)), "label": "most that these runs can show"},
    "S1": {"color": "#0072B2", "marker": "o", "label": "worst-case dataset (S1)"},
    "S2": {"color": "#D55E00", "marker": "s", "label": "crafted gradient (S2)"},
    "S3": {"color": "#009E73", "marker": "^", "label": "crafted input (S3)"},
    "S4": {"color": "#CC79A7", "marker": "v", "label": "mislabeled sample (S4)"},
    "S5": {"color": "#E69F00", "marker": "D", "label": "natural sample (S5)"},
    "S2 watched": {"color": "#56B4E9", "marker": "P", "label": "S2, every step watched"},
}

COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9")  # where a line is one of several alike


ASSUMES = {"none": "assumes nothing", "gdp": "assumes GDP", "mechanism": "assumes the mechanism"}


def use_style() -> None:
    """Draw in dpsub's style from here on; in a notebook, as vector graphics."""
    plt.style.use(STYLE)
    try:
        from matplotlib_inline.backend_inline import set_matplotlib_formats
    except ImportError:  # no notebook
        return
    set_matplotlib_formats("svg")  # type: ignore[no-untyped-call]


def what_it_rests_on(bound: LowerBound) -> str:
    """For a legend: what has to hold for a bound to mean anything, and whether it keeps its promise then."""
    return ASSUMES[bound.assumes] + ("" if bound.valid else "; not valid")


OWN = {"color": "0.25", "marker": "X"}  # a scenario that somebody else named


def looks(name: str, **changes: Any) -> dict[str, Any]:
    """How to draw what is called `name`, for any matplotlib call that draws lines."""
    return {**LOOKS.get(name, {**OWN, "label": name}), **changes}


def tag(ax: Axes, name: str) -> Annotation:
    """What tells a panel from its neighbours, in its corner."""
    return ax.annotate(name, (0.03, 1.0), xycoords="axes fraction", ha="left", va="bottom", weight="bold")


def name_source(figure: Figure, source: str) -> Text:
    """What the figure was made of, small, below it."""
    return figure.supxlabel(source, fontsize=7, color="0.35")
