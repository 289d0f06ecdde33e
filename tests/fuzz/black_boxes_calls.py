"""Calls of the distinguisher behind a box."""

import numpy as np
import torch

from dpsub import distinguishers
from fuzz.call import OMIT, Call
from fuzz.cast import ANY_MODEL, FLAT, LINEAR, MLP
from fuzz.checkers import of
from fuzz.hostile import LITTLE

X = FLAT.x_train
WEIGHTS = np.random.default_rng(2).normal(size=(6, LINEAR.parameters)).astype(np.float32)
BITS = np.arange(6) % 2
CRAFT = distinguishers.AdversarialSamples((X[0], 1), steps=1)
BOX = distinguishers.BlackBox(X, CRAFT, epochs=2)


def learnt(result, /, **_):
    scores = result.scores(LINEAR, WEIGHTS)
    assert scores.shape == (6,)
    assert scores.dtype == np.float32
    assert np.isfinite(scores).all()
    assert result.surrogates.loss.shape == (2,)


CALLS = [
    Call(
        "dpsub.distinguishers.BlackBox",
        distinguishers.BlackBox,
        {
            "records": [X, torch.tensor(X), X.tolist()],
            "craft": [CRAFT],
            "says": [OMIT, "logits", "probabilities", "labels"],
            "epochs": [OMIT, 1, 2],
            "batch_size": [OMIT, 1, np.int8(4)],
            "learning_rate": [OMIT, 0.1, 1],
            "temperature": [OMIT, 1, 2.5],
            "surrogate": [OMIT, None, LINEAR, MLP],
            "seed": [OMIT, 0, np.int64(5)],
            "device": [OMIT, "auto", "cpu"],
        },
        of(distinguishers.BlackBox),
    ),
    Call(
        "dpsub.distinguishers.BlackBox.learn",
        BOX.learn,
        {"model": [LINEAR], "weights": [WEIGHTS, torch.tensor(WEIGHTS)], "bits": [BITS, BITS.tolist()]},
        learnt,
        hostile={"model": ANY_MODEL, "bits": LITTLE},
    ),
]
