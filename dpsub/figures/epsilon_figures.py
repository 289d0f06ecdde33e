"""Audited lower bounds and the accountants' ε: against the step, the number of runs, the noise; trade-off functions."""

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
from matplotlib.text import Annotation
from numpy.typing import ArrayLike

from dpsub._core import checks
from dpsub.estimators import LowerBound, over_repeats
from dpsub.figures.inputs import Array, audits, named, numbers, on_axes, points, text
from dpsub.figures.style import (
    COLORS,
    LOOKS,
    PALETTES,
    literal,
    looks,
    looks_on,
    name_source,
    named_bounds,
    number,
    tag,
    what_it_rests_on,
)

DRAWN = ("substitute", "add_remove", "group", "ceiling")  # names in the answers, beside the scenarios'


@checks.checked(legend=checks.flag)
def epsilon_against_step(
    ax: Axes,
    steps: ArrayLike,
    *,
    substitute: ArrayLike,
    add_remove: ArrayLike,
    group: ArrayLike | None = None,
    audited: Mapping[str, Sequence[Sequence[LowerBound]]],
    ceiling: ArrayLike | None = None,
    legend: bool = True,
) -> dict[str, Artist | Container]:
    """ε against the training step: the accountants' values and the audits' lower bounds.

    Args:
        ax: where to draw.
        steps: (k,) the observed steps.
        substitute, add_remove: (k,) the accountants' ε at these steps.
        group: (k,) the substitute ε by group privacy; None leaves it out.
        audited: for each scenario ("S2", …) its repeats, each a list of k bounds. Several repeats are drawn as their
            mean with two standard errors; two to nine of them also one by one.
        ceiling: the bound that a perfect attack would reach with as many runs; (k,) if it depends on the step.
        legend: whether to draw a legend; `epsilon_panels` draws one for all panels.

    Returns:
        The artists by name, to put into a legend or to change.
    """
    on_axes(ax=ax)
    x = points("steps", steps)
    found = audits("audited", audited, len(x), taken=DRAWN)
    most = None if ceiling is None else _ceiling("ceiling", ceiling, len(x))
    artists: dict[str, Artist | Container] = {}
    for name, values in (("group", group), ("substitute", substitute), ("add_remove", add_remove)):
        if name != "group" or values is not None:
            (artists[name],) = ax.plot(x, points(name, values, len(x), finite=False), **looks(name))
    labels = _labels(found)
    for scenario, repeats in found.items():
        epsilon = np.array([[bound.epsilon for bound in repeat] for repeat in repeats])
        look = looks_on(ax, scenario, markersize=3.5, label=labels[scenario])
        if len(epsilon) > 1 and len(epsilon) < 10:
            ax.plot(x, epsilon.T, color=look["color"], alpha=0.35, linewidth=0.8)
        mean, error, several = over_repeats(repeats)
        artists[scenario] = ax.errorbar(x, mean, yerr=error if several > 1 else None, elinewidth=0.8, **look)
    ax.set_xlim(0, x.max() * 1.02)
    ax.set_ylim(bottom=0)
    _draw_ceiling(ax, x, most, artists)
    ax.set_xlabel("training step")
    ax.set_ylabel(r"$\varepsilon$")
    if legend:
        ax.legend(loc="best")
    return artists


def epsilon_panels(panels: Mapping[str, Mapping[str, Any]], *, source: str) -> Figure:
    """Panels of `epsilon_against_step` side by side, with a shared ε axis, one legend above and the source below.

    Args:
        panels: for each panel's label ("q = 1"), the arguments that `findings.panel` returns. `findings.panels` makes
            all of them.
        source: the tasks and the number of models, as `findings.source` words them.

    Source: *Beyond Membership*, Figures 3, 4, A2, A3, A4 and A6.
    """
    text("source", source)
    for name, panel in named("panels", panels).items():
        if not isinstance(panel, Mapping) or not {"steps", "substitute", "add_remove", "audited"} <= set(panel):
            raise ValueError(f"panels[{name!r}] must be what findings.panel returns, got {type(panel).__name__}")
    figure, row = plt.subplots(1, len(panels), figsize=(6.8, 3.0), squeeze=False, layout="constrained")
    shared: dict[str, Any] = {}
    several = len({one[0][0].assumes for panel in panels.values() for one in panel["audited"].values()}) > 1
    for ax, (name, panel) in zip(row[0], panels.items(), strict=True):
        drawn = epsilon_against_step(ax, **panel, legend=False)
        for scenario in panel["audited"] if several else ():
            rests_on = what_it_rests_on(panel["audited"][scenario][0][0])
            drawn[scenario].set_label(f"{looks(scenario)['label']}, {rests_on}")
        shared |= {str(a.get_label()): a for a in drawn.values() if not isinstance(a, Annotation)}
        tag(ax, name)
    top = max(ax.get_ylim()[1] for ax in row[0])
    for ax in row[0]:
        ax.sharey(row[0][0])
        ax.label_outer()
    row[0][0].set_ylim(0, top)
    widest = max(len(line) for label in shared for line in label.splitlines())
    columns = 3 if widest < 40 else 2  # more do not fit
    figure.legend(list(shared.values()), list(shared), loc="outside upper center", ncols=columns)
    name_source(figure, source)
    return figure


@checks.checked(legend=checks.flag, substitute=checks.real, add_remove=checks.real)
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
    """Figure 5: lower bounds from the final models against the number of runs.

    Args:
        ax: where to draw.
        runs: (k,) runs of both worlds together, increasing.
        audited: for each scenario its repeats, each a list of k bounds.
        substitute, add_remove: the accountants' ε.
        ceiling: (k,) the bounds that a perfect attack would reach.
        legend: whether to draw a legend.

    Source: *Beyond Membership*, Figure 5.
    """
    on_axes(ax=ax)
    x = np.array([checks.whole("runs", count) for count in points("runs", runs).tolist()])
    most = points("ceiling", ceiling, len(x))
    found = audits("audited", audited, len(x), taken=DRAWN)
    artists: dict[str, Artist | Container] = {
        "substitute": ax.axhline(substitute, **looks("substitute")),
        "add_remove": ax.axhline(add_remove, **looks("add_remove")),
    }
    labels = _labels(found)
    for scenario, repeats in found.items():
        mean, error, several = over_repeats(repeats)
        look = looks_on(ax, scenario, label=labels[scenario])
        artists[scenario] = ax.errorbar(x, mean, yerr=error if several > 1 else None, elinewidth=0.8, **look)
    (artists["ceiling"],) = ax.plot(x, most, **looks("ceiling"))
    ax.set_xscale("log")
    ax.set_xticks(x, [number(count) for count in x.tolist()], rotation=45)
    ax.minorticks_off()
    highest = max(np.max(over_repeats(repeats).mean) for repeats in found.values())
    top = 1.15 * max(substitute, highest)
    ax.set_ylim(0, top)
    if most.max() > top:  # the line leaves the axes: say where it goes
        _note(ax, most.min(), most.max())
    ax.set_xlabel("runs, both worlds")
    ax.set_ylabel(r"$\varepsilon$")
    if legend:
        ax.legend()
    return artists


def worst_case(
    ax: Axes,
    *,
    substitute: ArrayLike,
    add_remove: ArrayLike,
    group: ArrayLike,
    audited: Mapping[str, Sequence[Sequence[LowerBound]]],
    ceiling: ArrayLike | None = None,
) -> dict[str, Artist | Container]:
    """Figure 2: audited ε against the substitute accountant's, one point for each noise multiplier.

    Args:
        ax: where to draw.
        substitute, add_remove, group: (points,) the accountants' ε, increasing.
        audited: for each estimator, by its name in the legend, its repeats: lists with one bound for each point. Drawn
            as mean ± 2 standard errors, shifted sideways so that they do not overlap; hollow if they are not valid.
        ceiling: the bound that a perfect attack would reach with as many runs; (points,) if it depends on the point.

    Source: *Beyond Membership*, Figure 2.
    """
    on_axes(ax=ax)
    x = points("substitute", substitute)
    found = audits("audited", audited, len(x), taken=DRAWN)
    most = None if ceiling is None else _ceiling("ceiling", ceiling, len(x))
    promised = {"group": points("group", group, len(x), finite=False), "substitute": x}
    promised["add_remove"] = points("add_remove", add_remove, len(x), finite=False)
    artists: dict[str, Artist | Container] = {}
    for name, values in promised.items():
        (artists[name],) = ax.plot(x, values, **looks(name))
    beside = np.linspace(-0.025, 0.025, len(found)) * x.max() if len(found) > 1 else [0.0]
    color, labels = LOOKS["S1"]["color"], _labels(found, prefix="S1, ")
    for (name, repeats), shift, marker in zip(found.items(), beside, cycle("oD^s"), strict=False):
        mean, error, _ = over_repeats(repeats)
        one = repeats[0][0]
        look: dict[str, Any] = {"color": color, "marker": marker, "markersize": 3.5, "linestyle": "none"}
        look["label"] = labels[name]
        artists[name] = ax.errorbar(
            x + shift, mean, yerr=np.nan_to_num(error), mfc=color if one.valid else "white", **look
        )
    ax.set_xlim(left=0)
    highest = max((value for value in promised["group"] if np.isfinite(value)), default=0.0)
    ax.set_ylim(0, max(ax.get_ylim()[1], 1.05 * highest))  # the larger limit, if panels share this axis
    _draw_ceiling(ax, x, most, artists)
    ax.set_xlabel(r"$\varepsilon_S$ (accounting)")
    ax.set_ylabel(r"$\varepsilon$")
    return artists


def beside_claims(
    ax: Axes,
    bounds: Mapping[str, LowerBound],
    *,
    claimed: float | Mapping[str, float],
    ceiling: float | Mapping[str, float] | None = None,
) -> dict[str, Artist | Container]:
    """Lower bounds beside the ε that is claimed, with a row for each audit.

    It takes bounds of any mechanism, also of one without a noise multiplier. A bound to the right of its claim refutes
    it. The rows are at 0, 1, … from the top.

    Args:
        ax: where to draw.
        bounds: for each audit its bound, as `dpsub.bound` gives it. Hollow if it is not valid.
        claimed: the ε that the mechanisms claim, at the δ and the adjacency of the bounds; one for all, or by name.
        ceiling: the bound that a perfect attack would reach; one for all, or by name. None leaves it out.

    Returns:
        The artists by name, to put into a legend or to change: "claimed", "ceiling", and each bound's.

    >>> import matplotlib.pyplot as plt
    >>> from dpsub import estimators
    >>> scores, bits = [0.5 - i % 2 for i in range(400)], [i % 2 for i in range(400)]
    >>> bound = estimators.epsilon_lower_bound(scores, bits, delta=1e-5, method="dp")
    >>> sorted(beside_claims(plt.figure().subplots(), {"Laplace": bound}, claimed=1.5))
    ['Laplace', 'claimed']
    """
    on_axes(ax=ax)
    for name, bound in named("bounds", bounds, taken=("claimed", "ceiling")).items():
        if not isinstance(bound, LowerBound):
            raise ValueError(f"bounds[{name!r}] must be one LowerBound, got a {type(bound).__name__}: give one step's")
    audits("bounds", {name: [[bound]] for name, bound in bounds.items()}, 1, taken=())
    lines = {"claimed": _of_rows("claimed", claimed, bounds)}
    if ceiling is not None:
        lines["ceiling"] = _of_rows("ceiling", ceiling, bounds)
    rows = np.arange(len(bounds))
    artists: dict[str, Artist | Container] = {}
    for name, values in lines.items():
        artists[name] = ax.vlines(values, rows - 0.5, rows + 0.5, **looks(name))
    labels = named_bounds({name: literal(name) for name in bounds}, bounds)
    for row, (name, bound) in zip(rows, bounds.items(), strict=True):
        fill = COLORS[0] if bound.valid else "white"
        label = "lower bound" if row == 0 else "_"  # once in a legend
        (artists[name],) = ax.plot(bound.epsilon, row, "o", color=COLORS[0], markerfacecolor=fill, label=label)
    ax.set_yticks(rows, list(labels.values()))
    ax.set_ylim(len(bounds) - 0.4, -0.6)
    ax.set_xlim(left=0)
    ax.set_xlabel(r"$\varepsilon$")
    return artists


def _of_rows(argument: str, given: float | Mapping[str, float], bounds: Mapping[str, LowerBound]) -> Array:
    """(rows,) from one number for all, or one for each name."""
    by_name = given if isinstance(given, Mapping) else dict.fromkeys(bounds, given)
    if set(by_name) != set(bounds):
        raise ValueError(f"{argument} must be for the names of bounds, {list(bounds)}, got {list(by_name)}")
    return np.array([checks.real(argument, by_name[name], at_least=0) for name in bounds])


@checks.checked(reference=checks.real)
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
    on_axes(ax=ax)
    named("noise_multipliers", noise_multipliers)
    if set(named("values", values)) != set(noise_multipliers):
        raise ValueError(
            f"values must be for the sample rates of noise_multipliers, {list(noise_multipliers)}, got {list(values)}"
        )
    artists: dict[float, Artist] = {}
    shades = PALETTES["rate"]
    last = max(len(noise_multipliers) - 1, 1)
    for place, ((q, x), marker) in enumerate(zip(noise_multipliers.items(), cycle("osD^vP"), strict=False)):
        color = shades[round(place * (len(shades) - 1) / last)]
        at = points(f"noise_multipliers[{q!r}]", x)
        if at.min() <= 0:
            raise ValueError(f"noise_multipliers[{q!r}] must be > 0, got {at.min():g}")
        found = points(f"values[{q!r}]", values[q], len(at), finite=False)
        label = f"q = {checks.real('sample rate', q, above=0, at_most=1):g}"
        (artists[q],) = ax.plot(at, found, color=color, marker=marker, markersize=3, label=label)
    ax.axhline(reference, color="black", linestyle="--", linewidth=0.9)
    ax.set_xscale("log")
    ax.set_xlabel("noise multiplier σ")
    return artists


def tradeoffs(ax: Axes, fpr: ArrayLike, fnr: Mapping[str, ArrayLike]) -> dict[str, Artist]:
    """Trade-off functions by name, with the line of guessing: the lower a curve, the better the best attack.

    Adjacencies have their looks. Each other name has a colour and a line style of its own.

    Source: *Tight Auditing*, section 4; Dong, Roth and Su (2022), Definition 2.1.
    """
    on_axes(ax=ax)
    rates = points("fpr", checks.rates("fpr", fpr))
    artists: dict[str, Artist] = {}
    (artists["guessing"],) = ax.plot([0, 1], [1, 0], color="0.8", linestyle=":", label="guessing")
    own = zip(cycle(COLORS), cycle(("-", "--", "-.", (0, (5, 1, 1, 1, 1, 1)))), strict=False)
    for name, values in named("fnr", fnr, taken=("guessing",)).items():
        look = {} if name in LOOKS else {"marker": "", **dict(zip(("color", "linestyle"), next(own), strict=True))}
        label = {"substitute": "substitute", "add_remove": "add/remove"}.get(name, literal(name))
        of = f"fnr[{name!r}]"
        (artists[name],) = ax.plot(
            rates, points(of, checks.rates(of, values), len(rates)), **looks(name, label=label, **look)
        )
    ax.set_xlabel("false-positive rate")
    ax.set_ylabel("false-negative rate")
    ax.set_xlim(0, 1)
    ax.set_ylim(0, 1)
    return artists


def _labels(found: Mapping[Any, Sequence[Sequence[LowerBound]]], *, prefix: str | None = None) -> dict[Any, str]:
    """A legend's label for each audit: a scenario's own name, or the prefix and the name as it is."""
    names = {key: looks(key)["label"] if prefix is None else f"{prefix}{literal(key)}" for key in found}
    return named_bounds(names, {key: repeats[0][0] for key, repeats in found.items()})


def _ceiling(argument: str, values: ArrayLike, count: int) -> Array:
    """(count,) the ceiling at each point, from one for all or one for each."""
    array = numbers(argument, values)
    return np.full(count, array) if array.ndim == 0 else points(argument, array, count)


def _draw_ceiling(ax: Axes, x: Array, ceiling: Array | None, artists: dict[str, Artist | Container]) -> None:
    """Draw the most that this number of runs can show: a line, or a note if it lies far above everything drawn."""
    if ceiling is None:
        return
    top, low, high = ax.get_ylim()[1], ceiling.min(), ceiling.max()
    if low <= 1.5 * top:
        artists["ceiling"] = (
            ax.axhline(low, **looks("ceiling")) if low == high else ax.plot(x, ceiling, **looks("ceiling"))[0]
        )
        ax.set_ylim(top=max(top, 1.08 * min(high, 1.5 * top)))
    else:
        artists["ceiling"] = _note(ax, low, high)


def _note(ax: Axes, low: float, high: float) -> Annotation:
    """Write above the right corner of the axes, where no data is, which bound a perfect attack would reach."""
    told = f"{low:.0f}" if f"{low:.0f}" == f"{high:.0f}" else f"{low:.0f} to {high:.0f}"
    look: dict[str, Any] = {"xycoords": "axes fraction", "ha": "right", "va": "bottom", "fontsize": 7, "color": "0.35"}
    return ax.annotate(f"ceiling: {told}", (1, 1.0), **look)
