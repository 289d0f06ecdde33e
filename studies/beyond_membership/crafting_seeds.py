"""What canaries show on digits, over seeds.

*wrong parameters*: records crafted with another learning rate, or another number of steps, than those of the training;
no crafter of records uses C. *optimizer*: networks from scratch, by DP-SGD and DP-Adam, from one start or from a start
of each model's own.
"""

import sys
from dataclasses import replace
from itertools import product

import torch

import dpsub
from dpsub import crafters, data, findings, models
from studies.kept import continued
from studies.scores import epsilon_at
from studies.trainings import DELTA, calibrated, final_models

EPSILON = 10.0
CELL = ("study", "canary", "variant", "seed")
RUNS = {"wrong parameters": 512, "optimizer": 256}
SCENARIOS = tuple(crafters.BY_SCENARIO)
GUESSES = {
    "right": {},
    "η 100 times": {"learning_rate": 0.1},
    "T a tenth": {"steps": 50},
    "T ten times": {"steps": 5_000},
}
TRAININGS = {
    f"{optimizer}, {start}": (optimizer, rate, start)
    for optimizer, rate in (("sgd", 0.1), ("adam", 0.005))
    for start in ("fixed", "fresh")
}
SEEDS = (
    ("wrong parameters", SCENARIOS[1:], GUESSES, range(10)),
    ("optimizer", SCENARIOS, TRAININGS, range(40)),
    ("optimizer", ("S2",), TRAININGS, range(40, 230)),  # on a gradient a start changes less than 40 seeds can tell
)


def cells():
    """A seed of every cell of a study before its next seed."""
    for study, canaries, variants, seeds in SEEDS:
        for seed in seeds:
            yield from product((study,), canaries, variants, (seed,))


def measured(cell):
    """What the final models of one audit show, a row: the valid bound, `epsilon`, and an estimate of ε."""
    seed = cell["seed"]
    craft = crafters.BY_SCENARIO[cell["canary"]]
    if cell["study"] == "wrong parameters":
        task = data.digits(n_train=500, seed=seed)
        model = models.linear(task)
        spec = calibrated(EPSILON, "substitute", 2.0, 1.0, 500, 1e-3)
        guessed = replace(spec, **GUESSES[cell["variant"]])
    else:
        optimizer, rate, start = TRAININGS[cell["variant"]]
        task = data.digits(n_train=250, seed=seed)
        model = models.mlp(task, (32,))
        if start == "fixed":
            model = model.starting_from(first_start(model, seed))
        spec = calibrated(EPSILON, "substitute", 2.0, 0.25, 200, rate, optimizer)
        guessed = spec
    pair = craft(task, model, guessed, seed=seed)
    audited = final_models(task, model, pair, spec, runs=RUNS[cell["study"]], metrics=("accuracy",), seed=seed)
    [bound] = dpsub.bound(audited, delta=DELTA)
    accuracy = round(float(audited.accuracy.mean()), 3)
    estimate = epsilon_at(findings.d_prime(audited.score[:, -1], audited.bit))
    shown = {"epsilon": bound.epsilon, "estimate": estimate}
    return [{name: round(one, 3) for name, one in shown.items()} | {"accuracy": accuracy, "runs": audited.sizes["run"]}]


def first_start(model, seed):
    """One random start, as a module of this kind has it."""
    generator = torch.Generator().manual_seed(seed)
    return model.flat(model.initial_parameters(1, generator))[0].numpy()


if __name__ == "__main__":
    continued(sys.argv[1], CELL, cells(), measured)
