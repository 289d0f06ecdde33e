from dataclasses import replace

import numpy as np
import pytest
import torch

from dpsub.data import digits, from_arrays, load_features


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
        (lambda: from_arrays(X, [1, 2, 3, 1]), "labels must count from 0 .*, got labels from 1 to 3: subtract 1"),
        (lambda: from_arrays(X, [2, 2, 1, 1], x_aux=X, y_aux=[1, 2, 1, 2]), "labels must count from 0"),
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
        (lambda: from_arrays(X, Y, name=3), "name must be a text without NUL and halves of characters, got 3"),
        (lambda: from_arrays(X, Y, name="\ud800"), r"name must be a text .*, got '\\ud800'"),
        (lambda: from_arrays([[1], [1, 2]], Y), "x_train must be an array of numbers, got a list"),
        (lambda: from_arrays(torch.ones(4, 3, requires_grad=True), Y), "x_train must be an array of numbers"),
        (lambda: load_features("~nobody-of-this-name/a"), "path must be a path in the file system"),
        (lambda: load_features(None), "path must be a path in the file system, got None"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x_train": None}, "x_train must be an array of float32, got NoneType"),
        ({"x_train": np.full((4, 3), np.inf, dtype=np.float32)}, "x_train must be finite"),
        ({"y_test": np.zeros(2, dtype=np.int64)}, r"y_test must have shape \(0,\)"),
        ({"num_classes": 1.5}, "num_classes must be a whole number >= 2"),
        ({"num_classes": ...}, "num_classes must be a whole number >= 2"),
        ({"name": None}, "name must be a text"),
        ({"pixels": np.ones((2, 2), dtype=bool)}, r"pixels must be .*, got \(2, 2\) for records of shape \(3,\)"),
        ({"pixels": [[1, 1, 1]]}, "pixels must be an array of bool"),
    ],
)
def test_a_task_is_checked_when_it_is_made_by_hand(change, message):
    with pytest.raises(ValueError, match=message):
        replace(from_arrays(X, Y), **change)


def test_more_auxiliary_records_than_can_be_counted_are_refused(tmp_path):
    file = tmp_path / "few.npz"
    np.savez(file, x_train=np.eye(9), y_train=np.arange(9) % 2, x_test=np.eye(9), y_test=np.arange(9) % 2)
    with pytest.raises(ValueError, match="n_train and n_aux must together be no more than the 9 records"):
        load_features(file, n_train=2, n_aux=2**63)


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
    for x, of in ((flat.x_train, flat), (np.zeros((2, 3)), task)):
        with pytest.raises(ValueError, match=r"x must be records of a task of .*, got .*\(2, 3\)"):
            of.pictures(x)


def test_what_is_no_array_of_numbers_is_no_picture():
    task = digits(n_train=60)
    for x in ("a", None, ..., np.full((1, task.x_train.shape[1]), 1e300), 1 + 0j):
        with pytest.raises(ValueError, match="x must be "):
            task.pictures(x)
