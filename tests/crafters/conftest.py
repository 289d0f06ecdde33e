import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from dpsub import DPSGD, data, models
from dpsub.trainers import assemble

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


@pytest.fixture(scope="session")
def without_five(task):
    """A head that starts at 0, whose loss ignores the label 5."""

    def loss(outputs, labels):
        return cross_entropy(outputs, labels, ignore_index=5, reduction="none")

    module = torch.nn.Linear(task.x_train.shape[1], 10)
    torch.nn.init.zeros_(module.weight)
    torch.nn.init.zeros_(module.bias)
    return models.from_module(module, task, loss=loss)


@pytest.fixture(scope="session")
def targets(attacked):
    """Tasks and models by name, a module with group norm and dropout among them."""
    task = attacked["convnet"][0]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = torch.nn.Sequential(
            torch.nn.Conv2d(1, 4, 5, stride=3), torch.nn.GroupNorm(2, 4), torch.nn.Tanh(), torch.nn.Flatten(),
            torch.nn.Dropout(0.5), torch.nn.Linear(64, 3),
        )  # fmt: skip
    return attacked | {"module": (task, models.from_module(module, task))}


@pytest.fixture
def bank_of(targets, spec):
    """A bank of some models that have trained for a few steps."""

    def make(name, runs=1, steps=3, **changes):
        task, model = targets[name]
        generator = torch.Generator().manual_seed(5)
        found = spec(learning_rate=0.5, noise_multiplier=1.0, sample_rate=0.5, **changes)
        bank = assemble(model, task, found, bits=np.zeros(runs, dtype=np.int8), generator=generator)
        for _ in range(steps):
            bank.advance()
        return bank

    return make
