import numpy as np
import pytest
import torch

from dpsub import crafters, data, models


@pytest.mark.parametrize("q", [1.0, 0.4])
def test_substituted_gradients_are_two_clipping_bounds_apart(task, q, spec):
    pair = crafters.gradient(task, models.linear(task), spec(sample_rate=q), seed=3)
    assert pair.adjacency == "substitute"
    assert pair.scenario == "S2"
    assert np.linalg.norm(pair.z) == np.linalg.norm(pair.z_prime) == 2.0
    assert np.linalg.norm(pair.z - pair.z_prime) == 4.0
    assert np.count_nonzero(pair.z) == 1
    assert pair.z.max() == -pair.z_prime.min() == 2.0
    assert 0 <= pair.slot < 80


def test_canary_sits_on_the_parameter_that_travels_least(task, spec):
    model, setting = models.linear(task), spec()
    x = torch.cat([torch.tensor(task.x_train), torch.ones(80, 1)], dim=1)
    labels = torch.nn.functional.one_hot(torch.tensor(task.y_train), 10)
    theta, travel = torch.zeros(model.shape), torch.zeros(model.shape)
    for _ in range(setting.steps):
        gradients = x[:, :, None] * (torch.softmax(x @ theta, dim=1) - labels)[:, None, :]
        scale = (2.0 / (gradients.flatten(1).norm(dim=1) + 1e-6)).clamp(max=1)
        move = 0.05 * (scale[:, None, None] * gradients).sum(0) / 80
        theta, travel = theta - move, travel + move.abs()
    pair = crafters.gradient(task, model, setting, seed=0)
    assert pair.details["parameter"] == int(travel.argmin()) == int(np.flatnonzero(pair.z)[0])
    assert pair.details["travel"] == pytest.approx(float(travel.min()), rel=1e-3)


def test_same_seed_same_canary(task, spec):
    setting, model = spec(sample_rate=0.4), models.linear(task)
    one, other = (crafters.gradient(task, model, setting, seed=5) for _ in range(2))
    np.testing.assert_array_equal(one.z, other.z)
    assert one.slot == other.slot
    assert one.details == other.details
    assert len({crafters.gradient(task, model, setting, seed=seed).slot for seed in range(5)}) > 1


def test_bad_seed_is_named(task, spec):
    with pytest.raises(ValueError, match="seed must be >= 0, got -1"):
        crafters.gradient(task, models.linear(task), spec(), seed=-1)


def test_path_shows_the_parameters_that_travel_least_middlingly_and_most(task, spec):
    pair = crafters.gradient(task, models.linear(task), spec(steps=250), seed=0)
    travel, path, step = (pair.trace[name] for name in ("travel", "path", "step"))
    assert step[0] == 0
    assert step[-1] == 250
    assert len(step) == len(path) <= 101
    moved = np.abs(np.diff(path, axis=0)).sum(axis=0)
    np.testing.assert_allclose(moved, [travel.min(), np.sort(travel)[(len(travel) - 1) // 2], travel.max()], rtol=0.05)


def test_parameters_that_nothing_moves_are_counted(task, spec):
    x = np.hstack([task.x_train, np.zeros((80, 2), np.float32)])
    pair = crafters.gradient(
        data.from_arrays(x, task.y_train), models.linear(data.from_arrays(x, task.y_train)), spec(), seed=0
    )
    assert pair.details["unmoved"] == 20
    assert pair.details["travel"] == 0
