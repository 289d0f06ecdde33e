"""Calls of the records DPSGD and CanaryPair."""

import numpy as np

from dpsub import DPSGD, CanaryPair
from fuzz import cast
from fuzz.call import OMIT, Call
from fuzz.cast import CANARIES, FLAT
from fuzz.checkers import is_pair
from fuzz.hostile import among

GRADIENTS = [np.ones(3), [1.0, -2.0], np.array([1, 0], dtype=np.int8), (np.ones(3)[::-1])]
ADJACENCIES = ["substitute", "substitute", "add_remove", "zero_out"]


def spec(result, /, **arguments):
    for name, value in arguments.items():
        assert getattr(result, name) == (value if isinstance(value, str) else type(getattr(result, name))(value))
    drawn = {"sampling"} if result.sampling != "poisson" else set()
    assert set(result.mechanism) == {"noise_multiplier", "sample_rate", "steps"} | drawn


CALLS = [
    Call(
        "dpsub.DPSGD",
        DPSGD,
        {
            "noise_multiplier": [1.0, 2, np.float32(0.5)],
            "max_grad_norm": [1, 0.1],
            "sample_rate": [1, 0.5],
            "steps": [1, 10, 3.0, np.int8(2)],
            "learning_rate": [0.1, 1],
            "optimizer": [OMIT, "sgd", "adam"],
            "sampling": [OMIT, "poisson", "epochs", "without_replacement"],
        },
        spec,
    ),
    Call(
        "dpsub.CanaryPair",
        CanaryPair,
        {
            "z": [(np.ones(3), 1), (FLAT.x_train[1], 0), ([1, 2, 3], 1)],
            "z_prime": [(np.ones(3), 2), (np.zeros(3), np.int8(1)), None],
            "slot": [0, 3, np.int64(2), 1.0],
            "scenario": ["S4", "mine"],
            "adjacency": [OMIT, *ADJACENCIES],
            "details": [OMIT, {}, {"a": 1, "b": "text", "c": np.float32(2)}],
            "task": [OMIT, None, "0" * 16],
            "trace": [OMIT, {}, {"cosine": np.ones(2)}],
        },
        is_pair,
    ),
    Call(
        "dpsub.CanaryPair of gradients",
        CanaryPair,
        {
            "z": GRADIENTS,
            "z_prime": [None, -np.ones(3), np.zeros(3), [0, 1]],
            "slot": [0],
            "scenario": ["S2"],
            "adjacency": ADJACENCIES,
        },
        is_pair,
    ),  # fmt: skip,
    Call(
        "dpsub.CanaryPair.against_nothing",
        lambda canary, **options: canary.against_nothing(**options),
        {"canary": CANARIES, "adjacency": ["add_remove", "zero_out"]},
        is_pair,
        hostile={"canary": among(cast.FOREIGN)},
    ),
    Call(
        "dpsub.CanaryPair.exchanged",
        lambda canary: canary.exchanged(),
        {"canary": CANARIES},
        is_pair,
        hostile={"canary": among(cast.FOREIGN)},
    ),
]
