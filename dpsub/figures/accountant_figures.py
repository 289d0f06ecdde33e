"""Figures of accountants' numbers without audits: ε as bars, against the noise, and trade-off functions."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from numpy.typing import ArrayLike

from dpsub.figures.style import COLORS, LOOKS, looks


def against_noise(
    ax: Axes, noise_multipliers: Mapping[float, ArrayLike], values: Mapping[float, ArrayLike], *, reference: float
) -> dict[float, Artist]:
    """Figure A5: a quantity against the noise multiplier, one line for each sample rate.

    Args:
        ax: where to draw.
        noise_multipliers, values: (points,) for each sample rate.
        reference: a value to compare with, drawn as a dashed line.

    Source: *Beyond Membership*, Figure A5.
    """
    artists: dict[float, Artist] = {}
    for (q, x), color, marker in zip(noise_multipliers.items(), cycle(COLORS), cycle("osD^vP"), strict=False):
        (artists[q],) = ax.plot(
            np.asarray(x), np.asarray(values[q]), color=color, marker=marker, markersize=3, label=f"q = {q:g}"
        )
    ax.axhline(reference, color="black", linestyle="--", linewidth=0.9)
    ax.set_xscale("log")
    ax.set_xlabel("noise multiplier σ")
    return artists


def tradeoffs(ax: Axes, fpr: ArrayLike, fnr: Mapping[str, ArrayLike]) -> dict[str, Artist]:
    """Trade-off functions by adjacency, with the line of guessing: the lower a curve, the better the best attack.

    Source: *Tight Auditing*, section 4; Dong, Roth and Su (2022), Definition 2.1.
    """
    artists: dict[str, Artist] = {}
    (artists["guessing"],) = ax.plot([0, 1], [1, 0], color="0.8", linestyle=":", label="guessing")
    for name, values in fnr.items():
        label = {"substitute": "substitute", "add_remove": "add/remove"}.get(name, name)
        (artists[name],) = ax.plot(np.asarray(fpr), np.asarray(values), **looks(name, label=label))
    ax.set_xlabel("false-positive rate")
    ax.set_ylabel("false-negative rate")
    ax.set_xlim(0, 1)
    ax.set_ylim(0, 1)
    return artists


def epsilon_bars(ax: Axes, values: Mapping[str, float]) -> list[Artist]:
    """One bar for each ε, labelled with its number; `values` by the names in `LOOKS`. An infinite ε has no bar."""
    shown = {name: value if np.isfinite(value) else 0.0 for name, value in values.items()}
    bars = ax.barh(range(len(shown)), list(shown.values()), height=0.6, color="0.8", edgecolor="black", linewidth=0.8)
    for bar, name in zip(bars, shown, strict=True):
        bar.set_linestyle(LOOKS[name].get("linestyle", "-"))
        bar.set_facecolor(LOOKS[name]["color"] if name == "add_remove" else "white")
    texts = [f"{value:.3f}" if np.isfinite(value) else "not certified" for value in values.values()]
    labels = ax.bar_label(bars, texts, padding=3)
    ax.set_yticks(range(len(shown)), [LOOKS[name]["label"] for name in shown])
    ax.set_xlim(0, 1.2 * max(shown.values(), default=1.0) or 1.0)
    ax.set_xlabel(r"$\varepsilon$")
    ax.invert_yaxis()
    return [*bars, *labels]
