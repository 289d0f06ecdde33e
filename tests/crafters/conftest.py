import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from dpsub import DPSGD, data, models

SETTING = {"noise_multiplier": 9.0, "max_grad_norm": 2.0, "sample_rate": 1.0, "steps": 15, "learning_rate": 0.05}


@pytest.fixture(scope="session")
def spec():
    """Makes a DPSGD; what is given takes the place of the usual."""
    return lambda **changes: DPSGD(**SETTING | changes)


@pytest.fixture(scope="session")
def task():
    return data.digits(n_train=80)


@pytest.fixture(scope="session")
def attacked(task):
    """Tasks with auxiliary records and a model for each, by the model's name."""
    rng = np.random.default_rng(0)
    labels = [rng.integers(3, size=24) for _ in range(2)]
    means = rng.normal(size=(3, 1, 16, 16))
    images = [means[y] + rng.normal(size=(24, 1, 16, 16)) for y in labels]
    small = data.from_arrays(images[0], labels[0], x_aux=images[1], y_aux=labels[1])
    return {
        "linear": (task, models.linear(task)),
        "mlp": (task, models.mlp(task)),
        "convnet": (small, models.convnet(small)),
    }


@pytest.fixture(scope="session")
def gradient_by_hand():
    """The gradient of one record's loss in a module in float64, by backpropagation."""

    def gradient(module, x, y):
        module.zero_grad()
        cross_entropy(module(torch.tensor(x)[None].double()), torch.tensor([y])).backward()
        return torch.cat([parameter.grad.flatten() for parameter in module.parameters()])

    return gradient
