from dataclasses import replace

import numpy as np
import pytest

from dpsub.data import from_arrays


def test_from_arrays_converts_and_counts_classes():
    task = from_arrays([[0, 1], [2, 3], [4, 5]], [0, 2, 1], name="three")
    assert task.num_classes == 3
    assert task.x_test.shape == (0, 2)
    assert repr(task) == "Task('three': 3 private, 0 auxiliary, 0 test records of shape (2,), 3 classes)"


X, Y = np.zeros((4, 3)), [0, 1, 0, 1]


def test_fingerprints_change_with_what_they_are_of():
    task = from_arrays(X, Y, x_aux=X, y_aux=Y, x_test=X, y_test=Y)
    x, y = X.astype(np.float32), np.array(Y)
    x[2, 1], y[3] = 1e-30, 0
    for part in ("train", "aux", "test"):
        for change in ({f"x_{part}": x}, {f"y_{part}": y}):
            changed = replace(task, **change)
            assert (changed.fingerprint != task.fingerprint) == (part == "train")
            assert (changed.test_fingerprint != task.test_fingerprint) == (part == "test")
    assert replace(task, num_classes=3).fingerprint != task.fingerprint
    assert replace(task, name="other").fingerprint == task.fingerprint


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: from_arrays(np.zeros(4), Y), r"x_train must have shape \(records, features\), got \(4,\)"),
        (lambda: from_arrays(X[:1], Y[:1]), "x_train must hold at least 2 records, got 1"),
        (lambda: from_arrays(X, Y[:3]), r"y_train must have shape \(4,\), one label a record, got \(3,\)"),
        (lambda: from_arrays(X, [0, 1, 0, -1]), "y_train must be whole numbers from 0"),
        (lambda: from_arrays(X, [0, 1, 0, 0.5]), "y_train must be whole numbers from 0"),
        (lambda: from_arrays(X * np.nan, Y), "x_train must be finite, got 12 values that are not"),
        (lambda: from_arrays(X, Y, x_aux=X), "x_aux and y_aux must be given together"),
        (
            lambda: from_arrays(X, Y, x_test=np.zeros((2, 5)), y_test=[0, 1]),
            r"x_test must have records of shape \(3,\)",
        ),
        (lambda: from_arrays(X, [0, 1, 0, 5], num_classes=5), "num_classes must be greater than every label"),
        (lambda: from_arrays(X, [0, 1, 1e19, 1]), "y_train must be whole numbers from 0 to 1000000"),
        (lambda: from_arrays(X, ["a"] * 4), "y_train must be whole numbers from 0, got dtype"),
        (lambda: from_arrays(X + 1j, Y), "x_train must be real numbers, got dtype complex128"),
        (lambda: from_arrays(np.ma.masked_less(X, 1), Y), "x_train must not be masked"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
