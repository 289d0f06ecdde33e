"""Small tasks, models, canaries and audits that the calls are made with; and ones that are spoiled."""

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

import dpsub
from dpsub import DPSGD, CanaryPair, crafters, data, models
from fuzz.hostile import LITTLE, among

RNG = np.random.default_rng(0)
LABELS = [0, 1, 2, 0, 1, 2]


def _task(*shape, name):
    x, aux, test = RNG.random((3, 6, *shape))
    return data.from_arrays(x, LABELS, x_aux=aux, y_aux=LABELS, x_test=test, y_test=LABELS, name=name)


FLAT = _task(3, name="flat")
IMAGES = _task(1, 16, 16, name="images")
COLOUR = _task(3, 4, 4, name="colour")
DIGITS = data.digits(20)
BARE = data.from_arrays(FLAT.x_train, FLAT.y_train)
WIDE = _task(30, name="wide")  # its records span fewer coordinates than it has features
ONE_HOT = data.from_arrays(np.eye(3)[[0, 1, 2, 2, 1, 0]], LABELS, name="one-hot")
TASKS = [FLAT, IMAGES, COLOUR, DIGITS, BARE, WIDE]

LINEAR, MLP = models.linear(FLAT), models.mlp(FLAT, (2,))
FIXED = MLP.starting_from(np.linspace(-1, 1, MLP.parameters))
CONVNET = models.convnet(IMAGES)
MODELS = [LINEAR, MLP, FIXED]
OTHER_MODELS = [CONVNET, models.linear(WIDE), models.linear(DIGITS)]

SPEC = DPSGD(1.0, 1.0, 0.5, 2, 0.1)
SPECS = [SPEC, replace(SPEC, sample_rate=1.0), replace(SPEC, optimizer="adam", steps=3), replace(SPEC, steps=1)]
EXTREME = [replace(SPEC, **{name: value}) for name, value in (
    ("learning_rate", 1e38), ("learning_rate", 1e-38), ("max_grad_norm", 1e-15), ("max_grad_norm", 1e15),
    ("noise_multiplier", 1e30), ("noise_multiplier", 1e-30), ("sample_rate", 1e-12),
)]  # fmt: skip

GRADIENT = crafters.gradient(FLAT, LINEAR, SPEC, seed=0)
MISLABELED = crafters.mislabeled(FLAT, LINEAR, SPEC, seed=0)
NATURAL = crafters.natural(FLAT, LINEAR, SPEC, seed=0)
CRAFTED = crafters.crafted_input(FLAT, LINEAR, SPEC, seed=0, steps=3)
CANARIES = [GRADIENT, MISLABELED, NATURAL, CRAFTED, MISLABELED.against_nothing(adjacency="zero_out")]
CANARIES += [MISLABELED.exchanged(), GRADIENT.against_nothing(adjacency="add_remove")]
FOREIGN = [
    CanaryPair((FLAT.x_train[0], 0), (FLAT.x_train[0], 7), 0, "S4"),
    CanaryPair((FLAT.x_train[0], 0), (FLAT.x_train[0], 10**400), 0, "S4"),
    CanaryPair((FLAT.x_train[0], 0), (FLAT.x_train[0], 1), 6, "S4"),
    CanaryPair((FLAT.x_train[0], 0), (FLAT.x_train[0], 1), 10**400, "S4"),
    CanaryPair((FLAT.x_train[0][:2], 0), (FLAT.x_train[0][:2], 1), 0, "S4"),
    CanaryPair((FLAT.x_train[0] * 1e30, 0), (FLAT.x_train[0] * -1e30, 1), 0, "S4"),
    CanaryPair(np.ones(12), np.zeros(12), 0, "S2", "add_remove"),
    CanaryPair(np.eye(12)[0] * 1e-45, -np.eye(12)[0] * 1e-45, 0, "S2"),
    CanaryPair(np.ones(3), -np.ones(3), 0, "S2"),
    replace(MISLABELED, task="another"),
    replace(MISLABELED, task=None, details={}),
]


ANY_TASK = st.one_of(LITTLE, among(TASKS))
ANY_MODEL = st.one_of(LITTLE, among(OTHER_MODELS))
ANY_SPEC = st.one_of(LITTLE, among(EXTREME))
ANY_CANARY = st.one_of(LITTLE, among(FOREIGN), among(FOREIGN), among(CANARIES).map(lambda pair: [pair] * 2))
HOSTILE = {"task": ANY_TASK, "model": ANY_MODEL, "spec": ANY_SPEC, "canary": ANY_CANARY}


def audit(repeats=1, scenario="S2", canary=None, **options):
    """An audit's dataset: made by training, so that it has all attributes."""
    canary = canary or {"S2": GRADIENT, "S4": MISLABELED}[scenario]
    options |= {"runs": 8, "repeats": repeats, "seed": 1, "coordinates": "all", "device": "cpu", "progress": False}
    return dpsub.audit(FLAT, LINEAR, canary, SPECS[1], **options)


def worst_case():
    return dpsub.audit_worst_case(noise_multiplier=1.0, sample_rate=1.0, steps=3, runs=20, adjacency="substitute")
