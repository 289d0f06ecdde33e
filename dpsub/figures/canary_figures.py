"""Figures of canaries at each step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from dpsub._core import checks
from dpsub.figures.arguments import named, points, text
from dpsub.figures.style import COLORS, literal, looks, name_source, tag

if TYPE_CHECKING:
    import pandas as pd

PANELS = {"add_remove": "add/remove", "zero_out": "zero-out", "substitute": "substitute"}
COLUMNS = ("adjacency", "training", "accountant")


def canary_panels(table: pd.DataFrame, *, source: str) -> Figure:
    """A training's bounds as dots, one row for each canary, and one panel for each adjacency.

    Args:
        table: as `findings.canary_steps` makes it. Where audits have tuples for names, rows go by the last entry. The
            accountant's ε is a line at each row.
        source: what the audits are of, written below.

    Source: *Tight Auditing*, Figures 15, 16, 18 and 19.
    """
    text("source", source)
    missing = [name for name in COLUMNS if name not in getattr(table, "columns", ())]
    if missing or not len(table):
        raise ValueError(f"table must be one that findings.canary_steps makes, got {type(table).__name__}")
    for adjacency in table.adjacency:
        checks.choice("table's adjacency", adjacency, tuple(PANELS))
    named("table's index", dict.fromkeys(table.index))
    names = [str(name[-1] if isinstance(name, tuple) else name) for name in table.index]
    rows = {name: place for place, name in enumerate(dict.fromkeys(names))}
    shown = [adjacency for adjacency in PANELS if adjacency in set(table.adjacency)]
    height = 1.2 + 0.24 * len(rows)
    figure, axes = plt.subplots(1, len(shown), figsize=(6.8, height), sharey=True, squeeze=False, layout="constrained")
    places = np.array([rows[name] for name in names])
    handles = {}
    for ax, adjacency in zip(axes[0], shown, strict=True):
        here = (table.adjacency == adjacency).to_numpy()
        bounds, accountant = (points(f"table's {name}", table[name][here]) for name in COLUMNS[1:])
        if min(*bounds, *accountant) < 0:
            raise ValueError(f"table must have bounds and an accountant's ε >= 0, got {min(*bounds, *accountant):g}")
        line = looks("substitute" if adjacency == "substitute" else "add_remove")
        handles[adjacency] = ax.vlines(accountant, places[here] - 0.5, places[here] + 0.5, **line)
        (handles["bound"],) = ax.plot(bounds, places[here], "o", color=COLORS[0], label="bound, assumes GDP")
        ax.set_xlim(0, 1.08 * max(bounds.max(), accountant.max()) or 1.0)
        ax.set_xlabel(r"$\varepsilon$ of the training")
        tag(ax, PANELS[adjacency])
    axes[0][0].set_yticks(range(len(rows)), [literal(name) for name in rows])
    axes[0][0].set_ylim(len(rows) - 0.5, -0.5)
    figure.legend(handles=list(handles.values()), loc="outside upper center", ncols=len(handles))
    name_source(figure, source)
    return figure
