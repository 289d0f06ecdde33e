"""Figures of estimators where the truth is known: the audit game and the validity study."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from numpy.typing import ArrayLike

from dpsub._core import checks
from dpsub.figures.arguments import named, on_axes, points
from dpsub.figures.style import PALETTES, literal, number
from dpsub.figures.threshold_game import Round


def game(left: Axes, right: Axes, audit: Round, threshold: float) -> dict[str, Any]:
    """The audit game: the scores of both worlds with a threshold on the left, bounds and the truth on the right."""
    on_axes(left=left, right=right)
    if not isinstance(audit, Round):
        raise ValueError(f"audit must be a round of the game, as game.play returns, got {type(audit).__name__}")
    threshold = checks.real("threshold", threshold)
    artists: dict[str, Any] = {}
    bins = np.linspace(-4, 6, 51)
    common: dict[str, Any] = {"bins": bins, "density": True}
    artists["z_prime"] = left.hist(audit.with_z_prime, color=PALETTES["world"][1], label="world z′", **common)
    artists["z"] = left.hist(audit.with_z, histtype="step", color=PALETTES["world"][0], label="world z", **common)
    artists["threshold"] = left.axvline(threshold, color=PALETTES["valid"][0])
    fpr, fnr = audit.rates(threshold)
    left.set_xlabel(f"score; FPR {fpr:.3f}, FNR {fnr:.3f}")
    left.set_yticks([])
    left.legend(loc="upper right")
    bounds = {
        "your threshold": audit.bound(threshold),
        "best threshold": audit.bound("best"),
        "rank test": audit.bound("ranks"),
    }
    values = [bound.epsilon for bound in bounds.values()]
    colors = [PALETTES["valid"][0] if bound.valid else "white" for bound in bounds.values()]
    artists["bars"] = right.barh(range(len(bounds)), values, height=0.6, color=colors, edgecolor="black", linewidth=0.8)
    right.bar_label(artists["bars"], [f"{value:.2f}" for value in values], padding=3)
    right.set_yticks(range(len(bounds)), [f"{name}\n{'' if b.valid else 'not '}valid" for name, b in bounds.items()])
    artists["truth"] = right.axvline(audit.truth, color="black", linestyle="--", label="truth")
    right.set_xlim(0, 1.25 * max(audit.truth, *values))
    right.invert_yaxis()
    right.set_xlabel(r"$\varepsilon$ (dashed: the truth)")
    return artists


def validity(
    wrong: Axes,
    tight: Axes,
    runs: ArrayLike,
    measured: Mapping[str, tuple[ArrayLike, ArrayLike, bool]],
    *,
    alpha: float,
) -> dict[str, Artist]:
    """How often each estimator's bound exceeds the truth, and its mean over the truth, against the number of runs.

    Args:
        wrong, tight: where to draw the first and the second.
        runs: (k,) runs of both worlds together.
        measured: for each estimator, by its name in the legend: (k,) the share of bounds that exceed the truth, (k,)
            the mean bound over the truth, and whether it claims to be valid. Estimators that do not are drawn hollow
            and dashed.
        alpha: the share of bounds that may exceed the truth.
    """
    on_axes(wrong=wrong, tight=tight)
    x = np.array([checks.whole("runs", count) for count in points("runs", runs).tolist()])
    alpha = checks.probability("alpha", alpha)
    for name, entry in named("measured", measured, taken=("alpha",)).items():
        if not isinstance(entry, tuple | list) or len(entry) != 3:
            raise ValueError(f"measured[{name!r}] must be shares, means and whether it is valid, got {entry!r}")
    artists: dict[str, Artist] = {}
    colors = {True: cycle(PALETTES["valid"]), False: cycle(PALETTES["not valid"])}
    for (name, (share, found, valid)), marker in zip(measured.items(), cycle("osD^vP"), strict=False):
        of, color = f"measured[{name!r}]", next(colors[bool(valid)])
        shares = points(of, checks.rates(of, share), len(x))
        look: dict[str, Any] = {"color": color, "marker": marker, "markersize": 4}
        look |= {"linestyle": "-" if valid else "--", "mfc": color if valid else "white"}
        label = literal(name) if valid else f"{literal(name)} (not valid)"
        (artists[name],) = wrong.plot(x, 100 * shares, label=label, **look)
        tight.plot(x, points(of, found, len(x)), **look)
    artists["alpha"] = wrong.axhline(100 * alpha, color="black", linestyle=":", linewidth=0.9)
    tight.axhline(1.0, color="black", linestyle=":", linewidth=0.9)
    wrong.set_ylabel("bounds above the truth (%)")
    tight.set_ylabel("mean bound / truth")
    for ax in (wrong, tight):
        ax.set_xscale("log")
        ax.set_xticks(x, [number(count) for count in x.tolist()])
        ax.minorticks_off()
        ax.set_ylim(bottom=0)
        ax.set_xlabel("runs, both worlds")
    return artists
