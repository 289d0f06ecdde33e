"""What the adversaries of *Beyond Membership* find when records, target, canary, batches and noise are drawn anew.

``python -m studies.beyond_membership.draws studies/beyond_membership/draws.csv ImageNet=20 text=9`` audits each setting
of Figures 3, A2, A3 and A4 on draws of 500 images' features, and those of Figure A6 on draws of sentences. All settings
and scenarios of a draw have one target, the record of which Figure 3's reference model at q = 1 is least sure, and one
seed: their coins are the same, and their noise where they take as many steps. A file that exists is continued.
"""

import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from hashlib import sha256
from itertools import product

import torch

import dpsub
from dpsub import crafters, data, findings, models
from studies.kept import continued
from studies.scores import epsilon_at
from studies.trainings import DELTA, ON_A_CPU, calibrated

RUNS = 256  # few models, so that there can be many draws
SCENARIOS = tuple(crafters.BY_SCENARIO)
SETTING = ("sample_rate", "steps", "max_grad_norm", "learning_rate")
IMAGES = {  # by what pages call them, which is Figure 3's q or what differs from its full batches
    "1": (1.0, 500, 2.0, 1e-3),
    "4": (0.25, 500, 2.0, 1e-3),
    "16": (0.0625, 500, 2.0, 1e-3),
    "C1": (1.0, 500, 1.0, 1e-3),
    "C8": (1.0, 500, 8.0, 1e-3),
    "T2500": (0.0625, 2_500, 2.0, 1e-3),
    "rate10000": (1.0, 500, 2.0, 1e-4),
    "rate10": (1.0, 500, 2.0, 1e-1),
}
TEXT = {"1": (1.0, 2_500, 2.0, 0.01), "4": (0.25, 2_500, 2.0, 0.01)}
DATA = {  # the file, the numbers of private and of auxiliary records, and the settings: "1" chooses the target
    "ImageNet": ("features/cifar10-efficientnet-lite0.npz", 500, 500, IMAGES),
    "small network": ("features/cifar10-cnn768.npz", 500, 500, IMAGES),  # for `crossed_pairs`
    "text": ("features/sst2-all-minilm-l6-v2.npz", 5_000, 1_500, TEXT),
}
ABOUT = "seconds are of the clock, with an audit on each core of a shared machine"
CELL = ("features", "draw", *SETTING, "scenario")


def cells(features, draws):
    """All settings of a draw before the next draw."""
    for draw, setting, scenario in product(range(draws), DATA[features][-1].values(), SCENARIOS):
        yield features, draw, *setting, scenario


@cache
def drawn(features, draw):
    """The records of a draw, and the slot of its target."""
    file, n_train, n_aux, settings = DATA[features]
    task = data.load_features(file, n_train=n_train, n_aux=n_aux, seed=draw)
    return task, crafters.mislabeled(task, models.linear(task), trained(settings["1"]), seed=draw).slot


def trained(setting):
    """The training of a setting."""
    q, steps, C, rate = setting
    return calibrated(10.0, "substitute", C, q, steps, rate)


def measured(cell):
    """What one adversary finds in a setting of a draw."""
    torch.set_num_threads(1)
    task, slot = drawn(cell["features"], cell["draw"])
    model, spec = models.linear(task), trained(tuple(cell[name] for name in SETTING))
    target = {} if cell["scenario"] == "S2" else {"target": slot}
    pair = crafters.BY_SCENARIO[cell["scenario"]](task, model, spec, seed=cell["draw"], **target)
    return [found(task, model, pair, spec, slot, cell["draw"]) | {"record": recognised(task.x_train[slot])}]


def recognised(record):
    """A name by which a record is known in each draw that has it."""
    return sha256(record.tobytes()).hexdigest()[:8]


def found(task, model, pair, spec, slot, seed):
    """The row of an adversary: what its scores show half way through the training runs and in the final models.

    `mu`: how far apart the worlds' scores are, in standard deviations; `epsilon`: the ε of
    μ-GDP at mu, an estimate; `bound`: the valid bound.
    """
    how = {"observe_every": spec.steps // 2, "seed": seed, **ON_A_CPU}
    scores = dpsub.audit(task, model, pair, spec, runs=RUNS, **how)
    row = {"runs": RUNS, "target": slot, "cosine": pair.details.get("cosine"), "ratio": pair.details.get("norm_ratio")}
    for part, step in (("half", spec.steps // 2), ("final", spec.steps)):
        at = scores.sel(step=[step])
        mu = findings.d_prime(at.score[:, 0], at.bit)
        [bound] = dpsub.bound(at, delta=DELTA)
        row |= {f"{part}_mu": mu, f"{part}_epsilon": epsilon_at(mu), f"{part}_bound": bound.epsilon}
    return {name: f"{one:.5g}" if isinstance(one, float) else one for name, one in row.items()}


if __name__ == "__main__":
    path, *asked = sys.argv[1:]
    wanted = [one.partition("=") for one in asked]
    with ProcessPoolExecutor(os.cpu_count()) as workers:
        for features, _, draws in wanted:
            continued(
                path, CELL, cells(features, int(draws)), measured, about=ABOUT, mapped=workers.map, clock=time.monotonic
            )
