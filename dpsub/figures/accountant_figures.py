"""Figures of accountants' numbers without audits: against the noise, and trade-off functions."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from numpy.typing import ArrayLike

from dpsub._core import checks
from dpsub.figures.arguments import named, on_axes, points
from dpsub.figures.style import COLORS, LOOKS, PALETTES, literal, looks


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
    reference = checks.real("reference", reference)
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
