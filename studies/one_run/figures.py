"""Tables and figures of what hides coins, from a file of `cross_talk`."""

import numpy as np
import pandas as pd

from dpsub import figures

SCORES = {"final": "final model", "plain": "every step", "expected": "less what is expected", "whitened": "whitened"}
KINDS = {
    "mislabeled": "mislabeled",
    "natural": "natural",
    "attribute": "attribute",
    "unused": "unused pixel",
    "unused, large": "unused pixel, large",
}
CELL = ["kind", "records", "pairs", "width"]
LOOKS = {
    name: {"color": color, "marker": marker, "label": SCORES[name]}
    for name, color, marker in zip(SCORES, figures.COLORS, "osD^", strict=False)
}
ALONE = {"marker": "|", "color": "0.35", "ls": "", "ms": 11, "mew": 1.5, "label": "if undisturbed"}


def by_score(ax, found, limit):
    """A row for each audit of linear heads in a `frame`, and a mark for each score; `limit`: of gradient pairs."""
    shown = found.xs(0, level="width").reset_index()
    shown = shown[shown.models == shown.trained]
    cells = shown.drop_duplicates(["kind", "records", "pairs"])
    cells = cells[["kind", "records", "pairs", "alone"]]
    names = []
    for row, (kind, records, pairs, alone) in enumerate(cells.itertuples(index=False)):
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
        of_run = f"m = {pairs:,}, n = {records:,}"
        names.append(f"{KINDS[kind]},\n{of_run}")
    ax.axvline(limit, **figures.looks("ceiling", label="gradient pairs"))
    ax.axvline(0, color="0.8", lw=0.7, zorder=0)
    ax.set_yticks(np.arange(len(names)), names)
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.set_xlabel("separation of the worlds")


def lines(ax, table, column):
    """A line for each score, by the numbers in a column."""
    for i, (name, look) in enumerate(LOOKS.items()):
        own = table[table.score == name].sort_values(column)
        at = np.arange(len(own)) + 0.05 * (i - 1.5)
        ax.errorbar(at, own.separation, yerr=2 * own.error, ms=4, lw=1, capsize=0, **look)


def by_pairs(ax, found, records):
    """Mislabeled pairs on a linear head, by their number."""
    _mislabeled(ax, found, "pairs", "pairs in a training, m", "{:,}".format, records=records, width=0)
    figures.tag(ax, f"linear, n = {records:,}")


def by_width(ax, found, records):
    """A hundred mislabeled pairs, by the width of the hidden layer."""
    _mislabeled(ax, found, "width", "hidden units", lambda one: str(one or "none"), records=records, pairs=100)
    figures.tag(ax, f"m = 100, n = {records:,}")


def _mislabeled(ax, found, column, label, named, **wanted):
    """The audits of mislabeled pairs with these values of other columns, by a column."""
    shown = found.loc["mislabeled"].reset_index()
    shown = shown[shown.models == shown.trained]
    for name, value in wanted.items():
        shown = shown[shown[name] == value]
    lines(ax, shown, column)
    names = [named(one) for one in sorted(shown[column].unique())]
    ax.set_xticks(np.arange(len(names)), names)
    ax.set_xlabel(label)


def by_directions(ax, found, alone):
    """The separation by the number of directions removed, of `cross_talk.projected`, and that of undisturbed pairs."""
    values = found["projected"]
    ax.plot(np.arange(len(values)), values, color=LOOKS["expected"]["color"])
    ax.axhline(found["softened"], color=LOOKS["whitened"]["color"], ls="-.")
    ax.axhline(alone, color=ALONE["color"], ls=":")
    ax.set_xlabel("directions removed")
    figures.tag(ax, f"m = {found['pairs']}, n = {found['records']:,}")


def frame(rows):
    """The rows of a study by cell, score and number of models, with mean bounds and counts of all groups together."""
    found = pd.DataFrame(rows)
    found["gdp"] = [np.mean(one) for one in found.gdp]
    found["dp"] = [np.mean(one) for one in found.dp]
    found["groups"] = [len(one) for one in found.right]
    clear = [np.array(one)[:, 1].sum() for one in found.right]
    asked = [one[1] for one in found.guesses]
    found["right"], found["guesses"] = clear, asked * found.groups
    found["kind"] = pd.Categorical(found.kind, list(KINDS), ordered=True)
    found["score"] = pd.Categorical(found.score, list(SCORES), ordered=True)
    found["error"] = error(found.separation, found.scores)
    return found.set_index([*CELL, "score", "models"]).sort_index()


def error(separation, scores):
    """The standard error of a separation, if half the scores are of z."""
    return np.sqrt(4 / scores + separation**2 / (2 * scores))


def gradient_table(found):
    """Bounds of trainings with gradient pairs, and of ideal canaries."""
    trained = pd.DataFrame(found["trained"]["bounds"])
    exact, gaussian = (pd.DataFrame(found[name]["bounds"]).mean() for name in ("exact", "gaussian"))
    columns = {"trainings": trained.mean(), "lowest": trained.min(), "highest": trained.max()}
    columns |= {"ideal": exact, "share": trained.mean() / exact, "ideal of ε_S": gaussian}
    return pd.DataFrame(columns).rename_axis("guesses")


def bounds_table(found):
    """Guesses and bounds, a row for each audit and score."""
    last = found.reset_index("models")
    last = last[last.models == last.trained]
    parts = {}
    for way in ("gdp", "dp"):
        for count, bounds in found[way].unstack("models").reindex(last.index).items():
            parts[f"{way}, {count}"] = ["–" if np.isnan(one) else f"{one:.2f}" for one in bounds]
    counts = last.right.astype(str) + " of " + last.guesses.astype(str)
    table = pd.DataFrame(parts | {"right": counts}, index=last.index)
    named = [
        (f"{KINDS[kind]}, {m:,} of {n:,}" + (f", {width} units" if width else ""), SCORES[score])
        for kind, n, m, width, score in table.index
    ]
    return table.set_axis(pd.MultiIndex.from_tuples(named, names=["pairs, m of n", "score"]))
