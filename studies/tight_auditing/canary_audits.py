"""The models and audits of the notebooks after Table 1 and Figures 10 and 15 to 19 of *Tight Auditing*."""

import itertools
import math
from functools import partial
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from torch import nn

import dpsub
from dpsub import crafters, data, models
from studies.tight_auditing.wide_resnet import Augmented, mean_loss, wide_resnet
from studies.trainings import calibrated

ADJACENCIES = ("add_remove", "substitute")
OF_TABLE_1 = {
    "digits": (data.digits, models.linear),
    "mnist": (data.mnist, models.convnet),
    "purchases": (data.purchase100_like, models.mlp),
    "random": (partial(data.random_images, size=28, channels=1), models.mlp),
    "cifar10": (data.cifar10, partial(models.convnet, size="small")),
    "cifar10_wrn": (data.cifar10, wide_resnet),
}
GRADIENTS = ("dirac fixed", "dirac anew", "random fixed", "random anew", "constant fixed")
RECORDS = ("mislabeled", "blank", "adversarial", "crafted")


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


def augmented(name, task, copies):
    """A model that trains on several copies of each image: a Wide ResNet ("wrn 16"), or else a small network."""
    kind, _, depth = name.partition(" ")
    if kind == "wrn":
        return wide_resnet(task, depth=int(depth), copies=copies)
    channels, size = task.x_train.shape[1:3]
    seen = nn.Conv2d(channels, 8, 3, padding=1), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten()
    network = nn.Sequential(*seen, nn.Linear(8 * (size // 2) ** 2, task.num_classes))
    return models.from_module(Augmented(network, copies, pad=1), task, start="fresh", loss=mean_loss)


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


def of_table_1(names, n_train, epsilons, adjacencies, *, norm, rate, law, seed, folder=None, **options):
    """Audits of Table 1, by task, adjacency and ε; `law` has the sample rate, the steps and δ."""
    found = {}
    for (name, n), epsilon, adjacency in itertools.product(zip(names, n_train, strict=True), epsilons, adjacencies):
        load, make = OF_TABLE_1[name]
        task = load(n_train=n, seed=seed)
        model = make(task)
        spec = calibrated(epsilon, adjacency, norm, learning_rate=rate, **law)
        canary = crafters.gradient_each_step(task, model, spec, kind="dirac", seed=seed)
        if adjacency != "substitute":
            canary = canary.against_nothing(adjacency=adjacency)
        store = f"{folder}/{name}-{adjacency}-{epsilon:g}.db" if folder else None
        found[name, adjacency, epsilon] = dpsub.audit_steps(
            task, model, canary, spec, seed=seed, store=store, **options
        )
    return found


def canary(task, model, spec, name, *, seed, crafting_steps=None):
    """A canary by its name: one of `GRADIENTS` or `RECORDS`."""
    if name in RECORDS:
        steps = crafting_steps if name == "crafted" else None
        return crafters.record_each_step(task, model, spec, kind=name, seed=seed, steps=steps)
    kind, how = name.split()
    craft = {"fixed": crafters.fixed_gradient, "anew": crafters.gradient_each_step}[how]
    return craft(task, model, spec, kind=kind, seed=seed)


def of_canaries(task, model, spec, *, crafting_steps, seed, **options):
    """Audits by adjacency and canary, after Figures 15 and 16."""
    found = {}
    for name, canaries in (("gradients", GRADIENTS), ("records", RECORDS)):
        of = {one: canary(task, model, spec, one, seed=seed, crafting_steps=crafting_steps) for one in canaries}
        found |= audited(task, model, spec, of, name=name, seed=seed, **options)
    return found


def of_settings(
    private, architecture, specs, usual, record, *, sizes, copies, n_train, crafting_steps, seed, **options
):
    """Audits under add/remove by figure and by what varies: ε and line (10), the model (18), copies of images (19)."""
    here, noise = task(private, n_train, seed), task("random", n_train, seed)
    pictures = images(private, n_train, seed)
    lines = {
        "dirac anew": (here, model(architecture, here), "dirac anew"),
        record: (here, model(architecture, here), record),
        f"{record}, linear": (here, model("linear", here), record),
        f"{record}, random data": (noise, model("mlp 128", noise), record),
    }
    of_figure_10 = itertools.product(specs.items(), lines.items())
    cells = [(f"fig10_{epsilon:g}", line, spec, *of) for (epsilon, spec), (line, of) in of_figure_10]
    cells += [("fig18", size, usual, here, model(size, here), record) for size in sizes]
    augmentations = [(number, augmented(architecture, pictures, number)) for number in copies]
    cells += [("fig19", f"copies {number}", usual, pictures, of, record) for number, of in augmentations]
    found = {}
    for name, label, spec, on, of, kind in cells:
        pairs = {label: canary(on, of, spec, kind, seed=seed, crafting_steps=crafting_steps)}
        made = audited(on, of, spec, pairs, name=name, adjacencies=("add_remove",), seed=seed, **options)
        found[name.replace("fig", "Figure ").replace("_", ", ε = "), label] = made["add_remove", label]
    return found
