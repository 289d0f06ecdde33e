"""The look of all figures: one style sheet, and one colour and marker for each meaning."""

from __future__ import annotations

import textwrap
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure, FigureBase
from matplotlib.text import Annotation, Text

from dpsub._core import checks
from dpsub.estimators import LowerBound
from dpsub.figures.arguments import on_axes, text

STYLE = "dpsub.figures.dpsub"
"""The style of all figures, for `plt.style.use`."""
SINGLE = (3.4, 2.4)
"""The size of a single figure, in inches."""
DOUBLE = (6.8, 2.6)
"""The size of a figure with two panels or more, in inches."""

# Okabe and Ito's palette, safe for colour-blind readers; each colour comes with a marker or a line style.
LOOKS: dict[str, dict[str, Any]] = {
    "substitute": {"color": "black", "linestyle": "--", "label": r"$\varepsilon_S$ (accounting)"},
    "group": {"color": "black", "linestyle": ":", "label": r"$\varepsilon_S$ (group privacy)"},
    "add_remove": {"color": "0.55", "linestyle": "-", "label": r"$\varepsilon_{AR}$ (accounting)"},
    "ceiling": {"color": "0.75", "linestyle": (0, (1, 3)), "label": "ceiling of these runs"},
    "S1": {"color": "#0072B2", "marker": "o", "label": "worst-case dataset (S1)"},
    "S2": {"color": "#D55E00", "marker": "s", "label": "crafted gradient (S2)"},
    "S3": {"color": "#009E73", "marker": "^", "label": "crafted input (S3)"},
    "S4": {"color": "#CC79A7", "marker": "v", "label": "mislabeled sample (S4)"},
    "S5": {"color": "#E69F00", "marker": "D", "label": "natural sample (S5)"},
    "S6": {"color": "#882255", "marker": "*", "label": "attribute (S6)"},
    "S2 watched": {"color": "#56B4E9", "marker": "P", "label": "S2, every step watched"},
}
"""The color, marker or line style, and label of each scenario and of each ε, by its name."""

COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9")
"""For several lines of one kind that `LOOKS` does not name."""


ASSUMES = {
    "none": "assumes nothing",
    "gdp": "assumes GDP",
    "mechanism": "assumes the mechanism",
    "product": "assumes GDP and independent guesses",
}


def use_style() -> None:
    """Draw all later figures in dpsub's style, in notebooks as SVG."""
    plt.style.use(STYLE)
    try:
        from matplotlib_inline.backend_inline import set_matplotlib_formats
    except ImportError:  # no notebook
        return
    set_matplotlib_formats("svg")  # type: ignore[no-untyped-call]


def what_it_rests_on(bound: LowerBound) -> str:
    """A note for legends: what a bound assumes, and "not valid" if it is not."""
    if not isinstance(bound, LowerBound):
        raise ValueError(f"bound must be a LowerBound, got {type(bound).__name__}")
    checks.choice("bound: assumes", bound.assumes, tuple(ASSUMES))
    return ASSUMES[bound.assumes] + ("" if bound.valid else "; not valid")


OWN = {"color": "0.25", "marker": "X"}  # for scenarios that `LOOKS` does not name


def broken(long: str, width: int) -> str:
    """The text in lines of at most `width` characters."""
    return "\n".join(textwrap.wrap(long, width, drop_whitespace=False, replace_whitespace=False)) or long


def literal(label: object) -> str:
    """A label that matplotlib draws as it is written: without reading math, and in a legend whatever it begins with.

    Long labels are broken into lines.
    """
    escaped = broken(str(label), 40).replace("$", r"\$")
    return f" {escaped}" if escaped.startswith("_") else escaped


def looks(name: str, **changes: Any) -> dict[str, Any]:
    """The look of `name`, as arguments of any matplotlib call that draws lines."""
    known = LOOKS.get(name) if isinstance(name, str) else None
    return {**(known or {**OWN, "label": literal(name)}), **changes}


def tag(ax: Axes, name: str) -> Annotation:
    """Write a panel's label above its left corner, as it is: without reading math."""
    on_axes(ax=ax)
    return ax.annotate(
        broken(text("name", name), 40),
        (0.03, 1.0),
        xycoords="axes fraction",
        ha="left",
        va="bottom",
        weight="bold",
        parse_math=False,
    )


def name_source(figure: Figure, source: str) -> Text:
    """Write below a figure, small, what it was made from, as it is: without reading math."""
    if not isinstance(figure, FigureBase):
        raise ValueError(f"figure must be a matplotlib figure, got {type(figure).__name__}")
    return figure.supxlabel(broken(text("source", source), 100), fontsize=7, color="0.35", parse_math=False)
