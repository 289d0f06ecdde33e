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
    "gradient": "gradient",
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


def summary(found):
    """A row for each audit: separations, and bounds of all its models."""
    last = found.reset_index("models")
    last = last[last.models == last.trained]
    wide = last.separation.unstack("score").rename(columns=SCORES)
    first = last.groupby(CELL, observed=True)[["alone", "models"]].first()
    wide.columns = wide.columns.astype(str)
    return wide.join(first.rename(columns={"alone": "undisturbed"}))


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
