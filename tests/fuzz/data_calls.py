"""Calls of dpsub.data, and of the records DPSGD and CanaryPair."""

from dataclasses import fields

import numpy as np

from dpsub import DPSGD, CanaryPair, data
from fuzz import cast
from fuzz.call import OMIT, Call
from fuzz.cast import CANARIES, FLAT, HOSTILE, OF_TASK, RNG, TASKS
from fuzz.checkers import anything, is_pair
from fuzz.hostile import ANY_PATH, LITTLE, among

SEEDS = [OMIT, 0, 3, np.uint64(2**63), 10**400]
X = [RNG.random((4, 3)), RNG.random((4, 3)).tolist(), np.ones((4, 3), dtype=int), np.zeros((4, 3), dtype=bool)]
Y = [[0, 1, 2, 0], np.array([0, 1, 1, 0], dtype=np.uint8), [0.0, 1.0, 0.0, 1.0]]
GRADIENTS = [np.ones(3), [1.0, -2.0], np.array([1, 0], dtype=np.int8), (np.ones(3)[::-1])]
ADJACENCIES = ["substitute", "substitute", "add_remove", "zero_out"]
FILES = {"n_train": [2, 3, np.int64(4)], "n_aux": [0, 2], "seed": SEEDS, "name": [OMIT, None, "a task"]}
FILES |= {"stand_in_for": [OMIT, None, "other features"]}


def task(result, /, **_):
    data.check_task(result)
    n, classes = len(result.y_train), result.num_classes
    assert result.x_train.shape[0] == n >= 2
    assert result.x_train.dtype == np.float32
    assert result.y_train.dtype == np.int64
    assert 0 <= result.y_train.min() <= result.y_train.max() < classes
    assert len(result.fingerprint) == len(result.test_fingerprint) == 16


def drawn(result, /, *, path, n_train, n_aux, **_):
    task(result)
    assert len(result.y_train) == n_train
    assert path is None or len(result.y_aux) == n_aux


def spec(result, /, **arguments):
    for name, value in arguments.items():
        assert getattr(result, name) == (value if isinstance(value, str) else type(getattr(result, name))(value))
    drawn = {"sampling"} if result.sampling != "poisson" else set()
    assert set(result.mechanism) == {"noise_multiplier", "sample_rate", "steps"} | drawn


def pictures(result, /, **_):
    assert result.dtype == np.float32
    assert result.ndim in (3, 4)


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
        names=("adjacency", "z_prime"),
    ),
    Call(
        "dpsub.data.from_arrays",
        data.from_arrays,
        {
            "x_train": X,
            "y_train": Y,
            "x_aux": [OMIT, OMIT, X[0][:2], None],
            "y_aux": [OMIT, OMIT, [0, 1], None],
            "x_test": [OMIT, OMIT, X[0]],
            "y_test": [OMIT, OMIT, Y[0]],
            "num_classes": [OMIT, None, 3, np.int64(5)],
            "name": [OMIT, "a task"],
        },
        task,
    ),
    *(
        Call(
            f"dpsub.data.Task of {one.name}",
            data.Task,
            {field.name: [getattr(one, field.name)] for field in fields(one)},
            task,
        )
        for one in (FLAT, cast.DIGITS)
    ),
    Call("dpsub.data.check_task", data.check_task, {"task": TASKS}, anything, hostile=HOSTILE, names=OF_TASK),
    Call(
        "dpsub.data.Task.pictures",
        lambda task, x: task.pictures(x),
        {"task": TASKS, "x": [t.x_train for t in TASKS] + [t.x_test[:1] for t in TASKS]},
        pictures,
        hostile={"task": among(TASKS)},
    ),
    Call("dpsub.data.breast_cancer", data.breast_cancer, {"n_train": [2, 20, np.int16(30)], "seed": SEEDS}, task),
    Call(
        "dpsub.data.random_images",
        data.random_images,
        {
            "n_train": [2, np.int16(20)],
            "n_aux": [OMIT, 0, 3],
            "n_test": [0, 2],
            "seed": SEEDS,
            "size": [1, 3, np.int8(4)],
            "channels": [OMIT, 1],
            "num_classes": [OMIT, 2, 3.0],
        },
        task,
        hostile=dict.fromkeys(("n_train", "n_aux", "n_test", "size", "channels"), LITTLE),
    ),
    Call("dpsub.data.digits", data.digits, {"n_train": [2, 20, np.int16(30), 1_000], "seed": SEEDS}, task),
    *(
        Call(
            f"dpsub.data.{function.__name__}",
            function,
            {"path": paths, **FILES},
            drawn,
            hostile={"path": ANY_PATH},
            raises=(OSError,),
        )
        for function, paths in (
            (data.load_features, ["features.npz"]),
            (data.features_or_digits, ["features.npz", "features.npz"]),
        )
    ),
]
