"""The models and audits of the notebook on canaries at each step."""

import math
from functools import partial
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from torch import nn

import dpsub
from dpsub import data, models
from studies.tight_auditing.wide_resnet import Augmented, mean_loss, wide_resnet

ADJACENCIES = ("add_remove", "substitute")


def task(name, n_train, seed):
    """The private records. "random" pixels are 8 × 8, as the digits are, or of the size that is named ("random 28")."""
    kind, _, size = name.partition(" ")
    if kind == "random":
        return data.random_images(n_train, 500, seed, size=int(size or 8), channels=1)
    known = {"digits": data.digits, "mnist": data.mnist, "cifar10": data.cifar10, "purchases": data.purchase100_like}
    return known[name](n_train=n_train, seed=seed)


def model(name, task):
    """A model, such as "linear", "mlp 128" (width) or "wrn 16" (depth).

    "convnet" has the size that suits the task, "convnet small" the least.
    """
    kind, _, size = name.partition(" ")
    if kind == "mlp":
        return models.mlp(task, (int(size),))
    if kind == "wrn":
        return wide_resnet(task, depth=int(size), copies=1)
    if kind == "linear" and task.x_train.ndim > 2:
        head = nn.Linear(math.prod(task.x_train.shape[1:]), task.num_classes)
        return models.from_module(nn.Sequential(nn.Flatten(), head), task, start="fresh")
    if kind == "convnet" and size:
        return models.convnet(task, size=size)
    return {"linear": models.linear, "convnet": models.convnet}[kind](task)


def digit_images(n_train, seed):
    """The digits with all their pixels, (1, 8, 8)."""
    x, y = load_digits(return_X_y=True)
    x = (x / 16).reshape(-1, 1, 8, 8)
    order = np.random.default_rng(seed).permutation(len(y))
    private, others = order[:n_train], order[n_train:]
    return data.from_arrays(x[private], y[private], x_test=x[others], y_test=y[others], num_classes=10, name="digits")


def images(name, n_train, seed):
    """As `task`, in a shape that can be shifted and flipped."""
    make = digit_images if name == "digits" else partial(task, name)
    return make(n_train=n_train, seed=seed)


def augmented(name, task, copies, pad=1):
    """A model that trains on several copies of each image: a Wide ResNet ("wrn 16"), or else a small network."""
    kind, _, depth = name.partition(" ")
    if kind == "wrn":
        return wide_resnet(task, depth=int(depth), copies=copies)
    channels, size = task.x_train.shape[1:3]
    seen = nn.Conv2d(channels, 8, 3, padding=1), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten()
    network = nn.Sequential(*seen, nn.Linear(8 * (size // 2) ** 2, task.num_classes))
    return models.from_module(Augmented(network, copies, pad), task, start="fresh", loss=mean_loss)


def audited(task, model, spec, canaries, *, name, folder=None, adjacencies=ADJACENCIES, **options):
    """Audit a training for each canary, a substitute pair by name, under both adjacencies: audits by these two.

    With a folder, each audit is kept in it, under `name`.
    """
    found = {}
    for adjacency in adjacencies:
        for label, pair in canaries.items():
            if adjacency == "add_remove":
                pair = pair.against_nothing(adjacency=adjacency)
            store = None
            if folder is not None:
                of = label.replace(",", "").replace(" ", "_")
                store = Path(folder) / f"{name}-{adjacency}-{of}.db"
            found[adjacency, label] = dpsub.audit_steps(task, model, pair, spec, store=store, progress=False, **options)
    return found
