"""The audits of the pages on final models: tasks, models and canaries."""

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

import dpsub
from dpsub import crafters, data, models
from studies.trainings import calibrated

# Mean and standard deviation of the pixels of each channel, by which the published code standardises images.
PIXELS = {"mnist": ([0.1307], [0.3081]), "cifar10": ([0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616])}
LEARNING_RATES = {"digits": 4.0, "mnist": 4.0, "cifar10": 2.0}
# n in the paper, where digits stand in for MNIST. Its η moves a model by η/n for each record.
RECORDS = {"digits": 60000, "mnist": 60000, "cifar10": 50000}
# How a worst start is trained, where not by the published code's values.
WORST_STARTS = {"digits": {"epochs": 100, "learning_rate": 0.1}}
EPSILONS = (10.0, 4.0, 2.0, 1.0)
# What was run. For CIFAR-10 from a copy that has 12,000 records to train on, and with the small ConvNet of MNIST, where
# the published code has the large one.
SIZES = {
    "digits": {"n_train": 250, "n_aux": 800, "steps": 100, "runs": 10240},
    "mnist": {"n_train": 1000, "n_aux": 30000, "steps": 100, "runs": 256},
    "cifar10": {"n_train": 1000, "n_aux": 11000, "steps": 200, "runs": 256, "size": "small"},
}
EXECUTIONS = {"digits": 10, "mnist": 10}  # one seed each, as in the paper; of MNIST those of the first cell alone
CANARIES = ("blank", "in-distribution", "mislabeled", "ClipBKD")
USUAL = {"start": "average", "canary": "blank", "max_grad_norm": 1.0, "adjacency": "add_remove"}


def task(name, n_train, n_aux, seed):
    """The records: "digits", or standardised images, "mnist" or "cifar10"."""
    if name == "digits":
        known = data.digits(n_train=n_train, seed=seed)
        return replace(known, x_aux=known.x_aux[:n_aux], y_aux=known.y_aux[:n_aux])
    raw = {"mnist": data.mnist, "cifar10": data.cifar10}[name](n_train=n_train, n_aux=n_aux, seed=seed)
    mean, std = (np.array(values, np.float32)[:, None, None] for values in PIXELS[name])
    parts = {part: (getattr(raw, part) - mean) / std for part in ("x_train", "x_aux", "x_test")}
    return replace(raw, **parts, name=f"{raw.name}, standardised")


def xavier_start(model, seed):
    """One start for all models: Xavier's weights, and biases of 0."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = model.module()
        for one in module.parameters():
            if one.ndim > 1:
                nn.init.xavier_uniform_(one)
            else:
                nn.init.zeros_(one)
    vector = nn.utils.parameters_to_vector(module.parameters())
    return model.starting_from(vector.detach())


def network(task, start, seed, epochs=5, learning_rate=0.01, size="small"):
    """A ConvNet of this size for images, else a network with one hidden layer; a "worst" start is trained."""
    made = models.convnet(task, size=size) if task.x_train.ndim > 2 else models.mlp(task, (32,))
    average = xavier_start(made, seed)
    if start == "average":
        return average
    worst = crafters.pretrained_start(task, average, seed=seed, epochs=epochs, learning_rate=learning_rate)
    return made.starting_from(worst)


def canary(name, task, model, spec, seed):
    """The substitute pair of a canary. z against nothing is the paper's."""
    if name == "mislabeled":
        return crafters.mislabeled(task, model, spec, seed=seed).exchanged()
    craft = {"blank": crafters.blank, "in-distribution": crafters.in_distribution, "ClipBKD": crafters.clipbkd}
    return craft[name](task, model, spec, seed=seed)


class Cell(NamedTuple):
    """One audit of the pages on final models. Its name says how it differs."""

    data: str
    start: str  # "average" or "worst"
    canary: str
    epsilon: float  # under this adjacency
    max_grad_norm: float
    adjacency: str
    learning_rate: float
    steps: int  # of full batches
    n_train: int  # the slot included
    n_aux: int  # a worst start is trained on them
    runs: int
    seed: int  # of all, a further execution each
    size: str = "small"  # of a ConvNet, or "large"

    @property
    def name(self):
        name = f"{self.data}-{self.start}-{self.canary}-eps{self.epsilon:g}"
        name += f"-C{self.max_grad_norm:g}-{self.adjacency}"
        if self.learning_rate != LEARNING_RATES[self.data]:
            name += f"-eta{self.learning_rate:g}"
        if self.size != "small":
            name += f"-{self.size}"
        return name + (f"-seed{self.seed}" if self.seed else "")

    @property
    def spec(self):
        return calibrated(self.epsilon, self.adjacency, self.max_grad_norm, 1.0, self.steps, self.learning_rate)


def made_for(cell):
    """The task, the network and the canary of a cell."""
    records = task(cell.data, cell.n_train, cell.n_aux, cell.seed)
    model = network(records, cell.start, cell.seed, size=cell.size, **WORST_STARTS.get(cell.data, {}))
    pair = canary(cell.canary, records, model, cell.spec, cell.seed)
    if cell.adjacency != "substitute":
        pair = pair.against_nothing(adjacency=cell.adjacency)
    return records, model, pair


def trained(cell, folder=None, **options):
    """The final models of a cell, kept in a folder if there is one."""
    records, model, pair = made_for(cell)
    options |= {"store": None if folder is None else Path(folder, f"{cell.name}.db"), "seed": cell.seed + 1}
    options |= {"observe_every": max(1, cell.steps // 10), "metrics": ("accuracy", "distance", "weights")}
    return dpsub.audit(records, model, pair, cell.spec, runs=cell.runs, **options)


def grid(
    data,
    *,
    epsilons=EPSILONS,
    clipping=(0.1, 10.0),
    canaries=("mislabeled", "ClipBKD"),
    starts=("average", "worst"),
    substitute=("blank",),
    seed=0,
    **sizes,
):
    """The audits of one data set, the figures' main ones first.

    Each differs from the first in one thing, or in one thing and ε. `clipping` has the C beside 1 of Figure 8,
    `canaries` those of Figure 6 beside the blank and the ordinary record, `starts` those of Figure 7, and `substitute`
    the canaries that are audited under substitution, too. `sizes` replace those of SIZES.
    """
    rate, sizes = LEARNING_RATES[data], SIZES[data] | sizes
    first = Cell(data, epsilon=epsilons[0], learning_rate=rate, seed=seed, **USUAL, **sizes)
    worst = [first._replace(start="worst")] if "worst" in starts else []
    main = [first, *worst, first._replace(canary="in-distribution")]
    cells = list(main)
    cells += [first._replace(max_grad_norm=one) for one in clipping]
    cells += [first._replace(canary=one) for one in canaries]
    cells += [first._replace(canary=one, adjacency="substitute") for one in substitute]
    return cells + [one._replace(epsilon=epsilon) for epsilon in epsilons[1:] for one in main]


def record_rate(cell):
    """The η on this cell's mean gradient whose η/n is the paper's, so that each record's step is, too."""
    return LEARNING_RATES[cell.data] * cell.n_train / RECORDS[cell.data]


def by_record(cells):
    """The audits under add/remove at the paper's η/n: those of the first by ε, then those at its ε, then the rest."""
    first = cells[0]
    main = [one for one in cells if one == first._replace(epsilon=one.epsilon)]
    others = [one for one in cells if one.epsilon == first.epsilon and one not in main]
    ordered = main + sorted(others, key=lambda one: one.max_grad_norm != first.max_grad_norm)
    ordered += [one for one in cells if one not in ordered]
    return [one._replace(learning_rate=record_rate(one)) for one in ordered if one.adjacency == first.adjacency]


def slower(cells, learning_rate):
    """The first two audits, from either start, with another rate."""
    return [one._replace(learning_rate=learning_rate) for one in cells[:2]]
