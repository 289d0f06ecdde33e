"""Audits over seeds: their spread, and figures of it."""

from dataclasses import asdict, replace

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from scipy.stats import ttest_1samp

from dpsub import figures

FEW = 10  # up to so many seeds are shown one by one
BOUNDS = {"bets": "training_bets", "f-DP (ZB)": "training_gdp_zb"}  # of the training's ε, by the name of a line
ESTIMATE = {"estimate": "training_mu"}  # the training's ε at the estimated μ of a step
SHOWN = BOUNDS | ESTIMATE
SUMMED = {"apart": "apart", "others": "others", "bets": "training_bets"}
LEAST = 4  # with fewer seeds an interval is too wide to be shown


def over_seeds(table, setting, column, *, part="all"):
    """A column of a setting's audits, an entry for each seed that has one."""
    rows = table[table["part"] == part]
    for name, value in asdict(setting).items():
        rows = rows[rows[name] == value]
    return rows.set_index("seed")[column].dropna().sort_index()


def by_setting(table, settings, column):
    """A column of several settings' audits by their labels: a row for each seed that all have."""
    return pd.DataFrame({name: over_seeds(table, one, column) for name, one in settings.items()}).dropna()


def interval(values):
    """The mean over seeds, and the two ends of its 95 % interval by Student's t. One seed has no interval."""
    mean = np.mean(values)
    if len(values) < 2:
        return mean, np.nan, np.nan
    if not np.ptp(values):
        return mean, mean, mean
    found = ttest_1samp(values, 0).confidence_interval()
    return mean, found.low, found.high


def said(values, digits=2):
    """The mean and how far its interval reaches to either side, or the number of few seeds."""
    mean, _, high = interval(values)
    beside = f"± {high - mean:.{digits}f}" if len(values) >= LEAST else f"(n = {len(values)})"
    return f"{mean:.{digits}f} {beside}".replace("-", "−")


def summary(table, settings, columns=SUMMED):
    """A row for each setting, by its label: means and their intervals."""
    rows = {}
    for label, one in settings.items():
        found = {name: over_seeds(table, one, column) for name, column in columns.items()}
        rows[label] = {"seeds": len(next(iter(found.values())))}
        rows[label] |= {name: said(values) for name, values in found.items()}
    return pd.DataFrame.from_dict(rows, orient="index")


def dots(ax, at, found, *, across=False, **look):
    """Means of values over seeds, and their intervals or single seeds, at some places of an axis."""
    means, low, high = np.array([interval(one) for one in found]).T
    enough = np.array([len(one) >= LEAST for one in found])
    error = np.where(enough, [means - low, high - means], 0)
    places, color = np.asarray(at, dtype=float), look["color"]
    for place, one in zip(places, found, strict=True):
        if len(one) <= FEW:
            where = np.full(len(one), place)
            pair = (one, where) if across else (where, one)
            ax.plot(*pair, ".", color=color, ms=3, alpha=0.35, zorder=1)
    look = {"marker": "o", "ls": "", "capsize": 2.5, "ms": 4} | look
    if across:
        return ax.errorbar(means, places, xerr=error, **look)
    return ax.errorbar(places, means, yerr=error, **look)


def rows_of_dots(ax, lines, rows, *, accountant, labels, span):
    """A row for each setting, with the bounds of several estimators, and a line for the training's ε.

    `lines` has by the name of an estimator values over seeds by setting, `rows` the names of all rows, also of those
    that are empty here. Single values beyond the `span` of the axis are written at its edge.
    """
    names = list(next(iter(lines.values())))
    at = np.array([rows.index(name) for name in names])
    ax.axvline(accountant, **figures.looks("add_remove"))
    for number, (label, found) in enumerate(lines.items()):
        places = at + 0.22 * (number - (len(lines) - 1) / 2)
        look = {"color": figures.COLORS[number], "marker": "os^Dv"[number], "label": label}
        dots(ax, places, [found[name] for name in names], across=True, **look)
        for place, name in zip(places, names, strict=True):
            if beyond := ", ".join(f"{one:.1f}" for one in found[name] if span and one > span[1]):
                where = {"xytext": (-1, -4), "textcoords": "offset points", "ha": "right", "va": "top"}
                ax.annotate(f"{beyond} →", (span[1], place), fontsize=9, **where)
    for name in rows:
        if name not in names:
            ax.text(0.97, rows.index(name), "not tried", transform=ax.get_yaxis_transform(), ha="right", va="center")
    ax.set_yticks(range(len(rows)), [name.replace("dirac", "Dirac") for name in rows] if labels else [])
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.set_xlim(span or (0, None))
    ax.set_xlabel("ε of the training run")


def of_bounds(table, settings, columns=BOUNDS):
    """By the name of a line and by setting, the bounds over seeds."""
    return {
        label: {name: over_seeds(table, one, column) for name, one in settings.items()}
        for label, column in columns.items()
    }


def panels(table, kept, *, accountant, height=3.0, span=None, columns=BOUNDS):
    """A panel with `rows_of_dots` for each task, whose settings `kept` has by name. All panels have the same rows."""
    found = {task: of_bounds(table, settings, columns) for task, settings in kept.items()}
    rows = list(dict.fromkeys(name for settings in kept.values() for name in settings))
    size = (6.8 if len(kept) > 1 else 5.4, height)
    figure, axes = plt.subplots(1, len(kept), figsize=size, layout="constrained", sharex=True, squeeze=False)
    for ax, (task, lines) in zip(axes[0], found.items(), strict=True):
        rows_of_dots(ax, lines, rows, accountant=accountant, labels=ax is axes[0, 0], span=span)
        figures.tag(ax, task)
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return figure


def over_epsilon(table, lines, epsilons):
    """By the name of a bound, and by line and ε, its values over seeds."""
    return {
        label: {
            (line, epsilon): over_seeds(table, replace(one, epsilon=epsilon), column)
            for line, one in lines.items()
            for epsilon in epsilons
        }
        for label, column in BOUNDS.items()
    }


def shares_by_epsilon(found, lines, epsilons):
    """A panel for each bound of `over_epsilon`: shares of the accountant's ε."""
    figure, axes = plt.subplots(1, len(found), figsize=(6.8, 3.4), layout="constrained", sharey=True)
    places = np.arange(len(epsilons))
    for ax, (label, bounds) in zip(axes, found.items(), strict=True):
        ax.axhline(1, **figures.looks("add_remove"))
        for number, line in enumerate(lines):
            shares = [bounds[line, epsilon] / epsilon for epsilon in epsilons]
            look = {"color": figures.COLORS[number], "marker": "osPD^"[number], "ls": "-", "lw": 0.8, "label": line}
            dots(ax, places + 0.1 * (number - 2), shares, **look)
        ax.set_xticks(places, [f"{one:g}" for one in epsilons])
        ax.set_xlabel("accountant's ε")
        figures.tag(ax, label)
    axes[0].set_ylim(bottom=0)
    axes[0].set_ylabel("bound / accountant's ε")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return figure


def halves(table, along, columns):
    """By setting of a single training and column, the values of its first and its second half."""
    return {
        (*key, column): [over_seeds(table, one, column, part=part) for part in ("first half", "second half")]
        for key, one in along.items()
        for column in columns
    }


def along_training(found, along, panels, *, alone):
    """A panel for each of some columns of `halves`; `alone` is the μ of a canary that no other record touches."""
    figure, axes = plt.subplots(1, len(panels), figsize=(6.8, 3.0), layout="constrained", sharex=True)
    for ax, (column, label) in zip(axes, panels.items(), strict=True):
        for number, key in enumerate(along):
            look = {"color": figures.COLORS[number], "marker": "osD^"[number], "ls": "-" if number < 2 else ":"}
            places = np.arange(2) + 0.08 * (number - 1.5)
            dots(ax, places, found[(*key, column)], label=", ".join(key), **look)
        ax.set_xticks([0, 1], ["first half", "second half"])
        ax.set_xlim(-0.4, 1.4)
        figures.tag(ax, label)
    axes[0].axhline(alone, **figures.looks("add_remove", label=None))
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=2)
    return figure
