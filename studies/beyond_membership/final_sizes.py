"""What final models show by the number of records, by width and by start.

    python -m studies.beyond_membership.final_sizes studies/beyond_membership/final_sizes.csv

After Figure 12 of *Tight Auditing*: a blank canary at ε = 8, on digits and on random images of their size. Either every
model draws a start of its own, or all have the same. A table that exists is continued.
"""

import sys
from functools import partial
from itertools import product

import numpy as np

import dpsub
from dpsub import data, models
from studies.beyond_membership.crafting_seeds import first_start
from studies.kept import continued
from studies.scores import separation
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
    spec = calibrated(EPSILON, "add_remove", 1.0, **TRAINING, learning_rate=0.5)
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
