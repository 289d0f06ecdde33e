"""The look of all figures: one style sheet, and one colour and marker for each meaning."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text

from dpsub._core import checks
from dpsub.estimators import LowerBound

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
    "claimed": {"color": "black", "linestyle": "-.", "label": r"claimed $\varepsilon$"},
    "ceiling": {"color": "0.5", "linestyle": (0, (1, 3)), "label": "ceiling of these runs"},
    "S1": {"color": "#0072B2", "marker": "o", "label": "worst-case dataset (S1)"},
    "S2": {"color": "#D55E00", "marker": "s", "label": "crafted gradient (S2)"},
    "S3": {"color": "#009E73", "marker": "^", "label": "crafted input (S3)"},
    "S4": {"color": "#CC79A7", "marker": "v", "label": "mislabeled sample (S4)"},
    "S5": {"color": "#E69F00", "marker": "D", "label": "natural sample (S5)"},
    "S6": {"color": "#882255", "marker": "*", "label": "attribute (S6)"},
    "S2 watched": {"color": "#56B4E9", "marker": "P", "label": "crafted gradient (S2), every step seen"},
}
"""The color, marker or line style, and label of each scenario and of each ε, by its name."""

PALETTES: dict[str, tuple[str, ...]] = {
    "rate": ("#B3A2D9", "#8A6FC0", "#6443A4", "#42207A", "#1F0845"),  # sample rates, from light to dark
    "valid": ("#01665E", "#35978F", "#00332B"),  # rules that give valid bounds
    "not valid": ("#8C510A", "#BF812D", "#543005"),  # rules that do not
    "world": ("black", "0.6"),  # the world with z, the world with z′
    "kind": ("#332288", "#CC6677", "#117733", "#999933", "#AA4499"),  # models, canaries, losses, and all else
}
"""Colours for what is no scenario, by what they tell apart: no colour means two things. Markers and line styles come
with them."""
COLORS = PALETTES["kind"]
"""The palette of models, canaries, losses, and of all else that has none of its own."""

RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
ASSUMES = {
    "none": "assumes nothing",
    "gdp": "assumes GDP",
    "mechanism": "assumes the mechanism",
    "product": "assumes GDP and independent guesses",
    "proxy": "assumes the proxy",
}


def use_style() -> None:
    """Draw all later figures in dpsub's style, in notebooks as SVG."""
    plt.style.use(STYLE)
    try:
        from matplotlib_inline.backend_inline import set_matplotlib_formats
    except ImportError:  # no notebook
        return
    set_matplotlib_formats("svg")  # type: ignore[no-untyped-call]


def number(value: float, *, digits: int = 3) -> str:
    """A number as a text writes it: with commas, and small and large ones as powers of ten.

    Args:
        value: any finite number.
        digits: how many significant digits are kept at most. Whole numbers below ten millions keep all of theirs.

    >>> number(20000), number(0.0625), number(1e-5), number(2.5e-6)
    ('20,000', '0.0625', '10⁻⁵', '2.5·10⁻⁶')
    """
    value = checks.real("value", value)
    size = abs(value)
    if value == 0 or (size < 1e7 and value == int(value)):
        text = f"{size:,.0f}"
    elif 1e-3 <= float(f"{size:.{digits - 1}e}") < 1e7:
        text = np.format_float_positional(float(f"{size:.{digits}g}"), trim="-")
        whole, point, part = text.partition(".")
        text = f"{int(whole):,}{point}{part}"
    else:
        factor, power = f"{size:.{digits - 1}e}".split("e")
        factor = factor.rstrip("0").rstrip(".") if "." in factor else factor
        text = ("" if factor == "1" else f"{factor}·") + "10" + str(int(power)).translate(RAISED)
    return f"−{text}" if value < 0 else text


def what_it_rests_on(bound: LowerBound) -> str:
    """A note for legends: what a bound assumes, and "not valid" if it is not."""
    return ASSUMES[bound.assumes] + ("" if bound.valid else "; not valid")


def labels(bounds: Mapping[Any, LowerBound], names: Mapping[Any, str] | None = None) -> dict[Any, str]:
    """The labels of bounds in a legend. Assumptions are told only where they differ: one for all is the caption's.

    Args:
        bounds: one bound for each entry of the legend.
        names: what to call each; by default as `LOOKS` says, or the key as it is.
    """
    names = {key: looks(key)["label"] for key in bounds} if names is None else names
    if len({bound.assumes for bound in bounds.values()}) > 1:
        return {key: f"{names[key]}, {what_it_rests_on(bound)}" for key, bound in bounds.items()}
    return {key: names[key] if bound.valid else f"{names[key]}, not valid" for key, bound in bounds.items()}


MARKERS = "Xh<>pd"  # for several names in one figure that `LOOKS` does not have, each with a colour
_OWN_NAMES: WeakKeyDictionary[Any, list[str]] = WeakKeyDictionary()  # by figure, in the order in which they came


def broken(long: str, width: int) -> str:
    """The text in lines of at most `width` characters."""
    return "\n".join(textwrap.wrap(long, width, drop_whitespace=False, replace_whitespace=False)) or long


def literal(label: object) -> str:
    """A label that matplotlib draws as it is written: without reading math, and in a legend whatever it begins with.

    Long labels are broken into lines.
    """
    escaped = broken(str(label), 40).replace("$", r"\$")
    return f" {escaped}" if escaped.startswith("_") else escaped


def looks(name: str, ax: Axes | None = None, **changes: Any) -> dict[str, Any]:
    """The look of `name`, as arguments of any matplotlib call that draws lines.

    Args:
        name: a key of `LOOKS`, or a name of your own.
        ax: names of your own in the figure of these axes differ from each other. Without it they look alike.
        changes: arguments that replace those of the look.
    """
    if name in LOOKS:
        return {**LOOKS[name], **changes}
    own = {"color": "0.25", "marker": "X"}
    if ax is not None:
        names = _OWN_NAMES.setdefault(ax.figure.figure, [])
        names += [] if name in names else [name]
        place = names.index(name)
        own = {"color": COLORS[place % len(COLORS)], "marker": MARKERS[place % len(MARKERS)]}
    return {**own, "label": literal(name), **changes}


def tag(ax: Axes, name: str) -> Annotation:
    """Write a panel's label above its left corner, as it is: without reading math."""
    return ax.annotate(
        broken(name, 40),
        (0.03, 1.0),
        xycoords="axes fraction",
        ha="left",
        va="bottom",
        weight="bold",
        parse_math=False,
    )


def name_source(figure: Figure, source: str) -> Text:
    """Write below a figure what it was made from, as it is: without reading math."""
    # About 15 characters fit into an inch.
    return figure.supxlabel(broken(source, int(15 * figure.get_figwidth())), fontsize=9, color="0.35", parse_math=False)
