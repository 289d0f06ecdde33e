"""What final models show by the number of records, by width and by start.

After Figure 12 of *Tight Auditing*: a blank canary at ε = 8, on digits and on random images of their size. Either every
model draws a start of its own, or all have the same.
"""

import sys
from functools import partial
from itertools import product

import matplotlib.pyplot as plt
import numpy as np

import dpsub
from dpsub import data, figures, models
from studies.beyond_membership.crafting_seeds import first_start
from studies.kept import continued, read_table
from studies.scores import epsilon_at, separation
from studies.trainings import DELTA, calibrated, final_models

EPSILON, RUNS, SEEDS = 8.0, 1_000, 5
TRAINING = {"sample_rate": 0.25, "steps": 50}
CELL = ("task", "n", "width", "start", "seed")
TASKS = {"digits": data.digits, "random": partial(data.random_images, size=8, channels=1)}
N_TRAIN, WIDTHS = (50, 200, 800), (8, 32, 128)
STARTS = ("own", "shared")


def cells():
    """A seed of every cell before the next seed of any."""
    for seed, *one in product(range(SEEDS), TASKS, N_TRAIN, WIDTHS, STARTS):
        yield *one, seed


def measured(cell):
    """The valid bound on ε from the final models of one audit: a row."""
    seed, n = cell["seed"], cell["n"]
    task = TASKS[cell["task"]](n_train=n, seed=seed)
    model = models.mlp(task, hidden=[cell["width"]])
    if cell["start"] == "shared":
        model = model.starting_from(first_start(model, seed))
    spec = calibrated(EPSILON, "add_remove", 1.0, learning_rate=0.5, **TRAINING)
    zeros = np.zeros_like(task.x_train[0])
    pair = dpsub.CanaryPair((zeros, 0), (zeros, 1), 0, "blank", task=task.fingerprint)
    pair = pair.against_nothing(adjacency="add_remove")
    audited = final_models(task, model, pair, spec, runs=RUNS, metrics=("accuracy",), seed=seed, device="cpu")
    [bound] = dpsub.bound(audited, delta=DELTA)
    return [
        {
            "epsilon": round(bound.epsilon, 4),
            "apart": round(separation(audited.score[:, -1], audited.bit), 4),
            "accuracy": round(float(audited.accuracy.values.mean()), 4),
        }
    ]


def bounds(column="epsilon"):
    """The kept bounds of all seeds, by task, records, width and start.

    Column "estimate": the ε of μ-GDP at the distance between the worlds' scores, `apart`.
    """
    table = read_table("beyond_membership/final_sizes.csv")
    table["estimate"] = table["apart"].map(epsilon_at)
    return {key: each.to_numpy() for key, each in table.groupby(list(CELL[:-1]))[column]}


def draw(found):
    """Bounds by the number of records, a panel for each task: means, and dots for single audits."""
    fig, axes = plt.subplots(1, 2, figsize=(6.8, 3.0), sharey=True, layout="constrained")
    for ax, task in zip(axes, TASKS, strict=True):
        for color, marker, width in zip(figures.COLORS, "os^", WIDTHS, strict=False):
            for start, line in zip(STARTS, ("-", "--"), strict=True):
                seeds = [found[task, n, width, start] for n in N_TRAIN]
                label = f"{width} units" if start == "own" else None
                look = {"color": color, "marker": marker, "ms": 4, "ls": line}
                ax.plot(N_TRAIN, [each.mean() for each in seeds], label=label, **look)
                for n, each in zip(N_TRAIN, seeds, strict=True):
                    ax.plot(np.full(len(each), n), each, ".", color=color, ms=3, alpha=0.35)
        ax.set_xscale("log")
        ax.set_xticks(N_TRAIN, N_TRAIN)
        ax.minorticks_off()
        ax.set_xlabel("records")
        figures.tag(ax, task)
    axes[0].set_ylim(bottom=0)
    axes[0].set_ylabel(r"lower bound on $\varepsilon$")
    for line, label in (("-", "own starts"), ("--", "one start")):
        axes[0].plot([], [], color="black", ls=line, label=label)
    fig.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=5)
    figures.name_source(fig, f"digits and random images; {RUNS:,} models an audit")
    return fig


if __name__ == "__main__":
    (path,) = sys.argv[1:]
    continued(
        path,
        CELL,
        cells(),
        measured,
        about=f"{RUNS} final models an audit, a blank canary, add/remove "
        f"{EPSILON:g}; one core of a shared machine, processor seconds",
    )
