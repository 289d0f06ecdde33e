import copy

import numpy as np
import pytest
import torch

from dpsub import crafters
from dpsub.audits import distinguishers

BITS = np.array([0, 1, 1, 0, 0, 1])


def test_the_distinguisher_crafts_as_the_crafter_does(cast):
    task, model = cast["mlp"]
    start = task.x_train[5], int(task.y_train[5])
    weights = model.initial_parameters(len(BITS), torch.Generator().manual_seed(0)).numpy()
    options = {"loss": "fisher", "steps": 3, "learning_rate": 0.01, "bounds": (0, np.ones(task.x_train[0].shape))}
    learned = distinguishers.AdversarialSamples(start, **options).learn(model, weights, BITS)
    crafted = crafters.adversarial_sample(model, weights, BITS, start=start, **options)
    np.testing.assert_array_equal(learned.x, crafted.x)
    assert learned.details == crafted.details
    np.testing.assert_array_equal(learned.scores(model, weights), crafted.scores(model, weights))


def test_distinguishers_that_craft_differently_have_different_names():
    start = (np.zeros(30), 1)
    others = [
        {"loss": "ude"}, {"margin": 0.1}, {"steps": 9}, {"learning_rate": 0.01}, {"optimizer": "sgd"},
        {"bounds": (0, 1)}, {"bounds": (0, 2)}, {"bounds": (np.zeros(30), 1)}, {"start": (np.ones(30), 1)},
        {"start": (np.zeros(30), 2)}, {"start": (np.zeros((5, 6)), 1)},
    ]  # fmt: skip
    names = [repr(distinguishers.AdversarialSamples(**{"start": start} | one)) for one in ({}, *others)]
    assert len(set(names)) == len(names)
    assert max(map(len, names)) < 200
    one = distinguishers.AdversarialSamples(start, margin=np.float32(0.25), steps=5.0, device="cpu")
    same = distinguishers.AdversarialSamples(([0] * 30, 1), margin=0.25, steps=5)
    assert repr(one) == repr(same) == repr(copy.deepcopy(one))
    assert not one.start.x.flags.writeable


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"start": None}, "start must be a record"),
        ({"loss": "mse"}, "loss must be one of"),
        ({"steps": 0}, "steps must be >= 1"),
        ({"bounds": (0.5, 1)}, "bounds must be .* hold the start"),
        ({"device": "gpu"}, "device must be one of"),
    ],
)
def test_distinguishers_refuse_bad_settings_before_they_learn(changes, message):
    with pytest.raises(ValueError, match=message):
        distinguishers.AdversarialSamples(**{"start": (np.zeros(30), 1)} | changes)
