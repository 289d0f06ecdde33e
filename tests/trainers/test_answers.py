import numpy as np
import pytest
import torch

from dpsub import trainers

CPU = {"device": "cpu"}


def real_models(model, runs, seed=3):
    """Weights of models that differ clearly."""
    generator = torch.Generator().manual_seed(seed)
    weights = model.flat(model.initial_parameters(runs, generator)).clone()
    return (weights + 0.3 * torch.randn(weights.shape, generator=generator)).numpy()


@pytest.mark.parametrize("name", ["linear", "mlp", "convnet", "attention", "lstm"])
def test_answers_are_those_of_the_modules(cast, banks_of_modules, monkeypatch, name):
    task, model = (cast if name in cast else banks_of_modules)[name]
    weights = real_models(model, 3)
    monkeypatch.setattr("dpsub.trainers.answers.NUMBERS_AT_ONCE", 3 * 10 * 7)
    monkeypatch.setattr("dpsub.trainers.answers.block_size", lambda model: 2)
    with torch.no_grad():
        sought = torch.stack([model.module(one)(torch.tensor(task.x_train)) for one in weights])
    logits = trainers.answers_of(model, weights, task.x_train, says="logits", **CPU)
    np.testing.assert_allclose(logits, sought, atol=1e-4)
    assert logits.dtype == np.float32
    probabilities = trainers.answers_of(model, torch.tensor(weights), torch.tensor(task.x_train), says="probabilities")
    np.testing.assert_allclose(probabilities, torch.softmax(sought, dim=2), atol=1e-4)
    labels = trainers.answers_of(model, weights, task.x_train, says="labels", **CPU)
    np.testing.assert_array_equal(labels, logits.argmax(axis=2))
    assert labels.dtype == np.int64
