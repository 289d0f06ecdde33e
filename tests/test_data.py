import numpy as np
import pytest

from dpsub.data import digits, from_arrays


def test_digits_are_split_into_private_auxiliary_and_test_records():
    task = digits(n_train=500, seed=1)
    assert [len(y) for y in (task.y_train, task.y_aux, task.y_test)] == [500, 500, 797]
    assert task.x_train.dtype == np.float32
    assert task.y_train.dtype == np.int64
    assert task.num_classes == 10
    assert set(task.y_train) == set(range(10))
    assert task.x_train.min() == 0
    assert task.x_train.max() == 1
    together = np.concatenate([task.x_train, task.x_aux, task.x_test])
    assert len(np.unique(together, axis=0)) >= 1_790


def test_no_pixel_is_constant_over_the_private_digits():
    for n_train in (20, 500):
        task = digits(n_train=n_train)
        assert np.all(np.ptp(task.x_train, axis=0) > 0)
        assert task.x_test.shape[1] == task.x_train.shape[1]


def test_same_seed_same_digits():
    np.testing.assert_array_equal(digits(seed=2).x_train, digits(seed=2).x_train)
    assert digits(seed=2).y_train.tolist() != digits(seed=3).y_train.tolist()


def test_from_arrays_converts_and_counts_classes():
    task = from_arrays([[0, 1], [2, 3], [4, 5]], [0, 2, 1], name="three")
    assert task.num_classes == 3
    assert task.x_test.shape == (0, 2)
    assert repr(task) == "Task('three': 3 private, 0 auxiliary, 0 test records of shape (2,), 3 classes)"


X, Y = np.zeros((4, 3)), [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: digits(n_train=1_500), "n_train must be <= 1296 of the 1797 digits.*got 1500"),
        (lambda: digits(n_train=1), "n_train must be >= 2, got 1"),
        (lambda: digits(seed=-1), "seed must be >= 0, got -1"),
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
