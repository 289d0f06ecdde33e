"""False-positive and false-negative rates: trade-off functions, and what audits found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from numpy.typing import ArrayLike

from dpsub._core import checks
from dpsub.estimators.risk_bounds import RiskBound
from dpsub.estimators.scores_and_marks import scores_and_bits
from dpsub.figures.style import COLORS, LOOKS, literal, looks

GUESSING: dict[str, Any] = {"color": "0.8", "linestyle": ":", "label": "guessing"}


def tradeoffs(ax: Axes, fpr: ArrayLike, fnr: Mapping[str, ArrayLike]) -> dict[str, Artist]:
    """Trade-off functions by name, with the line of guessing: the lower a curve, the better the best attack.

    Adjacencies have their looks. Each other name has a colour and a line style of its own.

    Source: *Tight Auditing*, section 4; Dong, Roth and Su (2022), Definition 2.1.
    """
    artists: dict[str, Artist] = {}
    (artists["guessing"],) = ax.plot([0, 1], [1, 0], **GUESSING)
    own = zip(cycle(COLORS), cycle(("-", "--", "-.", (0, (5, 1, 1, 1, 1, 1)))), strict=False)
    for name, values in fnr.items():
        look: dict[str, Any] = {}
        if name not in LOOKS:
            look["color"], look["linestyle"], look["marker"] = *next(own), ""
        label = {"substitute": "substitute", "add_remove": "add/remove"}.get(name, literal(name))
        rates = [checks.array(axis, x, at_least=0, at_most=1) for axis, x in (("fpr", fpr), (f"fnr[{name!r}]", values))]
        (artists[name],) = ax.plot(*rates, **looks(name, label=label, **look))
    ax.set(xlabel="false-positive rate", ylabel="false-negative rate", xlim=(0, 1), ylim=(0, 1))
    return artists


def roc(
    ax: Axes,
    audits: Mapping[str, tuple[ArrayLike, ArrayLike]],
    *,
    certified: Mapping[str, RiskBound | Sequence[RiskBound]] | None = None,
) -> dict[str, Artist]:
    """What audits found at each false-positive rate, with the line of guessing: the higher a curve, the better.

    A curve is counted from the audit's own scores, at every threshold, and promises nothing: with other runs it would
    be another one. What holds for the training are the points of `certified`. `estimators.risk_lower_bound` fixes its
    thresholds by the numbers of runs alone, and tests both rates in one: the threshold's false-positive rate, which is
    not known either, is integrated out over its law. So with confidence 1 − alpha some attack on this training finds at
    least `risk` of one world's models at a false-positive rate of at most `fpr`. Several points hold each by itself.

    Args:
        ax: where to draw; `ax.set(xscale="log", xlim=(1e-3, 1))` afterwards shows small rates.
        audits: for each name scores (runs,), higher speaks for z, and bits (runs,), 0 for z.
        certified: for some of these names a bound, or several, of measure "tpr". Hollow if it is not valid.

    Returns:
        The artists by name: "guessing", each audit's, and its points' as "…, certified".

    Raises:
        ValueError: if scores are of several steps, or a bound is of another measure.
    """
    artists: dict[str, Artist] = {}
    rates = np.append(0, np.geomspace(1e-6, 1))  # a curve, if the axis is logarithmic
    (artists["guessing"],) = ax.plot(rates, rates, **GUESSING)
    for name, (scores, bits) in audits.items():
        columns, in_z, _ = scores_and_bits(scores, bits)
        if columns.shape[1] > 1:
            raise ValueError(f"audits[{name!r}] must have scores of one step, got {columns.shape[1]}: choose one")
        levels = np.append(np.inf, np.unique(columns)[::-1])
        tpr, fpr = (1 - np.searchsorted(np.sort(columns[world, 0]), levels) / world.sum() for world in (in_z, ~in_z))
        (artists[name],) = ax.plot(fpr, tpr, **looks(name, ax, marker=""))
    for name, given in (certified or {}).items():
        bounds = [given] if isinstance(given, RiskBound) else given
        if others := {bound.measure for bound in bounds} - {"tpr"}:
            raise ValueError(f"certified[{name!r}] must be of measure 'tpr', got {others.pop()!r}")
        look = looks(name, ax)
        fill = look["color"] if all(bound.valid for bound in bounds) else "white"
        look |= {"linestyle": "none", "markerfacecolor": fill, "label": f"{look['label']}, certified"}
        points = [bound.fpr for bound in bounds], [bound.risk for bound in bounds]
        (artists[f"{name}, certified"],) = ax.plot(*points, **look)
    ax.set(xlabel="false-positive rate", ylabel="true-positive rate", xlim=(0, 1), ylim=(0, 1))
    return artists
