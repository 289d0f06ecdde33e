import itertools

import numpy as np
import pytest
import torch
from cases import slow_but
from torch.nn import functional

from dpsub import data, models, trainers
from dpsub._core.random_streams import torch_seed
from studies.final_models import distillation

CPU = {"device": "cpu"}


def real_models(model, runs, seed=3):
    """Weights of models that differ clearly."""
    generator = torch.Generator().manual_seed(seed)
    weights = model.flat(model.initial_parameters(runs, generator)).clone()
    return (weights + 0.3 * torch.randn(weights.shape, generator=generator)).numpy()


def flat_of(model, module):
    first = [one.detach() for one in module.parameters()]
    if isinstance(model, models.Linear):  # features first
        first[0] = first[0].T
    return torch.cat([one.flatten() for one in first]).numpy()


def alone(model, start, target, x, says, *, epochs, batch_size, learning_rate, seed):
    """One surrogate as a torch module, trained by itself: its weights, and the loss of each epoch."""
    module = model.module(start)
    optimizer = torch.optim.Adam(module.parameters(), lr=learning_rate)
    generator = torch.Generator().manual_seed(torch_seed(seed, "distillation", 1))
    x, target, loss = torch.tensor(x), torch.tensor(target), []
    for _ in range(epochs):
        total = 0.0
        for batch in torch.split(torch.randperm(len(x), generator=generator), batch_size):
            outputs = module(x[batch])
            if says == "labels":
                value = functional.cross_entropy(outputs, target[batch])
            else:
                sharp = target[batch] if says == "logits" else target[batch].log()
                value = functional.kl_div(
                    functional.log_softmax(outputs, dim=1),
                    functional.softmax(sharp, dim=1),
                    reduction="batchmean",
                )
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            total += value.item() * len(batch) / len(x)
        loss.append(total)
    return flat_of(model, module), np.array(loss)


ALONE = [*itertools.product(("logits", "probabilities", "labels"), ("linear", "mlp", "convnet", "residual"))]


@pytest.mark.parametrize(("says", "name"), slow_but(ALONE, *ALONE[::5], *ALONE[2::5]))
def test_surrogates_are_those_that_train_alone(cast, banks_of_modules, name, says):
    task, model = (cast if name in cast else banks_of_modules)[name]
    start = real_models(model, 1, seed=1)[0]
    said = trainers.answers_of(model, real_models(model, 3), task.x_train, says=says, **CPU)
    setting = {"epochs": 3, "batch_size": 10, "learning_rate": 1e-3, "seed": 4}
    found = distillation.distilled(model, said, task.x_train, says=says, start=start, **setting, **CPU)
    own = [alone(model, start, one, task.x_train, says, **setting) for one in said]
    moved = np.abs(found.weights - start).max(axis=1)
    assert (moved > 5e-3).all()  # nine steps of about 1e-3
    np.testing.assert_allclose(found.weights, [weights for weights, _ in own], atol=1e-5)
    np.testing.assert_allclose(found.loss, np.mean([loss for _, loss in own], axis=0), rtol=1e-4)


def test_without_a_start_surrogates_begin_at_starts_of_their_own(cast):
    task, model = cast["mlp"]
    said = trainers.answers_of(model, real_models(model, 3), task.x_train, says="logits", **CPU)
    setting = {"epochs": 2, "batch_size": 512, "learning_rate": 1e-3, "seed": 4}
    found = distillation.distilled(model, said, task.x_train, **setting, **CPU)
    generator = torch.Generator().manual_seed(torch_seed(4, "distillation"))
    for own, start, target in zip(found.weights, model.initial_parameters(3, generator), said, strict=True):
        expected, _ = alone(model, start, target, task.x_train, "logits", **setting)
        np.testing.assert_allclose(own, expected, atol=1e-5)
    again = distillation.distilled(model, said, task.x_train, **setting, **CPU)
    np.testing.assert_array_equal(found.weights, again.weights)
    np.testing.assert_array_equal(found.loss, again.loss)
    other = distillation.distilled(model, said, task.x_train, **setting | {"seed": 5}, **CPU)
    assert not np.isclose(found.weights, other.weights).all(axis=1).any()


def test_a_surrogate_learns_its_teachers_answers():
    task = data.digits(n_train=60)
    model = models.mlp(task, (16,))
    start, teachers = real_models(model, 1, seed=1)[0], real_models(model, 4)
    said = trainers.answers_of(model, teachers, task.x_train, says="logits", **CPU)
    found = distillation.distilled(
        model, said, task.x_train, seed=0, epochs=600, batch_size=20, learning_rate=5e-3, start=start, **CPU
    )
    assert found.loss[0] > 0.5
    assert found.loss[-1] < 1e-3
    before, after, sought = (
        trainers.answers_of(model, weights, task.x_train, says="probabilities", **CPU)
        for weights in (start[None], found.weights, teachers)
    )
    assert np.abs(before - sought).mean() > 0.05
    assert np.abs(after - sought).mean() < 0.005


def test_a_surrogate_at_its_teacher_stays_there(cast):
    task, model = cast["mlp"]
    teacher = real_models(model, 1)
    said = trainers.answers_of(model, teacher, task.x_train, says="logits", **CPU)
    found = distillation.distilled(model, said, task.x_train, seed=0, epochs=1, start=teacher[0], **CPU)
    assert abs(found.loss[0]) < 1e-6


def test_a_surrogate_of_labels_agrees_with_them(cast):
    task, model = cast["linear"]
    said = trainers.answers_of(model, real_models(model, 3), task.x_train, says="labels", **CPU)
    found = distillation.distilled(
        model, said, task.x_train, seed=0, says="labels", epochs=200, learning_rate=0.05, **CPU
    )
    np.testing.assert_array_equal(trainers.answers_of(model, found.weights, task.x_train, says="labels", **CPU), said)


def test_zero_probabilities_can_be_learnt(cast):
    task, model = cast["linear"]
    sure = np.eye(10, dtype=np.float32)[np.arange(24) % 10][None]
    found = distillation.distilled(model, sure, task.x_train, seed=0, says="probabilities", epochs=3, **CPU)
    labels = distillation.distilled(model, sure.argmax(axis=2), task.x_train, seed=0, says="labels", epochs=3, **CPU)
    np.testing.assert_allclose(found.weights, labels.weights, atol=1e-6)
    np.testing.assert_allclose(found.loss, labels.loss, rtol=1e-6)


@pytest.mark.parametrize("name", ["linear", "mlp", "convnet", "residual"])
def test_parts_do_not_change_surrogates(cast, banks_of_modules, monkeypatch, name):
    task, model = (cast if name in cast else banks_of_modules)[name]
    said = trainers.answers_of(model, real_models(model, 5), task.x_train, says="logits", **CPU)
    setting = {"seed": 0, "epochs": 2, "batch_size": 20, "learning_rate": 1e-3} | CPU
    whole = distillation.distilled(model, said, task.x_train, **setting)
    inputs = model.inputs(torch.tensor(task.x_train))
    recipe = distillation.Recipe("logits", 2, 20, 1e-3, 0)
    assert distillation._at_once(model, torch.device("cpu"), inputs, recipe, 5) == (5, 20)
    of_a_record = distillation._kept(model, inputs[:5], recipe) - distillation._kept(model, inputs[:4], recipe)
    for models_at_once, records_at_once in ((2, 20), (1, 7)):
        kept = int(models_at_once * records_at_once * of_a_record * 1.02)
        monkeypatch.setitem(distillation.KEPT, "cpu", kept)
        assert distillation._at_once(model, torch.device("cpu"), inputs, recipe, 5) == (models_at_once, records_at_once)
        parts = distillation.distilled(model, said, task.x_train, **setting)
        np.testing.assert_allclose(parts.weights, whole.weights, atol=1e-5)
        np.testing.assert_allclose(parts.loss, whole.loss, rtol=1e-5)


def test_threads_do_not_change_surrogates(cast, monkeypatch):
    task, model = cast["mlp"]
    said = trainers.answers_of(model, real_models(model, 5), task.x_train, says="logits", **CPU)
    monkeypatch.setitem(distillation.KEPT, "cpu", 1)  # each model by itself
    found = []
    for threads in (1, 3):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)
        found.append(distillation.distilled(model, said, task.x_train, seed=0, epochs=3, **CPU))
    np.testing.assert_array_equal(found[0].weights, found[1].weights)
    np.testing.assert_array_equal(found[0].loss, found[1].loss)
