"""What audits of right and of faulty optimizers find, as figures."""

import difflib
import inspect
import math

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import LinearSegmentedColormap

from dpsub import estimators, figures
from studies.faults import zoo, zoo_audits
from studies.grids import draw_grid

BESIDE = ["Dirac", "Diracs", "Diracs of norm C", *zoo_audits.CANARIES[2:]]
ADJACENCIES = {"substitute": "substitute", "add_remove": "add/remove"}
PATHS = {
    "half the noise": ("#0072B2", "-"),
    "clips each layer": ("#E69F00", "--"),
    "noise on one group": ("#009E73", "-."),
    "weighted": ("#CC79A7", (0, (3, 1, 1, 1, 1, 1))),
    "right": ("black", "-"),
    "too much noise": ("0.6", ":"),
}


def bounds_by_step(auditor, delta):
    """The bound on ε by bets, from the first ten steps that were observed, the first twenty, and so on."""
    seen, asked = auditor.observations(), {"delta": delta, "rule": "bets", "alpha": auditor.report().alpha}
    return {
        step: estimators.epsilon_lower_bound(seen.score[:step], seen.bit[:step], **asked).epsilon
        for step in range(10, len(seen.score) + 1, 10)
    }


def bound_of_a_step(ax, bounds, promised):
    """The bounds against the number of steps, beside what a step promises."""
    ax.plot(bounds.keys(), bounds.values(), label="lower bound", color=figures.COLORS[0], marker="o", ms=3)
    ax.axhline(promised, **figures.looks("claimed"))
    ax.set_ylim(bottom=0)
    ax.set_xlabel("steps observed")
    ax.set_ylabel("ε of a step")


def difference(*functions):
    """The lines in which two functions differ, marked, in Markdown."""
    wrong, mended = ([f"    {line}" for line in inspect.getsource(one).splitlines()] for one in functions)
    lines = [line for line in difflib.ndiff(wrong, mended) if not line.startswith("?")]
    return "```diff\n" + "\n".join(lines) + "\n```"


def told(kept):
    """In each cell of a table of audits the median of steps, how many were refuted if it is infinite, or a dash."""
    return [
        f"{row.steps:.0f}" if math.isfinite(row.steps) else f"{row.found}/{row.of}" if row.found else "–"
        for row in kept.itertuples()
    ]


def zoo_grids(kept):
    """A figure: which canary beside the records finds which fault, for each adjacency."""
    kept = kept.assign(cell=told(kept), median=kept["steps"].replace(math.inf, math.nan))
    shades = LinearSegmentedColormap.from_list("", ["#332288", "white"])
    fig, axes = plt.subplots(1, 2, figsize=(6.8, 3.6), sharey=True)
    for ax, adjacency in zip(axes, ADJACENCIES, strict=True):
        grid = kept[kept["adjacency"] == adjacency].pivot(index="fault", columns="audit", values=["median", "cell"])
        grid = grid.reindex(index=list(zoo.ZOO)).reindex(columns=BESIDE, level=1)
        grid = grid.rename(columns={"Diracs of norm C": "norm C", "random, anew": "anew"})
        draw_grid(ax, grid["median"].astype(float), texts=grid["cell"].fillna(""), shades=(shades, 20, 400))
        ax.set_title(ADJACENCIES[adjacency])
        ax.tick_params(axis="x", rotation=90)
    return fig


def other_audits(kept):
    """The table for audits that are not of a canary beside the records."""
    others = kept.assign(cell=told(kept))[~kept["audit"].isin(BESIDE)]
    others = others.pivot(index=["fault", "audit"], columns="adjacency", values="cell")
    others = others.reindex(list(zoo.ZOO), level="fault").fillna("")
    return others[list(ADJACENCIES)].rename_axis(columns=None)


def wealth(ax, paths, steps):
    """The logarithm of the wealth of bets against the claim of some trainings, by fault, until they are refuted."""
    for fault, (color, style) in PATHS.items():
        path = paths[fault]
        ax.plot(np.arange(1, len(path) + 1), path, color=color, ls=style, label=fault)
        if len(path) < steps:
            ax.plot(len(path), path[-1], "o", color=color, ms=4)
    ax.axhline(-math.log(zoo_audits.ALPHA), color="black", lw=0.8, ls=":")
    ax.annotate("1/α", (steps, -math.log(zoo_audits.ALPHA)), ha="right", va="bottom")
    ax.set_ylim(-4, 4)
    ax.set_xlabel("step")
    ax.set_ylabel("logarithm of the wealth")
    ax.legend(loc="center right", bbox_to_anchor=(1, 0.72), ncols=2)


def bounds_of_faults(bounds, *, claimed):
    """A figure of bounds by several ways: of two faults by the number of observations, and by the true ε of a step."""
    fig, axes = plt.subplots(1, 3, figsize=(6.8, 3.0))
    last = bounds["observations"].max()
    scaled = [fault for fault in bounds["fault"].unique() if not isinstance(fault, str)]
    for ax, panel in zip(axes, ("clips the average", "100 seeds", "noise for a larger ε"), strict=True):
        of_panel, across = bounds[bounds["fault"] == panel], "observations"
        if of_panel.empty:
            of_panel = bounds[(bounds["observations"] == last) & bounds["fault"].isin(scaled)]
            across = "fault"
        for way, color, marker in zip(bounds["way"].unique(), figures.COLORS, "osD^v", strict=False):
            rows = of_panel[of_panel["way"] == way]
            ax.plot(rows[across], rows["bound"], color=color, marker=marker, ms=3.5, lw=1, label=way)
        ax.axhline(claimed, color="black", ls="--", lw=0.8)
        ax.set_xlabel(across if across == "observations" else "true ε of a step")
        ax.set_ylim(bottom=0)
        ax.annotate(panel, (0.5, 1.02), xycoords="axes fraction", ha="center")
    axes[-1].plot(scaled, scaled, color="0.6", lw=0.8)
    axes[-1].set_ylim(top=1.05 * max(scaled))
    axes[0].set_ylabel("bound on ε of a step")
    fig.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return fig


def libraries(kept, *, claimed, noise_multiplier):
    """A figure: the bound on the ε of a step of each library, and the noise that was measured."""
    fig, axes = plt.subplots(1, 2, figsize=(6.8, 3.2), sharey=True)
    places = -np.arange(len(kept))
    labels = ("lower bound on the ε of a step", "noise measured, in C")
    for ax, values, label, right in zip(axes, ("bound", "noise"), labels, (claimed, noise_multiplier), strict=True):
        for verdict, color, marker in zip(("consistent", "refuted"), figures.PALETTES["kind"], "oX", strict=False):
            rows = (kept["verdict"] == verdict).to_numpy()
            ax.plot(kept.loc[rows, values], places[rows], marker, color=color, label=verdict)
        ax.axvline(right, color="black", ls="--", lw=1, label="claimed")
        ax.set_xlim(left=0)
        ax.set_xlabel(label)
    axes[0].set_yticks(places, kept["name"])
    fig.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return fig
