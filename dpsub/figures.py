"""The figures of the papers: functions that take an `ax`, draw on it, and return what they drew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.container import Container
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text
from numpy.typing import ArrayLike

from dpsub.estimators import LowerBound, over_repeats
from dpsub.game import Audit

STYLE = "dpsub.dpsub"  # plt.style.use(figures.STYLE)
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
    set_matplotlib_formats("svg")


def what_it_rests_on(bound: LowerBound) -> str:
    """For a legend: what has to hold for a bound to mean anything, and whether it keeps its promise then."""
    return ASSUMES[bound.assumes] + ("" if bound.valid else "; not valid")


OWN = {"color": "0.25", "marker": "X"}  # a scenario that somebody else named


def looks(name: str, **changes: Any) -> dict[str, Any]:
    """How to draw what is called `name`, for any matplotlib call that draws lines."""
    return {**LOOKS.get(name, {**OWN, "label": name}), **changes}


def epsilon_against_step(
    ax: Axes,
    steps: ArrayLike,
    *,
    substitute: ArrayLike,
    add_remove: ArrayLike,
    group: ArrayLike | None = None,
    audited: Mapping[str, Sequence[Sequence[LowerBound]]],
    ceiling: float | None = None,
    legend: bool = True,
) -> dict[str, Artist | Container]:
    """ε against the training step: what the accountants promise and what the audits found.

    Args:
        ax: where to draw.
        steps: (k,) the steps observed.
        substitute, add_remove: (k,) the accountants' ε at these steps.
        group: (k,) the substitute ε by group privacy, if it is to be drawn.
        audited: for each scenario ("S2", …) its repeats, each a list of k bounds. Fewer than ten repeats are drawn
            one by one, with their mean if there are several, and two standard errors of it.
        ceiling: what a perfect attack would have shown with as many runs.
        legend: whether to draw one here; `epsilon_panels` draws one for several.

    Returns:
        The artists by name, for a legend or for changes.
    """
    steps = np.asarray(steps)
    artists: dict[str, Artist | Container] = {}
    for name, values in (("group", group), ("substitute", substitute), ("add_remove", add_remove)):
        if values is not None:
            (artists[name],) = ax.plot(steps, np.asarray(values), **looks(name))
    for scenario, repeats in audited.items():
        epsilon = np.array([[bound.epsilon for bound in repeat] for repeat in repeats])
        label = f"{looks(scenario)['label']}, {what_it_rests_on(repeats[0][0])}"
        look = looks(scenario, markersize=3.5, label=label)
        if len(epsilon) > 1 and len(epsilon) < 10:
            ax.plot(steps, epsilon.T, color=look["color"], alpha=0.35, linewidth=0.8)
        mean, error, several = over_repeats(repeats)
        artists[scenario] = ax.errorbar(steps, mean, yerr=error if several > 1 else None, elinewidth=0.8, **look)
    ax.set_xlim(0, steps[-1] * 1.02)
    ax.set_ylim(bottom=0)
    _draw_ceiling(ax, ceiling, artists)
    ax.set_xlabel("training step")
    ax.set_ylabel(r"$\varepsilon$")
    if legend:
        ax.legend(loc="upper left")
    return artists


def epsilon_panels(panels: Mapping[str, Mapping[str, Any]], *, source: str) -> Figure:
    """Several of `epsilon_against_step` beside each other, with one legend above and the data's name below.

    Args:
        panels: by what tells them apart ("q = 1"), what `findings.panel` makes of audits.
        source: what the audits were made on (`findings.source`).

    Source: *Beyond Membership*, Figures 3, 4, A2, A3, A4 and A6.
    """
    figure, row = plt.subplots(1, len(panels), figsize=(6.8, 3.0), squeeze=False, layout="constrained")
    shared: dict[str, Any] = {}
    for ax, (name, panel) in zip(row[0], panels.items(), strict=True):
        drawn = epsilon_against_step(ax, **panel, legend=False)
        shared |= {str(a.get_label()): a for a in drawn.values() if not isinstance(a, Annotation)}
        tag(ax, name)
    top = max(ax.get_ylim()[1] for ax in row[0])
    for ax in row[0]:
        ax.sharey(row[0][0])
        ax.label_outer()
    row[0][0].set_ylim(0, top)
    figure.legend(list(shared.values()), list(shared), loc="outside upper center", ncols=3)
    name_source(figure, source)
    return figure


def tag(ax: Axes, name: str) -> Annotation:
    """What tells a panel from its neighbours, in its corner."""
    return ax.annotate(name, (0.03, 1.0), xycoords="axes fraction", ha="left", va="bottom", weight="bold")


def against_runs(
    ax: Axes,
    runs: ArrayLike,
    *,
    audited: Mapping[str, Sequence[Sequence[LowerBound]]],
    substitute: float,
    add_remove: float,
    ceiling: ArrayLike,
    legend: bool = True,
) -> dict[str, Artist | Container]:
    """Figure 5: what an audit finds in the final models against the number of runs.

    Args:
        ax: where to draw.
        runs: (k,) runs in all, increasing.
        audited: by scenario its repeats, each a list of k bounds.
        substitute, add_remove: the accountants' ε.
        ceiling: (k,) what a perfect attack would have shown.
        legend: whether to draw one.

    Source: *Beyond Membership*, Figure 5.
    """
    x = np.asarray(runs)
    artists: dict[str, Artist | Container] = {
        "substitute": ax.axhline(substitute, **looks("substitute")),
        "add_remove": ax.axhline(add_remove, **looks("add_remove")),
    }
    for scenario, repeats in audited.items():
        mean, error, several = over_repeats(repeats)
        look = looks(scenario, label=f"{looks(scenario)['label']}, {what_it_rests_on(repeats[0][0])}")
        artists[scenario] = ax.errorbar(x, mean, yerr=error if several > 1 else None, elinewidth=0.8, **look)
    (artists["ceiling"],) = ax.plot(x, np.asarray(ceiling), **looks("ceiling"))
    ax.set_xscale("log")
    ax.set_xticks(x, [f"{count:,}" for count in x.tolist()], rotation=45)
    ax.minorticks_off()
    highest = max(np.max(over_repeats(repeats).mean) for repeats in audited.values())
    ax.set_ylim(0, 1.15 * max(substitute, highest))
    ax.set_xlabel("runs, both worlds")
    ax.set_ylabel(r"$\varepsilon$")
    if legend:
        ax.legend()
    return artists


def name_source(figure: Figure, source: str) -> Text:
    """What the figure was made of, small, below it."""
    return figure.supxlabel(source, fontsize=7, color="0.35")


def worst_case(
    ax: Axes,
    *,
    substitute: ArrayLike,
    add_remove: ArrayLike,
    group: ArrayLike,
    audited: Mapping[str, Sequence[Sequence[LowerBound]]],
    ceiling: float | None = None,
) -> dict[str, Artist | Container]:
    """Figure 2: audited ε against the substitute accountant's, one point for each noise multiplier.

    Args:
        ax: where to draw.
        substitute, add_remove, group: (points,) the accountants' ε, increasing.
        audited: for each way to bound, by the name it is to have in the legend, its repeats, each a list of one bound
            a point. Drawn as mean ± 2 standard errors, beside each other; hollow where they are not valid.
        ceiling: what a perfect attack would have shown with as many runs.

    Source: *Beyond Membership*, Figure 2.
    """
    x = np.asarray(substitute, dtype=float)
    artists: dict[str, Artist | Container] = {}
    for name, values in (("group", group), ("substitute", substitute), ("add_remove", add_remove)):
        (artists[name],) = ax.plot(x, np.asarray(values), **looks(name))
    beside = np.linspace(-0.025, 0.025, len(audited)) * x.max() if len(audited) > 1 else [0.0]
    color = LOOKS["S1"]["color"]
    for (name, repeats), shift, marker in zip(audited.items(), beside, cycle("oD^s"), strict=False):
        mean, error, _ = over_repeats(repeats)
        one = repeats[0][0]
        look: dict[str, Any] = {"color": color, "marker": marker, "markersize": 3.5, "linestyle": "none"}
        look["label"] = f"S1, {name}, {what_it_rests_on(one)}"
        artists[name] = ax.errorbar(
            x + shift, mean, yerr=np.nan_to_num(error), mfc=color if one.valid else "white", **look
        )
    ax.set_xlim(left=0)
    highest = max((value for value in np.ravel(group) if np.isfinite(value)), default=0.0)
    ax.set_ylim(0, max(ax.get_ylim()[1], 1.05 * highest))  # panels that share their axis keep the highest
    _draw_ceiling(ax, ceiling, artists)
    ax.set_xlabel(r"$\varepsilon_S$ (accounting)")
    ax.set_ylabel(r"$\varepsilon$")
    return artists


def against_noise(
    ax: Axes, noise_multipliers: Mapping[float, ArrayLike], values: Mapping[float, ArrayLike], *, reference: float
) -> dict[float, Artist]:
    """Figure A5: a quantity against the noise multiplier, one line for each sample rate.

    Args:
        ax: where to draw.
        noise_multipliers, values: by sample rate, (points,) each.
        reference: what the values are to be compared with, a dashed line.

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
    """Trade-off functions by adjacency, over that of guessing: the lower a curve, the more can be told.

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


def game(left: Axes, right: Axes, audit: Audit, threshold: float) -> dict[str, Any]:
    """The audit game: the scores of the two worlds with a threshold, and the bounds that follow beside the truth."""
    artists: dict[str, Any] = {}
    bins = np.linspace(-4, 6, 51)
    common: dict[str, Any] = {"bins": bins, "density": True}
    artists["z_prime"] = left.hist(audit.with_z_prime, color="0.75", label="trained with z′", **common)
    artists["z"] = left.hist(audit.with_z, histtype="step", color="black", label="trained with z", **common)
    artists["threshold"] = left.axvline(threshold, color=COLORS[0])
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
    colors = [COLORS[0] if bound.valid else "white" for bound in bounds.values()]
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
    """How often each way to bound exceeds the truth, and what share of the truth it finds, against the number of runs.

    Args:
        wrong, tight: where to draw the two.
        runs: (k,) runs in all.
        measured: by the name it is to have in the legend: the shares of audits that were wrong, the mean bound over the
            truth, (k,) each, and whether it claims to be valid. What does not is drawn hollow and dashed.
        alpha: the share of wrong audits that is allowed.
    """
    x = np.asarray(runs)
    artists: dict[str, Artist] = {}
    for (name, (share, found, valid)), color, marker in zip(
        measured.items(), cycle(COLORS), cycle("osD^vP"), strict=False
    ):
        look: dict[str, Any] = {"color": color, "marker": marker, "markersize": 4}
        look |= {"linestyle": "-" if valid else "--", "mfc": color if valid else "white"}
        label = name if valid else f"{name} (not valid)"
        (artists[name],) = wrong.plot(x, 100 * np.asarray(share), label=label, **look)
        tight.plot(x, np.asarray(found), **look)
    artists["alpha"] = wrong.axhline(100 * alpha, color="black", linestyle=":", linewidth=0.9)
    tight.axhline(1.0, color="black", linestyle=":", linewidth=0.9)
    wrong.set_ylabel("audits above the truth (%)")
    tight.set_ylabel("mean bound / truth")
    for ax in (wrong, tight):
        ax.set_xscale("log")
        ax.set_xticks(x, [f"{count:,}" for count in x.tolist()])
        ax.minorticks_off()
        ax.set_ylim(bottom=0)
        ax.set_xlabel("runs, both worlds")
    return artists


def epsilon_bars(ax: Axes, values: Mapping[str, float]) -> list[Artist]:
    """One bar an ε, labelled with its number; `values` by the names in `LOOKS`. What is infinite has no bar."""
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


def _draw_ceiling(ax: Axes, ceiling: float | None, artists: dict[str, Artist | Container]) -> None:
    """A line, or where it lies above everything drawn a note: a finite audit can never show more."""
    if ceiling is None:
        return
    top = ax.get_ylim()[1]
    if ceiling <= 1.5 * top:
        artists["ceiling"] = ax.axhline(ceiling, **looks("ceiling"))
        ax.set_ylim(top=max(top, 1.08 * ceiling))
    else:
        artists["ceiling"] = ax.annotate(
            f"ceiling of these runs: {ceiling:.0f}",
            (1, 0.01),
            xycoords="axes fraction",
            ha="right",
            va="bottom",
            fontsize=7,
            color="0.45",
        )
