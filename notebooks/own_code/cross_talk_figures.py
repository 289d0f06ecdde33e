"""Separation of the worlds: by score, by number of pairs, by width."""

import numpy as np

from dpsub import figures
from own_code.cross_talk_tables import KINDS, SCORES

LOOKS = {
    name: {"color": color, "marker": marker, "label": SCORES[name]}
    for name, color, marker in zip(
        SCORES, figures.COLORS, "osD^", strict=False
    )
}
ALONE = {
    "marker": "|",
    "color": "0.35",
    "ls": "",
    "ms": 11,
    "mew": 1.5,
    "label": "if undisturbed",
}


def at_most(ax, value, along="x"):
    """What gradient pairs have that nothing disturbs: a grey line."""
    draw = ax.axvline if along == "x" else ax.axhline
    draw(value, **figures.looks("ceiling", label="gradient pairs"))


def by_score(ax, found, limit):
    """A row for each audit of linear heads, a mark for each score.

    Args:
        ax: where.
        found: of `cross_talk_tables.frame`.
        limit: what undisturbed gradient pairs have.
    """
    shown = found.xs(0, level="width").reset_index()
    shown = shown[shown.models == shown.trained]
    cells = shown.drop_duplicates(["kind", "records", "pairs"])
    cells = cells[["kind", "records", "pairs", "alone"]]
    names = []
    for row, (kind, records, pairs, alone) in enumerate(
        cells.itertuples(index=False)
    ):
        at = shown[(shown.kind == kind) & (shown.records == records)]
        for one in at[at.pairs == pairs].itertuples():
            offset = 0.16 * (list(LOOKS).index(one.score) - 1.5)
            ax.errorbar(
                one.separation,
                row + offset,
                xerr=2 * one.error,
                ls="",
                ms=4,
                elinewidth=0.7,
                capsize=0,
                **LOOKS[one.score] | ({} if row == 0 else {"label": None}),
            )
        label = {"label": None} if row else {}
        ax.plot(alone, row, **ALONE | label)
        names.append(f"{KINDS[kind]}, m = {pairs:,}, n = {records:,}")
    at_most(ax, limit)
    ax.axvline(0, color="0.8", lw=0.7, zorder=0)
    ax.set_yticks(np.arange(len(names)), names)
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.set_xlabel("separation of the worlds")


def lines(ax, table, column):
    """A line for each score, by the numbers in a column."""
    for i, (name, look) in enumerate(LOOKS.items()):
        own = table[table.score == name].sort_values(column)
        at = np.arange(len(own)) + 0.05 * (i - 1.5)
        ax.errorbar(
            at,
            own.separation,
            yerr=2 * own.error,
            ms=4,
            lw=1,
            capsize=0,
            **look,
        )


def by_pairs(ax, found, records):
    """Mislabeled pairs on a linear head, by their number."""
    shown = found.loc["mislabeled"].reset_index()
    shown = shown[(shown.records == records) & (shown.width == 0)]
    shown = shown[shown.models == shown.trained]
    lines(ax, shown, "pairs")
    names = [f"{one:,}" for one in sorted(shown.pairs.unique())]
    ax.set_xticks(np.arange(len(names)), names)
    ax.set_xlabel("pairs in a training, m")
    figures.tag(ax, f"linear, n = {records:,}")


def by_width(ax, found, records):
    """A hundred mislabeled pairs, by the width of the hidden layer."""
    shown = found.loc["mislabeled"].reset_index()
    shown = shown[(shown.records == records) & (shown.pairs == 100)]
    shown = shown[shown.models == shown.trained]
    lines(ax, shown, "width")
    names = [str(one or "none") for one in sorted(shown.width.unique())]
    ax.set_xticks(np.arange(len(names)), names)
    ax.set_xlabel("hidden units")
    figures.tag(ax, f"m = 100, n = {records:,}")


def by_directions(ax, found, alone):
    """The separation by the number of directions removed.

    Args:
        ax: where.
        found: of `cross_talk.projected`.
        alone: what undisturbed pairs of this kind have.
    """
    values = found["projected"]
    ax.plot(
        np.arange(len(values)), values, color=LOOKS["expected"]["color"]
    )
    ax.axhline(found["softened"], color=LOOKS["whitened"]["color"], ls="-.")
    ax.axhline(alone, color=ALONE["color"], ls=":")
    ax.set_xlabel("directions removed")
    name = f"m = {found['pairs']}, n = {found['records']:,}"
    figures.tag(ax, name)
