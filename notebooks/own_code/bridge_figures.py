"""Cost against tightness, and what pairs in a training cost each other."""

import numpy as np

from dpsub import figures
from own_code import bridge

SIZES = (1, 10, 50, 200)  # pairs in a training, as in bridge.SIZES
MARKERS = dict(zip(SIZES, "osD^", strict=True))
COLORS = dict(zip(SIZES, figures.COLORS, strict=False))
NAMES = {
    "gradient": "gradient pairs",
    "mislabeled": "mislabeled pairs",
}
SCORE_NAMES = {"step_score": "every step", "score": "final model"}


def look(pairs):
    """The colour and marker of a number of pairs."""
    return {"color": COLORS[pairs], "marker": MARKERS[pairs], "ms": 4}


def tightness(ax, rows, kind, substitute):
    """Mean bounds by the number of trainings, a line for each m.

    Args:
        ax: where.
        rows: of `bridge.table`.
        kind: of pairs.
        substitute: ε_S of the training, by accounting.
    """
    shown = rows[(rows.kind == kind) & (rows.score == "step_score")]
    for pairs in SIZES:
        own = shown[(shown.pairs == pairs) & (shown.method == "gdp")]
        label = f"m = {pairs}"
        ax.plot(own.models, own["mean"], label=label, **look(pairs))
        ax.fill_between(
            own.models,
            own["min"],
            own["max"],
            color=COLORS[pairs],
            alpha=0.15,
            lw=0,
        )
    own = shown[shown.method == "product"]
    own = own[own.pairs == own.pairs.max()]
    if len(own):
        label = f"m = {own.pairs.iloc[0]}, if independent"
        hollow = look(own.pairs.iloc[0]) | {"mfc": "white", "ls": ":"}
        ax.plot(own.models, own["mean"], label=label, **hollow)
    for pairs in SIZES[:: len(SIZES) - 1]:
        own = shown[(shown.pairs == pairs) & (shown.method == "gdp")]
        highest = [bridge.ceiling(pairs, one) for one in own.models]
        label = "ceilings of m = 1 and m = 200" if pairs > 1 else None
        mark = {"marker": MARKERS[pairs], "ms": 2, "label": label}
        ax.plot(own.models, highest, **figures.looks("ceiling", **mark))
    ax.axhline(substitute, **figures.looks("substitute"))
    ax.set_xscale("log", base=2)
    ticks = 4 ** np.arange(0, 6)
    ax.set_xticks(ticks, [f"{one:,}" for one in ticks])
    ax.set_ylim(-0.02 * substitute, 1.6 * substitute)
    ax.set_xlabel("models trained")
    figures.tag(ax, NAMES[kind])


def disturbance(ax, accuracy, rows):
    """Separation and accuracy by the number of pairs in a training."""
    styles = {"step_score": "-", "score": ":"}
    for kind, color, marker in zip(
        NAMES, figures.COLORS, "os", strict=False
    ):
        own = rows[(rows.kind == kind) & (rows.method == "gdp")]
        own = own.drop_duplicates(["pairs", "score"])
        for score, style in styles.items():
            here = own[own.score == score]
            ax.plot(
                here.pairs,
                here.separation,
                color=color,
                marker=marker,
                ms=4,
                ls=style,
                label=f"{NAMES[kind]}, {SCORE_NAMES[score]}",
            )
        accuracy.plot(
            here.pairs,
            100 * here.accuracy,
            color=color,
            marker=marker,
            ms=4,
        )
    for one in (ax, accuracy):
        one.set_xscale("log")
        one.set_xticks(SIZES, [str(size) for size in SIZES])
        one.minorticks_off()
        one.set_xlabel("pairs in a training, m")
    ax.set_ylim(bottom=0)
    ax.set_ylabel("separation of the worlds")
    accuracy.set_ylabel("test accuracy, %")
