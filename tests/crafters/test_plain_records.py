from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import kstest
from torch.nn.functional import softmax

from dpsub import crafters, data, models


def head(x, labels=(0, 1, 2)):
    """A task with these private records, and a linear head."""
    task = data.from_arrays(x, np.resize(labels, len(x)), num_classes=3)
    return task, models.linear(task)


@pytest.fixture
def crafted(spec):
    """ClipBKD's z for these private records, and its details."""

    def make(x, **options):
        pair = crafters.clipbkd(*head(x), spec(), **{"seed": 0, "label": 0} | options)
        return pair.z.x, pair.details

    return make


def test_a_blank_record_moves_biases_alone(task, spec, gradient_by_hand):
    model = models.mlp(task, (6, 5))
    pair = crafters.blank(task, model, spec(), seed=3)
    assert (pair.z.y, pair.z_prime.y) == (9, 0)
    np.testing.assert_array_equal(pair.z.x, np.zeros(task.x_train.shape[1]))
    np.testing.assert_array_equal(pair.z_prime.x, pair.z.x)
    module = model.module(model.initial_parameters(1, torch.Generator())[0]).double()
    gradient_by_hand(module, *pair.z)
    first, *_ = (layer for layer in module if isinstance(layer, torch.nn.Linear))
    assert not first.weight.grad.any()
    assert (first.bias.grad != 0).all()

    linear = models.linear(task).module().double()
    gradient_by_hand(linear, *pair.z)
    assert not linear.weight.grad.any()
    expected = softmax(torch.zeros(10, dtype=torch.float64), dim=0)
    expected[9] -= 1
    torch.testing.assert_close(linear.bias.grad, expected)


def test_labels_are_given_or_the_last_and_the_other_world_has_the_next(task, spec):
    for label, found in ((None, (9, 0)), (0, (0, 1)), (np.int8(4), (4, 5))):
        pair = crafters.blank(task, models.linear(task), spec(), seed=0, label=label)
        assert (pair.z.y, pair.z_prime.y) == found
    with pytest.raises(ValueError, match="label must be >= 0 and <= 9, got 10"):
        crafters.blank(task, models.linear(task), spec(), seed=0, label=10)


def test_ordinary_records_are_auxiliary_ones_of_two_classes(task, spec):
    chosen = set()
    for seed in range(30):
        pair = crafters.in_distribution(task, models.linear(task), spec(), seed=seed)
        for record, name in ((pair.z, "auxiliary"), (pair.z_prime, "auxiliary_prime")):
            index = pair.details[name]
            np.testing.assert_array_equal(record.x, task.x_aux[index])
            assert record.y == task.y_aux[index]
        assert pair.z.y != pair.z_prime.y
        chosen.add(pair.details["auxiliary"])
    assert len(chosen) > 20


def test_every_auxiliary_record_is_as_likely_to_be_ordinary(spec):
    aux = np.arange(4.0)[:, None] + 1
    task = data.from_arrays([[9.0], [8.0]], [0, 1], x_aux=aux, y_aux=[0, 0, 0, 1])
    draws = 400
    pairs = [crafters.in_distribution(task, models.linear(task), spec(), seed=seed) for seed in range(draws)]
    counts = np.bincount([pair.details["auxiliary"] for pair in pairs], minlength=4)
    assert (abs(counts - draws / 4) < 4 * np.sqrt(draws * 3 / 16)).all()


def test_ordinary_records_are_of_two_classes(task, spec):
    one_class = replace(task, x_aux=task.x_aux[:2], y_aux=np.array([3, 3]))
    with pytest.raises(ValueError, match="task must have auxiliary records of two classes or more: give x_aux"):
        crafters.in_distribution(one_class, models.linear(task), spec(), seed=0)


def test_clipbkd_is_the_last_right_singular_vector_with_the_mean_norm(crafted):
    x = np.random.default_rng(0).normal(size=(40, 6)) * [1, 2, 3, 0.5, 4, 5] + 1
    z, details = crafted(x)
    _, values, directions = np.linalg.svd(x.astype(np.float32))
    last = directions[-1] * np.sign(directions[-1] @ z)
    np.testing.assert_allclose(z, last * np.linalg.norm(x, axis=1).mean(), rtol=1e-4, atol=1e-5)
    assert details["singular_value"] == pytest.approx(values[-1] / values[0], rel=1e-5)
    assert details["directions"] == 1
    others = np.random.default_rng(1).normal(size=(200, 6))
    others *= np.linalg.norm(z) / np.linalg.norm(others, axis=1, keepdims=True)
    assert np.linalg.norm(x @ z) < np.linalg.norm(x @ others.T, axis=0).min()


def test_clipbkd_is_orthogonal_to_records_that_are_fewer_than_features(crafted):
    x = np.random.default_rng(0).normal(size=(5, 12))
    z, details = crafted(x)
    np.testing.assert_allclose(x @ z, 0, atol=1e-5)
    assert np.linalg.norm(z) == pytest.approx(np.linalg.norm(x, axis=1).mean(), rel=1e-6)
    assert details["directions"] == 7
    assert details["singular_value"] < 1e-6


def test_clipbkd_draws_every_direction_that_varies_least_with_the_same_chance(crafted):
    x = np.random.default_rng(0).normal(size=(20, 6))
    x[:, [1, 2, 4]] = 0
    norm, draws = np.linalg.norm(x, axis=1).mean(), 300
    found = np.stack([crafted(x, seed=seed)[0] for seed in range(draws)]) / norm
    np.testing.assert_allclose(found[:, [0, 3, 5]], 0, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-5)
    points = found[:, [1, 2, 4]]  # on a sphere, each coordinate is uniform on (-1, 1)
    assert all(kstest(one, "uniform", args=(-1, 2)).pvalue > 1e-3 for one in points.T)


@pytest.mark.parametrize("turn", range(4))
def test_clipbkd_does_not_depend_on_the_basis_that_lapack_finds(crafted, monkeypatch, turn):
    x = np.random.default_rng(0).normal(size=(6, 9))
    x[:, 3:] = (x[:, 3:] > 0) - 0.13  # like dead pixels of standardised images
    x[:, 6:] = -0.42
    z, details = crafted(x)
    eigh, basis = np.linalg.eigh, np.linalg.qr(np.random.default_rng(turn).normal(size=(9, 9)))[0]

    def turned(matrix):
        values, vectors = eigh(matrix)
        null = details["directions"]
        vectors[:, :null] = vectors[:, :null] @ np.linalg.qr(basis[:null, :null])[0]
        return values, vectors

    monkeypatch.setattr(np.linalg, "eigh", turned)
    again, _ = crafted(x)
    np.testing.assert_allclose(again, z, atol=1e-6)


def test_clipbkd_of_standardised_images_lights_dead_pixels(spec):
    rng = np.random.default_rng(0)
    images = rng.random((300, 1, 16, 16))
    images[..., :2, :] = 0
    task = data.from_arrays((images - 0.13) / 0.31, rng.integers(0, 3, 300), num_classes=3)
    pair = crafters.clipbkd(task, models.convnet(task), spec(steps=2), seed=0)
    assert pair.details["directions"] == 31  # they are equal, but not 0
    np.testing.assert_allclose(task.x_train.reshape(300, -1) @ pair.z.x.ravel(), 0, atol=1e-3)
    np.testing.assert_allclose(pair.z.x[:, 2:], 0, atol=1e-4)
    assert abs(pair.z.x[:, :2]).min() > 0


def test_clipbkd_has_the_label_that_the_reference_gives_least(task, spec):
    model, setting = models.mlp(task), spec(learning_rate=0.5)
    pair = crafters.clipbkd(task, model, setting, seed=2)
    module = crafters.reference(task, model, setting, seed=2).module
    probabilities = softmax(module(torch.tensor(pair.z.x)[None].double())[0], dim=0)
    assert pair.z.y == int(probabilities.argmin())
    assert pair.z_prime.y == (pair.z.y + 1) % 10
    np.testing.assert_array_equal(pair.z.x, pair.z_prime.x)


def test_clipbkd_has_no_label_that_the_loss_ignores(task, without_five, spec):
    setting = spec(learning_rate=1.0)
    pair = crafters.clipbkd(task, without_five, setting, seed=0)
    module = crafters.reference(task, without_five, setting, seed=0).module
    least = module(torch.tensor(pair.z.x)[None].double())[0].argsort()[:2].tolist()
    assert least[0] == 5
    assert pair.z.y == least[1]
