"""Figures 2, 5 and A5: audited lower bounds and the accountants' ε against each other, the runs and the noise."""

from itertools import cycle

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.lines import Line2D

from dpsub import accounting
from dpsub.estimators import over_repeats
from dpsub.figures import LOOKS, PALETTES, draw_ceiling, labels, literal, looks, note_ceiling, number, tag


def worst_case(ax, *, substitute, add_remove, group, audited, ceiling=None):
    """Figure 2: audited ε against the substitute accountant's, one point for each noise multiplier.

    Args:
        substitute, add_remove, group: (points,) the accountants' ε, increasing.
        audited: for each estimator, by its name in the legend, its repeats: lists with one bound for each point. Drawn
            as mean ± 2 standard errors, shifted sideways so that they do not overlap; hollow if they are not valid.
        ceiling: the bound that a perfect attack would reach with as many runs; (points,) if it depends on the point.

    Source: *Beyond Membership*, Figure 2.
    """
    x = np.asarray(substitute)
    promised = {"group": np.asarray(group), "substitute": x, "add_remove": np.asarray(add_remove)}
    artists = {}
    for name, values in promised.items():
        (artists[name],) = ax.plot(x, values, **looks(name))
    beside = np.linspace(-0.025, 0.025, len(audited)) * x.max() if len(audited) > 1 else [0.0]
    firsts = {name: repeats[0][0] for name, repeats in audited.items()}
    named = labels(firsts, {name: f"S1, {literal(name)}" for name in audited})
    look = {"color": LOOKS["S1"]["color"], "markersize": 3.5, "linestyle": "none"}
    for (name, repeats), shift, marker in zip(audited.items(), beside, cycle("oD^s"), strict=False):
        mean, error, _ = over_repeats(repeats)
        fill = look["color"] if firsts[name].valid else "white"
        artists[name] = ax.errorbar(
            x + shift, mean, yerr=np.nan_to_num(error), marker=marker, mfc=fill, label=named[name], **look
        )
    ax.set_xlim(left=0)
    highest = max((value for value in promised["group"] if np.isfinite(value)), default=0.0)
    ax.set_ylim(0, max(ax.get_ylim()[1], 1.05 * highest))  # the larger limit, if panels share this axis
    if ceiling is not None:
        artists["ceiling"] = draw_ceiling(ax, x, ceiling)
    ax.set_xlabel(r"$\varepsilon_S$ (accounting)")
    ax.set_ylabel(r"$\varepsilon$")
    return artists


def against_runs(ax, runs, *, audited, substitute, add_remove, ceiling):
    """Figure 5: lower bounds from the final models against the number of runs.

    `audited` has for each scenario its repeats, each a list of a bound for each number of runs, increasing; `ceiling`
    has the bounds that a perfect attack would reach.

    Source: *Beyond Membership*, Figure 5.
    """
    x, most = np.asarray(runs), np.asarray(ceiling)
    artists = {
        "substitute": ax.axhline(substitute, **looks("substitute")),
        "add_remove": ax.axhline(add_remove, **looks("add_remove")),
    }
    named = labels({scenario: repeats[0][0] for scenario, repeats in audited.items()})
    for scenario, repeats in audited.items():
        mean, error, several = over_repeats(repeats)
        look = looks(scenario, ax, label=named[scenario])
        artists[scenario] = ax.errorbar(x, mean, yerr=error if several > 1 else None, elinewidth=0.8, **look)
    (artists["ceiling"],) = ax.plot(x, most, **looks("ceiling"))
    ax.set_xscale("log")
    highest = max(np.max(over_repeats(repeats).mean) for repeats in audited.values())
    top = 1.15 * max(substitute, highest)
    ax.set_ylim(0, top)
    if most.max() > top:  # the line leaves the axes: say where it goes
        note_ceiling(ax, most)
    ax.set_xlabel("runs, both worlds")
    ax.set_ylabel(r"$\varepsilon$")
    return artists


def figure_5(found, pooled, *, runs, ceiling, promised, most):
    """Figure 5: a panel for each sample rate, and beside its curves the bounds of all runs as one audit, hollow.

    Args:
        found: for each sample rate and scenario its repeats, as in `against_runs`.
        pooled: for each of them the bound of all runs as one audit.
        promised: for each sample rate the accountants' ε, by adjacency.
        most: all runs.
    """
    fig, axes = plt.subplots(1, len(promised), figsize=(6.8, 3.4), sharey=True, squeeze=False, layout="constrained")
    for ax, (q, accounted) in zip(axes.flat, promised.items(), strict=True):
        audited = {scenario: repeats for (rate, scenario), repeats in found.items() if rate == q}
        artists = against_runs(ax, runs, audited=audited, **accounted, ceiling=ceiling)
        for scenario in audited:
            look = looks(scenario, label=None, linestyle="none", mfc="white")
            ax.plot(most, pooled[q, scenario].epsilon, **look)
        ax.set_xticks([*runs, most], [number(count) for count in [*runs, most]], rotation=60)
        ax.minorticks_off()
        tag(ax, f"q = {q:g}")
        ax.label_outer()
    hollow = Line2D([], [], color="black", marker="o", mfc="white", linestyle="none", label="all runs as one audit")
    fig.legend(handles=[*artists.values(), hollow], loc="outside upper center", ncols=3)
    return fig


def planned(runs, *, ceiling, ideal, seen):
    """Bounds by runs: the ceiling, ideal attacks with their ε (dashed), and real ones beside them.

    Args:
        ideal: for each ε of an attack the bounds that it is likely to reach, for each of `runs`.
        seen: for each scenario, its mean bound by the number of runs.
    """
    fig, ax = plt.subplots(figsize=(5.4, 3.3), layout="constrained")
    for (epsilon, likely), color in zip(ideal.items(), ("black", "0.5"), strict=True):
        ax.axhline(epsilon, color=color, linestyle="--", linewidth=0.9)
        ax.plot(runs, likely, color=color, label=f"ideal attack, ε = {epsilon:g}")
    ax.plot(runs, ceiling, **looks("ceiling"))
    for scenario, bounds in seen.items():
        ax.plot(bounds, **looks(scenario, linestyle="none"))
    ax.set(
        xscale="log",
        xlabel="runs, both worlds",
        ylabel=r"lower bound on $\varepsilon$",
        ylim=(0, 20),
        yticks=range(0, 21, 5),
    )
    fig.legend(loc="outside right upper")
    return fig


def against_noise(ax, noise_multipliers, values, *, reference):
    """Figure A5: a quantity against the noise multiplier, one line for each sample rate, and a dashed reference.

    Source: *Beyond Membership*, Figure A5.
    """
    artists = {}
    shades = PALETTES["rate"]
    last = max(len(noise_multipliers) - 1, 1)
    for place, (q, marker) in enumerate(zip(noise_multipliers, cycle("osD^vP"), strict=False)):
        color = shades[round(place * (len(shades) - 1) / last)]
        (artists[q],) = ax.plot(
            noise_multipliers[q], values[q], color=color, marker=marker, markersize=3, label=f"q = {q:g}"
        )
    ax.axhline(reference, color="black", linestyle="--", linewidth=0.9)
    ax.set_xscale("log")
    ax.set_xlabel("noise multiplier σ")
    return artists


def ratios(sample_rates, epsilons, *, points, steps, delta):
    """Both ε and their ratio where the noise is calibrated to add/remove ε between two, and the δ that twice it takes.

    The column "δ at twice" is the δ at which twice the add/remove ε holds under substitution, over the δ stated.

    Source: *Beyond Membership*, Figure A5.
    """
    rows = []
    for q in sample_rates:
        for target in np.geomspace(*epsilons, points):
            asked = {"sample_rate": q, "steps": steps}
            asked["noise_multiplier"] = sigma = accounting.noise_multiplier(
                target_epsilon=target, delta=delta, adjacency="add_remove", **asked
            )
            substitute = accounting.epsilon(**asked, delta=delta, adjacency="substitute")
            needed = accounting.delta(**asked, epsilon=2 * target, adjacency="substitute")
            rows.append((q, sigma, target, substitute, substitute / target, needed / delta))
    return pd.DataFrame(rows, columns=["q", "σ", "add/remove", "substitute", "ratio", "δ at twice"])


def adjacency_ratio(table):
    """Figure A5 from the table of `ratios`: the ratio of both ε, and the δ that twice the add/remove ε takes."""
    fig, (left, right) = plt.subplots(1, 2, figsize=(6.8, 2.9), layout="constrained")
    by_rate = dict(list(table.groupby("q", sort=False)))
    sigmas, values, deltas = ({q: part[name] for q, part in by_rate.items()} for name in ("σ", "ratio", "δ at twice"))
    artists = against_noise(left, sigmas, values, reference=2)
    left.set_ylabel(r"$\varepsilon_S / \varepsilon_{AR}$")
    against_noise(right, sigmas, deltas, reference=1)
    right.set_yscale("log")
    right.set_ylim(bottom=1e-4)
    right.set_ylabel(r"true δ at $2\varepsilon_{AR}$ / stated δ")
    fig.legend(handles=list(artists.values()), loc="outside lower center", ncols=4)
    return fig
