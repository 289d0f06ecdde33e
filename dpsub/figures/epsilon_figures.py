"""Audited lower bounds and the accountants' ε: against the step and δ, and beside claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from dpsub.estimators.numerics import Array
from dpsub.figures.style import COLORS, labels, literal, looks, name_source, tag, what_it_rests_on


def epsilon_against_step(
    ax: Axes,
    steps: ArrayLike,
    *,
    substitute: ArrayLike | None = None,
    add_remove: ArrayLike | None = None,
    group: ArrayLike | None = None,
    audited: Mapping[str, Sequence[Sequence[LowerBound]]] | None = None,
    ceiling: ArrayLike | None = None,
    steps_per_epoch: float | None = None,
    legend: bool = True,
) -> dict[str, Artist | Container]:
    """ε against the training step or epoch: the accountants' values and, if there are any, audits' lower bounds.

    Args:
        ax: where to draw.
        steps: (k,) the observed steps.
        substitute, add_remove: (k,) the accountants' ε at these steps; None leaves it out.
        group: (k,) the substitute ε by group privacy; None leaves it out.
        audited: for each scenario ("S2", …) its repeats, each a list of k bounds. Several repeats are drawn as their
            mean with two standard errors; two to nine of them also one by one. None draws the accountants' ε alone.
        ceiling: the bound that a perfect attack would reach with as many runs; (k,) if it depends on the step.
        steps_per_epoch: > 0; the axis then counts epochs of so many steps.
        legend: whether to draw a legend; `epsilon_panels` draws one for all panels.

    Returns:
        The artists by name, to put into a legend or to change.
    """
    audited = audited or {}
    x = checks.array("steps", steps, shape=("k",))
    if steps_per_epoch is not None:
        x = x / checks.real("steps_per_epoch", steps_per_epoch, above=0)
    artists = accounted(ax, x, group=group, substitute=substitute, add_remove=add_remove)
    named = labels({scenario: repeats[0][0] for scenario, repeats in audited.items()})
    for scenario, repeats in audited.items():
        mean, error, several = over_repeats(repeats)
        look = looks(scenario, ax, markersize=3.5, label=named[scenario])
        if 1 < several < 10:
            epsilon = np.array([[bound.epsilon for bound in repeat] for repeat in repeats])
            ax.plot(x, epsilon.T, color=look["color"], alpha=0.35, linewidth=0.8)
        artists[scenario] = ax.errorbar(x, mean, yerr=error if several > 1 else None, elinewidth=0.8, **look)
    ax.set_xlim(0, x.max() * 1.02)
    ax.set_ylim(bottom=0)
    if ceiling is not None:
        artists["ceiling"] = draw_ceiling(ax, x, ceiling)
    ax.set_xlabel("training step" if steps_per_epoch is None else "epoch")
    ax.set_ylabel(r"$\varepsilon$")
    if legend:
        ax.legend(loc="best")
    return artists


def accounted(ax: Axes, x: Array, **epsilons: ArrayLike | None) -> dict[str, Artist | Container]:
    """The accountants' ε at each x, by name, each in its look; None leaves one out."""
    return {
        name: ax.plot(x, checks.array(name, values, shape=x.shape, finite=False), **looks(name))[0]
        for name, values in epsilons.items()
        if values is not None
    }


def epsilon_against_delta(
    ax: Axes,
    delta: ArrayLike,
    *,
    substitute: ArrayLike | None = None,
    add_remove: ArrayLike | None = None,
    group: ArrayLike | None = None,
) -> dict[str, Artist | Container]:
    """The ε that a training has at each δ: its privacy curves, with δ on a logarithmic axis.

    Args:
        ax: where to draw.
        delta: (k,) values of δ, > 0 and < 1.
        substitute, add_remove, group: (k,) the accountants' ε at these δ; None leaves it out.

    Returns:
        The artists by name, to put into a legend or to change.
    """
    x = checks.array("delta", delta, shape=("k",), at_least=0, at_most=1)
    artists = accounted(ax, x, group=group, substitute=substitute, add_remove=add_remove)
    ax.set(xscale="log", xlabel=r"$\delta$", ylabel=r"$\varepsilon$")
    ax.set_ylim(bottom=0)
    return artists


def epsilon_panels(panels: Mapping[str, Mapping[str, Any]], *, source: str) -> Figure:
    """Panels of `epsilon_against_step` side by side, with a shared ε axis, one legend above and the source below.

    Args:
        panels: for each panel's label ("q = 1"), the arguments that `findings.panel` returns. `findings.panels` makes
            all of them.
        source: the tasks and the number of models, as `findings.source` words them.

    Source: *Beyond Membership*, Figures 3, 4, A2, A3, A4 and A6.
    """
    figure, row = plt.subplots(1, len(panels), figsize=(6.8, 3.0), squeeze=False, layout="constrained")
    shared: dict[str, Any] = {}
    several = len({repeats[0][0].assumes for panel in panels.values() for repeats in panel["audited"].values()}) > 1
    for ax, (name, panel) in zip(row[0], panels.items(), strict=True):
        drawn = epsilon_against_step(ax, **panel, legend=False)
        for scenario in panel["audited"] if several else ():
            rests_on = what_it_rests_on(panel["audited"][scenario][0][0])
            drawn[scenario].set_label(f"{looks(scenario)['label']}, {rests_on}")
        shared |= {str(artist.get_label()): artist for artist in drawn.values() if not isinstance(artist, Annotation)}
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
    >>> bound = estimators.epsilon_lower_bound(scores, bits, delta=1e-5, claim="dp")
    >>> sorted(beside_claims(plt.figure().subplots(), {"Laplace": bound}, claimed=1.5))
    ['Laplace', 'claimed']
    """
    rows = np.arange(len(bounds))
    artists: dict[str, Artist | Container] = {}
    for name, given in (("claimed", claimed), ("ceiling", ceiling)):
        if given is not None:
            at = [given[audit] for audit in bounds] if isinstance(given, Mapping) else [given] * len(rows)
            artists[name] = ax.vlines(at, rows - 0.5, rows + 0.5, **looks(name))
    named = labels(bounds, {name: literal(name) for name in bounds})
    for row, (name, bound) in enumerate(bounds.items()):
        fill = COLORS[0] if bound.valid else "white"
        label = "lower bound" if row == 0 else "_"  # once in a legend
        (artists[name],) = ax.plot(bound.epsilon, row, "o", color=COLORS[0], markerfacecolor=fill, label=label)
    ax.set_yticks(rows, list(named.values()))
    ax.set_ylim(len(bounds) - 0.4, -0.6)
    ax.set_xlim(left=0)
    ax.set_xlabel(r"$\varepsilon$")
    return artists


def draw_ceiling(ax: Axes, x: ArrayLike, ceiling: ArrayLike) -> Artist:
    """Draw the most that this number of runs can show: a line, or a note if it lies far above everything drawn.

    Args:
        ax: where to draw, with an ε axis that starts at 0.
        x: (k,) where the points are.
        ceiling: the bound that a perfect attack would reach; (k,) if it depends on the point.
    """
    most = np.broadcast_to(checks.array("ceiling", ceiling), np.shape(x))
    top, low, high = ax.get_ylim()[1], most.min(), most.max()
    if low > 1.5 * top:
        return note_ceiling(ax, most)
    line = ax.axhline(low, **looks("ceiling")) if low == high else ax.plot(x, most, **looks("ceiling"))[0]
    ax.set_ylim(top=max(top, 1.08 * min(high, 1.5 * top)))
    return line


def note_ceiling(ax: Axes, ceiling: ArrayLike) -> Annotation:
    """Write above the right corner of the axes, where no data is, which bound a perfect attack would reach."""
    low, high = f"{np.min(ceiling):.0f}", f"{np.max(ceiling):.0f}"
    look: dict[str, Any] = {"xycoords": "axes fraction", "ha": "right", "va": "bottom", "color": "0.35"}
    return ax.annotate(f"ceiling: {low if low == high else f'{low} to {high}'}", (1, 1.0), **look)
