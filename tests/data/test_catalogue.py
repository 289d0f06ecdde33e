import os
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import chisquare
from sklearn.datasets import load_breast_cancer

from dpsub.data import (
    breast_cancer,
    catalogue,
    digits,
    load_features,
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


def test_more_records_than_there_can_be_are_refused():
    with pytest.raises(ValueError, match="n_train must be <= 418 of the 569 records.*got 419"):
        breast_cancer(n_train=419)


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
    assert list(raw.feature_names) == list(task.columns)


@pytest.mark.parametrize("make", [digits, breast_cancer, partial(purchase100_like, n_aux=200), random_images])
def test_a_task_follows_from_its_seed(make, monkeypatch):
    monkeypatch.setattr(catalogue, "PURCHASE_TEST", 100)
    task, again, other = (make(n_train=200, seed=seed) for seed in (1, 1, 2))
    assert (again.fingerprint, again.test_fingerprint) == (task.fingerprint, task.test_fingerprint)
    assert other.fingerprint != task.fingerprint
    assert other.test_fingerprint != task.test_fingerprint


def test_made_up_shoppers_have_the_shape_of_purchase100():
    task = purchase100_like(n_train=300, n_aux=200, seed=1)
    assert [len(y) for y in (task.y_train, task.y_aux, task.y_test)] == [300, 200, 10_000]
    assert task.x_train.shape == (300, 600)
    assert set(np.unique(task.x_test)) == {0, 1}
    assert task.num_classes == 100
    assert len(np.unique(task.y_test)) == 100
    assert "stand-in for Purchase100" in task.name


def test_random_images_have_uniform_pixels_and_labels():
    small = random_images(n_train=4, n_aux=0, n_test=0, size=2, channels=1, num_classes=3)
    assert (small.x_train.shape, small.num_classes) == ((4, 1, 2, 2), 3)
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


DATA = os.environ.get("DPSUB_DATA")


@pytest.mark.skipif(not DATA or not Path(DATA, "mnist").is_dir(), reason="needs MNIST in DPSUB_DATA")
def test_mnist_itself():
    task = mnist(n_train=300, n_aux=200)
    assert task.x_train.shape == (300, 1, 28, 28)
    assert [len(y) for y in (task.y_aux, task.y_test)] == [200, 10_000]
    labels = catalogue.idx("train-labels-idx1-ubyte.gz")
    assert np.bincount(labels).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]


POOL = {"x": np.arange(60.0).reshape(20, 3), "y": np.arange(20) % 2}


def save(path, pool="train", **changes):
    arrays = {f"x_{pool}": POOL["x"], f"y_{pool}": POOL["y"], "x_test": POOL["x"][:4], "y_test": POOL["y"][:4]}
    np.savez(path, **{name: value for name, value in (arrays | changes).items() if value is not None})
    return path


@pytest.mark.parametrize("pool", ["train", "private"])
def test_features_are_drawn_from_the_pool(tmp_path, pool):
    path = save(tmp_path / "some.npz", pool, x_dev=np.zeros((2, 3)))
    task = load_features(path, n_train=8, n_aux=6, seed=3, stand_in_for="ViT-B/16")
    assert [len(y) for y in (task.y_train, task.y_aux, task.y_test)] == [8, 6, 4]
    rows = [tuple(x) for x in np.concatenate([task.x_train, task.x_aux])]
    assert len(set(rows)) == 14
    assert set(rows) <= {tuple(x) for x in POOL["x"]}
    for x, y in ((task.x_train, task.y_train), (task.x_aux, task.y_aux), (task.x_test, task.y_test)):
        assert y.tolist() == (x[:, 0] / 3 % 2).tolist(), "labels go with their features"
    assert task.name == "some (stand-in for ViT-B/16)"
    assert task.num_classes == 2
    assert load_features(path, n_train=8, n_aux=6, seed=4).fingerprint != task.fingerprint


def test_features_are_looked_for_in_the_data_folder(tmp_path, monkeypatch):
    (tmp_path / "features").mkdir()
    save(tmp_path / "features" / "f.npz")
    monkeypatch.setenv("DPSUB_DATA", str(tmp_path))
    assert len(load_features("features/f.npz", n_train=8, n_aux=6).y_train) == 8
    expected = f"there is neither .*nothing.npz nor {tmp_path}/nothing.npz; the environment variable DPSUB_DATA"
    with pytest.raises(FileNotFoundError, match=expected):
        load_features("nothing.npz")


def test_more_records_than_there_are_is_named(tmp_path):
    path = save(tmp_path / "f.npz")
    assert len(load_features(path, n_train=20, n_aux=0).y_aux) == 0
    for sizes in ({"n_train": 15, "n_aux": 6}, {"n_train": 21, "n_aux": 0}):
        with pytest.raises(ValueError, match="n_train and n_aux must together be no more than the 20 records of f"):
            load_features(path, **sizes)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"x_test": None}, "path must be an .npz file of plain arrays x_train, y_train, x_test and y_test, .*'x_test"),
        ({"x_test": np.zeros((4, 2))}, r"x_test must have shape \(records, 3\), got \(4, 2\)"),
        ({"x_train": np.array([object()] * 20)}, "path must be an .npz file of plain arrays"),
    ],
)
def test_other_layouts_are_named(tmp_path, changes, expected):
    with pytest.raises(ValueError, match=expected):
        load_features(save(tmp_path / "f.npz", **changes), n_train=20, n_aux=0)


def test_no_auxiliary_record_is_a_private_one_but_for_rounding(tmp_path):
    x = np.repeat(POOL["x"], 2, axis=0) + np.tile([0.0, 1e-12], 20)[:, None]
    x[:2] = [[0.0, -0.0, 1.0], [-0.0, 0.0, 1.0]]
    path = save(tmp_path / "f.npz", x_train=x, y_train=np.arange(40) % 2)
    for seed in range(10):
        task = load_features(path, n_train=12, n_aux=10, seed=seed)
        assert not {tuple(r) for r in task.x_train.tolist()} & {tuple(r) for r in task.x_aux.tolist()}


@pytest.mark.parametrize(
    ("name", "width"), [("cifar10-efficientnet-lite0", 1280), ("cifar10-cnn768", 768), ("sst2-all-minilm-l6-v2", 384)]
)
def test_feature_files_themselves(name, width):
    path = Path(DATA or "", "features", f"{name}.npz")
    if not DATA or not path.is_file():
        pytest.skip(f"needs features/{name}.npz in DPSUB_DATA")
    task = load_features(f"features/{name}.npz", n_train=500, n_aux=500)
    assert task.x_train.shape == (500, width)
    assert len(task.y_test) > 1_000
