"""What audits of fine-tuned language models show: tables, and a figure."""

from itertools import product

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from dpsub import accounting, estimators, figures
from studies.kept import read_table
from studies.language_models import audits

CELL = ["task", "canary", "sample_rate"]
TASKS = {"rating": 0, "last word": 1, "text": 2}
SEEN_BY = {
    "score": ("by what the model says", "o", figures.COLORS[0]),
    "along": ("by where the adapters went", "^", figures.COLORS[1]),
}


def kept():
    """The kept audits by what is learned, canary and sample rate: those of few reviews, and the others of each seed."""
    table = read_table("language_models/audits.csv")
    table = table.assign(order=table["task"].map(TASKS), q=-table["sample_rate"]).sort_values(["order", "q", "canary"])
    few = table["trained"] == audits.SMALL
    return table[few].set_index(CELL), table[~few].set_index(CELL)


def add_remove():
    """The add/remove ε of the trainings."""
    mechanism = audits.spec_of("rating").mechanism
    return accounting.epsilon(**mechanism, delta=audits.DELTA, adjacency="add_remove")


def named(rows):
    """What a row of the figure is called."""
    return [
        f"{task}: {canary.replace('gradient', 'crafted gradient')}{', q = 0.1' if q < 1 else ''}"
        for task, canary, q in rows.index
    ]


def by_what_is_learned():
    """A row for each canary: bounds by two scores, hollow for audits of other reviews, beside the accountant's ε.

    Within a row each kind of mark has a height of its own, so that none hides another.
    """
    few, others = kept()
    place = np.arange(len(few))[::-1]
    fig, ax = plt.subplots(figsize=(6.8, 0.36 * len(few) + 1.6), layout="constrained")
    for (name, (label, mark, color)), higher in zip(SEEN_BY.items(), (0.26, -0.26), strict=True):
        ax.plot(few[name], place + higher, mark, color=color, ms=5, label=label, clip_on=False)
    others = others[others["trained"] == audits.LARGE]
    at = dict(zip(few.index, place, strict=True))
    hollow = {"color": SEEN_BY["score"][2], "mfc": "none", "ms": 5, "label": "the same, other reviews"}
    heights = [at[one] + 0.12 * (1 - seed) for one, seed in zip(others.index, others["seed"], strict=True)]
    ax.plot(others["score"], heights, "o", **hollow)
    ax.axvline(audits.EPSILON, **figures.looks("substitute"), zorder=1)
    ax.axvline(add_remove(), **figures.looks("add_remove"), zorder=1)
    for edge in place[:-1] - 0.5:
        ax.axhline(edge, color="0.9", lw=0.8, zorder=0)
    ax.set_yticks(place, named(few))
    ax.tick_params(axis="y", length=0)
    ax.set_ylim(-0.5, len(few) - 0.5)
    ax.set(xlabel="ε", xlim=(-0.2, audits.EPSILON + 0.7))
    fig.legend(loc="outside upper center", ncols=3)
    return fig


def table():
    """The kept audits of few reviews by what is learned: distance of the gradients, bounds by both scores, seconds."""
    few, _ = kept()
    names = {"distance": "distance", "score": "says", "along": "went", "seconds": "seconds"}
    index = pd.MultiIndex.from_tuples([tuple(name.split(": ")) for name in named(few)], names=["learned", "canary"])
    return few[[*names]].rename(columns=names).set_axis(index)


def ranges(of):
    """From the least to the greatest of each kind of audit: a text by what is learned and canary."""
    digits = 2 if of.name == "distance" else 1
    ends = of.groupby(level=[0, 1]).agg(["min", "max"])
    return {at: " to ".join(dict.fromkeys(f"{end:.{digits}f}" for end in pair)) for at, *pair in ends.itertuples()}


def guessed_secrets():
    """What guesses of many secrets in one training prove: a row for each number of candidates and what is seen."""
    kept_secrets, rows = read_table("language_models/secrets.csv"), {}
    m = int(kept_secrets["secrets"].max())
    for (k, three), sees in product(kept_secrets.groupby("candidates"), ("final model", "steps")):
        right = three[sees.partition(" ")[0]]
        counts = [*((one, m) for one in right), (m, m), (right.sum(), m * len(right))]
        *each, ceiling, together = (
            estimators.one_run_epsilon_lower_bound(count, of, of, delta=audits.DELTA, candidates=k).epsilon
            for count, of in counts
        )
        row = {"right": f"{right.min()} to {right.max()}", "by chance": m // k}
        row |= {"ε ≥": f"{min(each):.1f} to {max(each):.1f}", "together": together, "ceiling": ceiling}
        rows[k, sees] = row
    return pd.DataFrame(rows).T.infer_objects().rename_axis(["k", "attacker sees"])


def kinds():
    """Banks of language models beside Opacus, as a table to show; and by kind the message of what is refused."""
    found = read_table("language_models/kinds.csv").set_index("kind")
    equal, refused = found[found["difference"].notna()], found[found["difference"].isna()]
    shown = pd.DataFrame({"parameters": equal["parameters"].map("{:,.0f}".format)})
    shown["difference"] = [f"{one:.0e}" if one else "0" for one in equal["difference"]]
    shown[["bank, ms", "Opacus, ms"]] = equal[["bank_ms", "opacus_ms"]].round(1)
    return shown, refused["message"], equal["difference"].max()
