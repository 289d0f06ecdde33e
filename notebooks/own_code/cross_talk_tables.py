"""Tables of what hides coins, from a file that `cross_talk.study` made."""

import numpy as np
import pandas as pd

SCORES = {
    "final": "final model",
    "plain": "every step",
    "expected": "less what is expected",
    "whitened": "whitened",
}
KINDS = {
    "mislabeled": "mislabeled",
    "natural": "natural",
    "attribute": "attribute",
    "unused": "unused pixel",
    "unused, large": "unused pixel, large",
}
CELL = ["kind", "records", "pairs", "width"]


def frame(rows):
    """The rows of a study, with mean bounds and counts of all groups.

    Returns:
        A row for each cell, score and number of models, indexed by these.
        `right` and `guesses` are of all guesses, of all groups together.
    """
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
    exact, gaussian = (
        pd.DataFrame(found[name]["bounds"]).mean()
        for name in ("exact", "gaussian")
    )
    table = pd.DataFrame(
        {
            "trainings": trained.mean(),
            "lowest": trained.min(),
            "highest": trained.max(),
            "ideal": exact,
            "share": trained.mean() / exact,
            "ideal of ε_S": gaussian,
        }
    )
    table.index.name = "guesses"
    return table


def bounds_table(found):
    """Guesses and bounds, a row for each audit and score."""
    last = found.reset_index("models")
    last = last[last.models == last.trained]
    parts = {}
    for way in ("gdp", "dp"):
        wide = found[way].unstack("models")
        for count in wide:
            parts[f"{way}, {count}"] = [
                "–" if np.isnan(one) else f"{one:.2f}"
                for one in wide[count].reindex(last.index)
            ]
    counts = last.right.astype(str) + " of " + last.guesses.astype(str)
    table = pd.DataFrame(parts | {"right": counts}, index=last.index)
    kind, n, pairs, width, score = zip(*table.index, strict=True)
    sizes = zip(kind, pairs, n, width, strict=True)
    table.index = pd.MultiIndex.from_arrays(
        [
            [
                f"{KINDS[one]}, {m:,} of {of:,}"
                + (f", {hidden} units" if hidden else "")
                for one, m, of, hidden in sizes
            ],
            [SCORES[one] for one in score],
        ],
        names=["pairs, m of n", "score"],
    )
    return table
