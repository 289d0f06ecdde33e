from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import cosine_similarity, cross_entropy

from dpsub import crafters
from dpsub.crafters.reference_model import gradient_of
from dpsub.crafters.step_records import Turning, mean_gradient

NAMES = ["linear", "mlp", "convnet", "module"]


def modules(bank):
    return [bank.model.module(parameters) for parameters in bank.model.flat(bank.theta)]


def cross_entropy_of_each(outputs, labels):
    return cross_entropy(outputs, labels, reduction="none")


@pytest.mark.parametrize("name", NAMES)
def test_crafted_gradients_are_more_orthogonal_to_those_of_others(targets, bank_of, spec, name):
    task, model = targets[name]
    bank = bank_of(name)
    [module] = modules(bank)
    canary = crafters.record_each_step(task, model, spec(), kind="crafted", seed=0)
    others = mean_gradient(module, cross_entropy_of_each, torch.tensor(task.x_aux), torch.tensor(task.y_aux))

    def cosine(x, y):
        parts = torch.autograd.grad(cross_entropy(module(x[None]), torch.tensor([y])), list(module.parameters()))
        return abs(float(cosine_similarity(torch.cat([part.flatten() for part in parts]), others, dim=0)))

    before, after = [], []
    for step in range(1, 6):
        x, y = canary.record(bank, step)
        start = replace(canary, change=None).record(bank, step)
        assert start[1] == y
        before.append(cosine(start[0][0], y))
        after.append(cosine(x[0], y))
    assert (np.array(after) <= np.array(before) + 1e-6).all()
    assert np.mean(after) < 0.5 * np.mean(before)


def test_mean_gradient_is_that_of_all_records_together(targets, bank_of, monkeypatch):
    task, _ = targets["mlp"]
    [module] = modules(bank_of("mlp"))
    x, y = torch.tensor(task.x_aux), torch.tensor(task.y_aux)
    monkeypatch.setattr("dpsub.crafters.step_records.AT_ONCE", 7)
    in_parts = mean_gradient(module, cross_entropy_of_each, x, y)
    cross_entropy(module(x), y).backward()
    torch.testing.assert_close(in_parts, torch.cat([one.grad.flatten() for one in module.parameters()]))


def test_descent_is_algorithm_3_as_long_as_it_falls(targets, bank_of, spec):
    task, model = targets["mlp"]
    bank = bank_of("mlp")
    [module] = modules(bank)
    canary = crafters.record_each_step(
        task, model, spec(), kind="crafted", seed=0, steps=2, learning_rate=0.5, target=3
    )
    others = mean_gradient(module, cross_entropy_of_each, torch.tensor(task.x_aux), torch.tensor(task.y_aux)).double()
    module, y = module.double(), int(task.y_aux[3])

    def cosine(x):
        loss = cross_entropy(module(torch.tensor(x)[None]), torch.tensor([y]))
        parts = torch.autograd.grad(loss, list(module.parameters()))
        return abs(float(cosine_similarity(torch.cat([part.flatten() for part in parts]), others, dim=0)))

    x, h, path = task.x_aux[3].astype(np.float64), 1e-5, []
    for _ in range(2):
        path.append(cosine(x))
        x = x - 0.5 * np.array([(cosine(x + h * e) - cosine(x - h * e)) / (2 * h) for e in np.eye(len(x))])
    assert path[0] > path[1] > cosine(x)
    found, label = canary.record(bank, 1)
    assert label == y
    np.testing.assert_allclose(found[0].numpy(), x, atol=1e-4)


@pytest.mark.parametrize("ball", ["linf", "l2"])
@pytest.mark.parametrize("name", NAMES)
def test_adversarial_records_raise_the_loss_within_their_ball(targets, bank_of, spec, name, ball):
    task, model = targets[name]
    bank = bank_of(name, runs=2)
    canary = crafters.record_each_step(task, model, spec(), kind="adversarial", seed=0, ball=ball)
    radius = canary.details["radius"]
    assert radius == pytest.approx(float(np.ptp(task.x_aux)) * {"linf": 8, "l2": 128}[ball] / 255)
    for step in (1, 2, 3):
        x, y = canary.record(bank, step)
        start = replace(canary, change=None).record(bank, step)[0][0]
        away = (x - start).flatten(1)
        length = away.abs().amax(dim=1) if ball == "linf" else away.norm(dim=1)
        assert (length <= radius * (1 + 1e-4)).all()
        assert (length > 0.5 * radius).all()
        for own, module in zip(x, modules(bank), strict=True):
            losses = cross_entropy_of_each(module(torch.stack([start, own])), torch.tensor([y, y]))
            assert losses[1] > losses[0]


def test_a_record_without_a_gradient_is_not_taken():
    """So far out a head is sure of the label, and the gradient is 0, which is orthogonal to everything."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = torch.nn.Linear(4, 3)
        for _ in range(5):
            x, others = torch.randn(4), torch.randn(15)
            found = Turning(20, 1e5)(module, cross_entropy_of_each, x, 1, others)
            assert gradient_of(module, found, 1, cross_entropy_of_each).norm() > 0.1
