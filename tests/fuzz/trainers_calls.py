"""Calls of dpsub.trainers."""

import numpy as np
import torch

from dpsub import trainers
from fuzz.call import OMIT, Call
from fuzz.cast import ANY_MODEL, FIXED, FLAT, MLP

X = FLAT.x_train
WEIGHTS = MLP.flat(MLP.initial_parameters(3, torch.Generator().manual_seed(1))).numpy()


def said(result, /, *, x, says, **_):
    assert result.shape == ((3, len(x)) if says == "labels" else (3, len(x), 3))
    assert np.isfinite(result).all()


CALLS = [
    Call(
        "dpsub.trainers.answers_of",
        trainers.answers_of,
        {
            "model": [MLP, FIXED],
            "weights": [WEIGHTS, torch.tensor(WEIGHTS), WEIGHTS.tolist()],
            "x": [X, torch.tensor(X), X.tolist()],
            "says": ["logits", "probabilities", "labels"],
            "device": [OMIT, "auto", "cpu"],
        },
        said,
        hostile={"model": ANY_MODEL},
    ),
]
