"""What final models show if gradients are clipped and no noise is added, after Figure 11 of *Tight Auditing*.

``python -m studies.tight_auditing.clipping_alone FILE`` makes the audits; a file that exists is continued.
"""

import sys
from itertools import product

import dpsub
from dpsub import crafters, data, estimators, models
from studies.kept import continued, read_table
from studies.tight_auditing.only_final import RULES
from studies.trainings import DELTA, calibrated, final_models

N_TRAIN, RUNS, SEEDS = 500, 2_000, 10
TRAINING = {"sample_rate": 0.25, "steps": 100}
CELL = ("max_grad_norm", "learning_rate", "canary", "seed")
RATE = 0.5
TRAININGS = ((0.1, RATE), (1.0, RATE), (10.0, RATE), (0.1, 10 * RATE))  # C and η
CANARIES = ("blank", "mislabeled")
HALF = "ranks, α/2"  # so that the larger of two canaries' bounds is valid


def measured(cell):
    """The bounds on ε from the final models of one audit, and their accuracy: a row."""
    seed = cell["seed"]
    task = data.digits(n_train=N_TRAIN, seed=seed)
    model = models.mlp(task, hidden=[32])
    crafted_for = calibrated(8.0, "add_remove", 1.0, learning_rate=RATE, **TRAINING)
    if cell["canary"] == "blank":
        pair = crafters.blank(task, model, crafted_for, seed=seed, label=0)
    else:
        pair = crafters.mislabeled(task, model, crafted_for, seed=seed, target=0).exchanged()
    pair = pair.against_nothing(adjacency="add_remove")
    # rounding in float32 hides such noise from every sum
    spec = dpsub.DPSGD(1e-30, cell["max_grad_norm"], learning_rate=cell["learning_rate"], **TRAINING)
    audited = final_models(task, model, pair, spec, runs=RUNS, metrics=("accuracy",), seed=seed, device="cpu")
    row = {}
    for name, (claim, rule), alpha in (*((*one, 0.05) for one in RULES.items()), (HALF, RULES["ranks"], 0.05 / 2)):
        how = {"claim": claim, "rule": rule, "delta": DELTA, "alpha": alpha}
        row[name] = round(estimators.epsilon_lower_bound(audited.score[:, -1], audited.bit, **how).epsilon, 4)
    return [row | {"accuracy": round(float(audited.accuracy.values.mean()), 4)}]


def kept():
    """The kept audits: a row for each C, η, canary and seed."""
    return read_table("tight_auditing/clipping_alone.csv")


if __name__ == "__main__":
    (path,) = sys.argv[1:]
    cells = ((*training, canary, seed) for seed, training, canary in product(range(SEEDS), TRAININGS, CANARIES))
    about = f"{RUNS} final models an audit, {N_TRAIN} digits, add/remove; one core, processor seconds"
    continued(path, CELL, cells, measured, about=about)
