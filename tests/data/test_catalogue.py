import os
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import chisquare
from sklearn.datasets import load_breast_cancer

from dpsub.data import (
    BREAST_CANCER_COLUMNS,
    breast_cancer,
    catalogue,
    digits,
    files,
    mnist,
    purchase100_like,
    random_images,
)


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
        assert task.x_test.shape[1] == task.x_train.shape[1] == task.pixels.sum()


def test_same_seed_same_digits():
    np.testing.assert_array_equal(digits(seed=2).x_train, digits(seed=2).x_train)
    assert digits(seed=2).y_train.tolist() != digits(seed=3).y_train.tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_train": 1_500}, "n_train must be <= 1296 of the 1797 digits.*got 1500"),
        ({"n_train": 1}, "n_train must be >= 2, got 1"),
        ({"seed": -1}, "seed must be >= 0, got -1"),
    ],
)
def test_bad_input_is_named(options, message):
    with pytest.raises(ValueError, match=message):
        digits(**options)


def test_breast_cancer_is_standardised_by_auxiliary_records_alone():
    task, smaller = breast_cancer(n_train=300, seed=1), breast_cancer(n_train=200, seed=1)
    assert [len(y) for y in (task.y_train, task.y_aux, task.y_test)] == [300, 150, 119]
    assert task.num_classes == 2
    np.testing.assert_allclose(task.x_aux.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(task.x_aux.std(axis=0), 1, rtol=1e-5)
    assert np.abs(task.x_train.mean(axis=0)).max() > 0.01
    together = np.concatenate([task.x_train, task.x_aux, task.x_test])
    assert len(np.unique(together, axis=0)) == 569
    raw = load_breast_cancer()
    for column in (0, 13, 29):
        here, there = np.sort(together[:, column]), np.sort(raw.data[:, column])
        slope = np.ptp(there) / np.ptp(here)
        np.testing.assert_allclose(there[0] + slope * (here - here[0]), there, rtol=1e-4, atol=1e-5)
    assert np.bincount(np.concatenate([task.y_train, task.y_aux, task.y_test])).tolist() == [212, 357]
    assert smaller.fingerprint != task.fingerprint
    assert breast_cancer(seed=1).fingerprint == task.fingerprint != breast_cancer(seed=2).fingerprint


def test_columns_of_breast_cancer_are_named_as_scikit_learn_names_them():
    assert tuple(load_breast_cancer().feature_names) == BREAST_CANCER_COLUMNS


def test_too_many_patients_are_named():
    with pytest.raises(ValueError, match="n_train must be <= 418 of the 569 records.*got 419"):
        breast_cancer(n_train=419)


def test_made_up_shoppers_have_the_shape_of_purchase100():
    task = purchase100_like(n_train=300, n_aux=200, seed=1)
    assert [len(y) for y in (task.y_train, task.y_aux, task.y_test)] == [300, 200, 10_000]
    assert task.x_train.shape == (300, 600)
    assert set(np.unique(task.x_test)) == {0, 1}
    assert task.num_classes == 100
    assert len(np.unique(task.y_test)) == 100
    assert "stand-in for Purchase100" in task.name


def test_same_seed_same_shoppers(monkeypatch):
    monkeypatch.setattr(catalogue, "PURCHASE_TEST", 100)
    one, again, other = (purchase100_like(n_train=200, n_aux=100, seed=seed) for seed in (1, 1, 2))
    assert (again.fingerprint, again.test_fingerprint) == (one.fingerprint, one.test_fingerprint)
    assert other.fingerprint != one.fingerprint
    assert other.test_fingerprint != one.test_fingerprint


def test_random_images_have_uniform_pixels_and_labels():
    task = random_images(n_train=300, n_aux=50, n_test=20, seed=1)
    assert task.x_train.shape == (300, 3, 32, 32)
    assert [len(y) for y in (task.y_train, task.y_aux, task.y_test)] == [300, 50, 20]
    levels = np.rint(task.x_train * 255)
    np.testing.assert_array_equal(task.x_train, levels.astype(np.float32) / np.float32(255))
    assert chisquare(np.bincount(levels.astype(int).ravel(), minlength=256)).pvalue > 1e-3
    assert chisquare(np.bincount(task.y_train, minlength=10)).pvalue > 1e-3
    flat = task.x_train.reshape(300, -1)
    assert abs(np.corrcoef(flat[0], flat[1])[0, 1]) < 5 / np.sqrt(3072)
    assert np.abs(np.corrcoef(flat[:, :40].T)[~np.eye(40, dtype=bool)]).max() < 5 / np.sqrt(300)


def test_random_images_are_of_any_shape_and_follow_from_their_seed():
    make = partial(random_images, n_train=4, n_aux=0, n_test=0, size=2, channels=1, num_classes=3)
    one, again, other = (make(seed=seed) for seed in (1, 1, 2))
    assert one.x_train.shape == (4, 1, 2, 2)
    assert one.num_classes == 3
    assert one.fingerprint == again.fingerprint != other.fingerprint


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_train": 1}, "n_train must be >= 2, got 1"),
        ({"n_test": -1}, "n_test must be >= 0, got -1"),
        ({"size": 0}, "size must be >= 1, got 0"),
        ({"num_classes": 1}, "num_classes must be >= 2 .*got 1"),
        ({"n_train": 10**15}, r"must be such that records \(.*\) fit into memory"),
        ({"size": 10**400}, r"must be such that records \(.*\) fit into memory"),
    ],
)
def test_random_images_out_of_range_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        random_images(**arguments)


DATA = os.environ.get("DPSUB_DATA")


@pytest.mark.skipif(not DATA or not Path(DATA, "mnist").is_dir(), reason="needs MNIST in DPSUB_DATA")
def test_mnist_itself():
    task = mnist(n_train=300, n_aux=200)
    assert task.x_train.shape == (300, 1, 28, 28)
    assert [len(y) for y in (task.y_aux, task.y_test)] == [200, 10_000]
    labels = files.idx("train-labels-idx1-ubyte.gz")
    assert np.bincount(labels).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
