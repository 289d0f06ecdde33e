import numpy as np
import pytest
import torch

from dpsub import crafters, data, models
from dpsub.crafters.reference_model import snapshots

INPUTS = [crafters.crafted_input, crafters.mislabeled, crafters.natural]
SHORT = {crafters.crafted_input: {"steps": 50, "learning_rate": 0.1}}


def test_target_is_the_record_that_a_model_without_privacy_is_least_sure_of(task, spec):
    x = torch.cat([torch.tensor(task.x_train), torch.ones(80, 1)], dim=1)
    labels = torch.nn.functional.one_hot(torch.tensor(task.y_train), 10)
    theta, confidence = torch.zeros(x.shape[1], 10), torch.zeros(80)
    for _ in range(15):
        theta = theta - 0.05 * x.T @ (torch.softmax(x @ theta, dim=1) - labels) / 80
        confidence += (torch.softmax(x @ theta, dim=1) * labels).sum(dim=1) / 15
    pair = crafters.mislabeled(task, models.linear(task), spec(), seed=0)
    np.testing.assert_allclose(pair.trace["confidence"], confidence, atol=1e-6)
    assert pair.slot == int(confidence.argmin())
    np.testing.assert_array_equal(pair.z.x, task.x_train[pair.slot])
    assert pair.z.y == task.y_train[pair.slot]
    assert pair.details["confidence"] == pytest.approx(float(confidence.min()), abs=1e-6)


@pytest.mark.parametrize("craft", INPUTS)
def test_whoever_chooses_records_knows_neither_clipping_nor_noise(task, craft, spec):
    model = models.linear(task)
    settings = spec(), spec(max_grad_norm=0.1, noise_multiplier=1.0)
    one, other = (craft(task, model, setting, seed=0, **SHORT.get(craft, {})) for setting in settings)
    assert one.fingerprint == other.fingerprint


@pytest.mark.parametrize("craft", INPUTS)
def test_bad_targets_and_trainings_are_named(task, craft, spec):
    model = models.linear(task)
    with pytest.raises(ValueError, match="target must be >= 0 and <= 79, got 80"):
        craft(task, model, spec(), seed=0, target=80)
    with pytest.raises(ValueError, match="seed must be >= 0, got -1"):
        craft(task, model, spec(), seed=-1)
    with pytest.raises(ValueError, match="spec must be such that training without clipping and noise does not diverge"):
        craft(task, model, spec(learning_rate=1e38), seed=0)


def test_target_without_a_gradient_is_named(task, spec):
    easy = data.from_arrays(np.eye(2) * 1e4, [0, 1], x_aux=np.eye(2) * 9e3, y_aux=[0, 1], num_classes=2)
    for craft in INPUTS:
        with pytest.raises(ValueError, match="target must have a gradient, got private record 1, whose"):
            craft(easy, models.linear(easy), spec(learning_rate=10.0), seed=0, target=1)


def test_the_reference_is_the_model_that_crafters_look_at(task, spec):
    model = models.mlp(task, (4,))
    found, pair = crafters.reference(task, model, spec(), seed=2), crafters.mislabeled(task, model, spec(), seed=2)
    assert found.slot == pair.slot
    np.testing.assert_array_equal(found.confidence, pair.trace["confidence"])
    assert float(found.gradient().norm()) == pair.details["norm"]
    assert crafters.reference(task, model, spec(), seed=2, target=7).slot == 7
    with torch.no_grad():
        assert found.module(torch.tensor(task.x_train).double()).shape == (80, 10)


@pytest.mark.parametrize("steps", [1, 7, 100, 101, 150, 199, 5000])
def test_snapshots_are_a_hundred_and_end_at_the_end(steps):
    moments = snapshots(steps)
    assert len(moments) == min(steps, 100)
    assert max(moments) == steps
    between = np.diff([0, *sorted(moments)])
    assert between.min() >= 1
    assert np.ptp(between) <= 1, "evenly spaced"
