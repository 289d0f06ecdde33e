"""What audits of fine-tuned language models show: their table, and its figure."""

import matplotlib.pyplot as plt
import numpy as np

from dpsub import accounting, figures
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
    """A row for each canary: bounds by two scores, hollow for audits of other reviews, beside the accountant's ε."""
    few, others = kept()
    place = np.arange(len(few))[::-1]
    fig, ax = plt.subplots(figsize=(6.8, 0.32 * len(few) + 1.4), layout="constrained")
    for name, (label, mark, color) in SEEN_BY.items():
        ax.plot(few[name], place, mark, color=color, label=label)
    others = others[others["trained"] == audits.LARGE]
    at = dict(zip(few.index, place, strict=True))
    hollow = {"color": SEEN_BY["score"][2], "mfc": "none", "label": "of other reviews"}
    ax.plot(others["score"], [at[one] for one in others.index], "o", **hollow)
    ax.axvline(audits.EPSILON, **figures.looks("substitute"))
    ax.axvline(add_remove(), **figures.looks("add_remove"))
    ax.set_yticks(place, named(few))
    ax.set(xlabel="ε", xlim=(-0.2, audits.EPSILON + 0.7))
    fig.legend(loc="outside upper center", ncols=3)
    return fig
