from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from dpsub import models
from dpsub.models.networks import Network

NAMES = (
    "linear",
    "linear, two classes",
    "mlp",
    "deep relu mlp",
    "mlp on images",
    "convnet",
    "convnet of many channels",
    "large relu convnet",
)


class Bench(NamedTuple):
    """A model with its task, twelve of its records, and three models of it that are not where training starts."""

    task: object
    model: models.Model
    theta: Tensor
    inputs: Tensor
    labels: Tensor

    @property
    def gathering(self):
        """The model as it computes all records, weighted, and, if it can, each model's own batch alone."""
        if not isinstance(self.model, Network):
            return [self.model]
        return [replace(self.model, gather=gather) for gather in (False, True)]

    def sum(self, sampled, max_grad_norm=1.0, model=None, **options):
        model = self.model if model is None else model
        return model.clipped_sum(self.theta, self.inputs, self.labels, sampled, max_grad_norm, **options)


@pytest.fixture(scope="session")
def bench_of(cast):
    def make(name):
        task, model = cast[name]
        generator = torch.Generator().manual_seed(5)
        theta = model.initial_parameters(3, generator)
        theta += 0.03 * torch.randn(theta.shape, generator=generator)
        inputs, labels = model.inputs(torch.tensor(task.x_train[:12])), torch.tensor(task.y_train[:12])
        return Bench(task, model, theta, inputs, labels)

    return make


@pytest.fixture(params=NAMES)
def bench(request, bench_of):
    """One for each architecture."""
    return bench_of(request.param)


@pytest.fixture
def sampled():
    """(12 records, 3 models) bool: about half of each batch."""
    return torch.rand(12, 3, generator=torch.Generator().manual_seed(0)) < 0.5
