from dataclasses import replace

import numpy as np
import pytest

from dpsub.data import digits, from_arrays


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
        (lambda: from_arrays(np.zeros(4), Y), r"x_train must have shape \(records, features, ...\), got \(4,\)"),
        (lambda: from_arrays(X, Y[:3]), r"y_train must have shape \(4,\), got \(3,\)"),
        (lambda: from_arrays(X, [1, 2, 3, 1]), "labels must count from 0 .*, got labels from 1 to 3: subtract 1"),
        (lambda: from_arrays(X, [0, 1, 0, 0.5]), "y_train must be whole numbers >= 0, got 0.5"),
        (lambda: from_arrays(X * np.nan, Y), r"x_train must be finite numbers in float32, got nan \(12 of 12 values\)"),
        (lambda: from_arrays(X, Y, x_aux=X), "x_aux and y_aux must be given together"),
        (
            lambda: from_arrays(X, Y, x_test=np.zeros((2, 5)), y_test=[0, 1]),
            r"x_test must have shape \(records, 3\), got \(2, 5\)",
        ),
        (lambda: from_arrays(X, [0, 1, 0, 5], num_classes=5), "y_train must be whole numbers >= 0 and <= 4, got 5"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_task_holds_read_only_arrays_of_its_own():
    x, y = np.ones((4, 3)), np.array([0.0, 1.0, 0.0, 1.0])
    task = replace(from_arrays(X, Y), x_train=x, y_train=y)
    assert (task.x_train.dtype, task.y_train.dtype) == (np.float32, np.int64)
    x[:], y[:] = 2, 0
    assert task.x_train.max() == 1
    assert task.y_train.tolist() == [0, 1, 0, 1]
    for array in (task.x_train, task.y_train, task.x_aux, task.y_test):
        assert not array.flags.writeable


def test_labels_may_begin_above_0_where_the_number_of_classes_is_given():
    assert from_arrays(X, [1, 2, 3, 1], num_classes=4).num_classes == 4
    assert from_arrays(X, [1, 2, 3, 1], x_test=X, y_test=[0, 1, 2, 3]).num_classes == 4


def test_digits_are_put_back_where_their_pixels_were():
    task = digits(n_train=60)
    shown = task.pictures(task.x_test)
    assert shown.shape == (len(task.y_test), 8, 8)
    np.testing.assert_array_equal(shown[:, task.pixels], task.x_test)
    assert (shown[:, ~task.pixels] == 0).all()
    assert (~task.pixels).any()


def test_images_are_pictures_with_their_colours_last():
    rng = np.random.default_rng(0)
    colour = from_arrays(rng.random((2, 3, 5, 4)), [0, 1])
    np.testing.assert_array_equal(colour.pictures(colour.x_train), np.moveaxis(colour.x_train, 1, -1))
    grey = from_arrays(rng.random((2, 1, 5, 4)), [0, 1])
    np.testing.assert_array_equal(grey.pictures(grey.x_train), grey.x_train[:, 0])


def test_other_records_are_no_pictures():
    flat, task = from_arrays(np.zeros((2, 3)), [0, 1]), digits(n_train=60)
    with pytest.raises(ValueError, match=r"x must be records of a task of images, got shape \(2, 3\)"):
        flat.pictures(flat.x_train)
    with pytest.raises(ValueError, match=r"x must have shape \(records, \d+\), got \(2, 3\)"):
        task.pictures(np.zeros((2, 3)))
