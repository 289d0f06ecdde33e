"""Audits over seeds: their spread, and figures of it."""

from dataclasses import asdict

import numpy as np
import pandas as pd
from scipy.stats import ttest_1samp

from dpsub import figures
from studies.tight_auditing.step_seeds import NAMES

FEW = 10  # up to so many seeds are shown one by one
LEAST = 4  # with fewer seeds an interval is too wide to be shown


def over_seeds(table, setting, column, *, part="all"):
    """A column of a setting's audits, an entry for each seed."""
    rows = table[table["part"] == part]
    for name, value in asdict(setting).items():
        rows = rows[rows[name] == value]
    return rows.set_index("seed")[column].sort_index()


def audited(table, settings):
    """Those of the settings, by their labels, that the table has."""
    known = set(table[NAMES].itertuples(index=False, name=None))
    return {label: one for label, one in settings.items() if tuple(asdict(one).values()) in known}


def interval(values, confidence=0.95):
    """The mean over seeds, and the two ends of its interval by Student's t. One seed has no interval."""
    mean = np.mean(values)
    if len(values) < 2:
        return mean, np.nan, np.nan
    if not np.ptp(values):
        return mean, mean, mean
    found = ttest_1samp(values, 0).confidence_interval(confidence)
    return mean, found.low, found.high


def said(values, digits=2):
    """The mean and its interval in words, or the number of few seeds."""
    mean, low, high = (f"{one:.{digits}f}" for one in interval(values))
    count = len(values)
    beside = f"{low} to {high}" if count >= LEAST else f"n = {count}"
    return f"{mean} ({beside})".replace("-", "−")


def summary(table, settings, columns):
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


def rows_of_dots(ax, lines, *, accountant, labels=True):
    """A row for each setting, with the bounds of several estimators, and a line for the training's ε.

    `lines` has by the name of an estimator values over seeds by setting.
    """
    names = list(next(iter(lines.values())))
    at = np.arange(len(names))
    ax.axvline(accountant, **figures.looks("add_remove"))
    for number, (label, found) in enumerate(lines.items()):
        places = at + 0.22 * (number - (len(lines) - 1) / 2)
        look = {"color": figures.COLORS[number], "marker": "os^Dv"[number], "label": label}
        dots(ax, places, [found[name] for name in names], across=True, **look)
    ax.set_yticks(at, names if labels else [])
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.set_xlim(left=0)
    ax.set_xlabel(r"$\varepsilon$ of the training")
