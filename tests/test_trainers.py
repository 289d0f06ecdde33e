import numpy as np
import opacus.optimizers.optimizer as opacus_optimizer
import pytest
import torch
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from torch import nn

from dpsub import DPSGD, CanaryPair, data, models
from dpsub.trainers import Bank

CPU = torch.device("cpu")
STEPS = 12


@pytest.fixture(scope="module")
def task():
    return data.digits(n_train=60)


@pytest.fixture(scope="module")
def model(task):
    return models.linear(task)


def spec(**changes):
    return DPSGD(
        **{"noise_multiplier": 1.5, "max_grad_norm": 1.0, "sample_rate": 0.3, "steps": STEPS, "learning_rate": 0.1}
        | changes
    )


def opposite_gradients(model, spec, slot=7, parameter=100):
    z = np.zeros(model.parameters, dtype=np.float32)
    z[parameter] = spec.max_grad_norm
    return CanaryPair(z=z, z_prime=-z, slot=slot, scenario="S2")


def per_record_gradients(model, theta, task, records):
    """(records, features + 1, classes), by autograd, one record at a time."""
    gradients = []
    for i in records:
        weights = theta.clone().requires_grad_()
        x = torch.cat([torch.as_tensor(task.x_train[i]), torch.ones(1)])
        loss = nn.functional.cross_entropy((x @ weights)[None], torch.as_tensor(task.y_train[i : i + 1]))
        gradients.append(torch.autograd.grad(loss, weights)[0])
    return torch.stack(gradients)


@pytest.mark.parametrize("max_grad_norm", [0.05, 1.0, 100.0])
def test_clipped_sum_is_the_sum_of_clipped_per_record_gradients(task, model, max_grad_norm):
    torch.manual_seed(0)
    theta = 0.3 * torch.randn(*model.shape, 3)
    sampled = torch.rand(60, 3) < 0.5
    inputs = model.inputs(torch.as_tensor(task.x_train))
    total = model.clipped_sum(theta, inputs, torch.as_tensor(task.y_train), sampled, max_grad_norm)
    for run in range(3):
        gradients = per_record_gradients(model, theta[..., run], task, torch.where(sampled[:, run])[0])
        norms = gradients.flatten(1).norm(dim=1)
        clipped = gradients * (max_grad_norm / (norms + 1e-6)).clamp(max=1)[:, None, None]
        torch.testing.assert_close(total[..., run], clipped.sum(0), atol=1e-5, rtol=1e-5)


def train_with_opacus(model, task, spec, canary, bit, sampled, slot_sampled, noise, monkeypatch):
    """One model by Opacus's own optimizer: its clipping, noise scale, division and step; parameters after each step."""
    module = nn.Linear(model.features, model.classes)
    nn.init.zeros_(module.weight)
    nn.init.zeros_(module.bias)
    module = GradSampleModule(module)
    base = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[spec.optimizer]
    optimizer = DPOptimizer(
        base(module.parameters(), lr=spec.learning_rate),
        noise_multiplier=spec.noise_multiplier,
        max_grad_norm=spec.max_grad_norm,
        expected_batch_size=spec.sample_rate * len(task.y_train),
    )
    others = np.delete(np.arange(len(task.y_train)), canary.slot)
    canary_gradient = torch.as_tensor(canary.z if bit == 0 else canary.z_prime).view(model.shape)
    path = []
    for step in range(spec.steps):
        draws = iter([noise[step][:-1].T, noise[step][-1]])
        monkeypatch.setattr(opacus_optimizer, "_generate_noise", lambda std, **_: std * next(draws))
        optimizer.zero_grad(set_to_none=True)
        batch = others[sampled[step].numpy()]
        loss = nn.functional.cross_entropy(
            module(torch.as_tensor(task.x_train[batch])), torch.as_tensor(task.y_train[batch])
        )
        loss.backward()
        if slot_sampled[step]:
            weight, bias = module._module.weight, module._module.bias
            weight.grad_sample = torch.cat([weight.grad_sample, canary_gradient[:-1].T[None]])
            bias.grad_sample = torch.cat([bias.grad_sample, canary_gradient[-1][None]])
        optimizer.step()
        path.append(torch.cat([module._module.weight.T, module._module.bias[None]]).detach().clone())
    return path


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_every_step_is_the_step_that_opacus_takes(task, model, optimizer, monkeypatch):
    setting = spec(optimizer=optimizer, learning_rate=0.1 if optimizer == "sgd" else 0.01)
    canary = opposite_gradients(model, setting)
    bits = np.array([0, 1, 0], dtype=np.int8)
    generator = torch.Generator().manual_seed(1)
    sampled = torch.rand(STEPS, 59, 3, generator=generator) < setting.sample_rate
    slot_sampled = torch.rand(STEPS, 3, generator=generator) < setting.sample_rate
    noise = torch.randn(STEPS, *model.shape, 3, generator=generator)

    bank = Bank(model, task, setting, bits=bits, canary=canary, device=CPU)
    path = []
    for step in range(STEPS):
        bank.step(sampled=sampled[step], slot_sampled=slot_sampled[step], noise=noise[step])
        path.append(bank.theta.clone())
    for run, bit in enumerate(bits):
        theirs = train_with_opacus(
            model, task, setting, canary, bit, sampled[..., run], slot_sampled[:, run], noise[..., run], monkeypatch
        )
        for ours, other in zip(path, theirs, strict=True):
            torch.testing.assert_close(ours[..., run], other, atol=2e-5, rtol=1e-4)


def test_without_noise_and_canary_training_is_clipped_gradient_descent(task, model):
    setting = spec(sample_rate=1.0)
    bank = Bank(model, task, setting, bits=np.zeros(1, dtype=np.int8), device=CPU)
    for _ in bank.train(torch.Generator(), private=False):
        pass
    theta = torch.zeros(model.shape)
    for _ in range(STEPS):
        gradients = per_record_gradients(model, theta, task, range(60))
        norms = gradients.flatten(1).norm(dim=1)
        theta = theta - 0.1 * (gradients * (1 / (norms + 1e-6)).clamp(max=1)[:, None, None]).sum(0) / 60
    torch.testing.assert_close(bank.theta[..., 0], theta, atol=1e-5, rtol=1e-4)


def test_the_record_in_the_slot_never_contributes(task, model):
    setting = spec()
    canary = opposite_gradients(model, setting, slot=7)
    changed = data.from_arrays(task.x_train.copy(), task.y_train.copy(), num_classes=10)
    changed.x_train[7] = 100.0
    banks = [
        Bank(model, t, setting, bits=np.array([0, 1], np.int8), canary=canary, device=CPU) for t in (task, changed)
    ]
    for bank in banks:
        for _ in bank.train(torch.Generator().manual_seed(2)):
            pass
    torch.testing.assert_close(banks[0].theta, banks[1].theta, atol=0, rtol=0)


@pytest.mark.parametrize("q", [1.0, 0.3])
def test_the_two_worlds_differ_in_the_canary_alone(task, model, q):
    setting = spec(sample_rate=q, steps=1, learning_rate=1.0)
    canary = opposite_gradients(model, setting)
    thetas = []
    for bit in (0, 1):
        bank = Bank(model, task, setting, bits=np.full(400, bit, np.int8), canary=canary, device=CPU)
        list(bank.train(torch.Generator().manual_seed(3)))
        thetas.append(bank.theta.flatten(0, 1))
    difference = thetas[1] - thetas[0]
    touched = difference.abs() > 1e-6
    assert not np.delete(touched.numpy(), 100, axis=0).any()
    # Two clipping bounds apart, divided by q·n, and only where the slot was sampled.
    size = torch.tensor(2 * setting.max_grad_norm / (q * 60))
    torch.testing.assert_close(difference[100][touched[100]], size.expand(int(touched[100].sum())), atol=1e-5, rtol=0)
    assert abs(float(touched[100].float().mean()) - q) < 4 * np.sqrt(q * (1 - q) / 400) + 1e-9


def test_against_nothing_the_denominator_still_counts_the_slot(task, model):
    setting = spec(sample_rate=1.0, steps=1, learning_rate=1.0)
    alone = opposite_gradients(model, setting).against_nothing(adjacency="add_remove")
    bank = Bank(model, task, setting, bits=np.array([0, 1], np.int8), canary=alone, device=CPU)
    assert bank.expected_batch_size == 60
    bank.step(sampled=None, slot_sampled=None, noise=None)
    with_z, without = bank.theta.flatten(0, 1)[100]
    assert float(without - with_z) == pytest.approx(1 / 60, rel=1e-4)


def test_an_empty_batch_still_adds_noise(task, model):
    setting = spec(sample_rate=0.3)
    bank = Bank(model, task, setting, bits=np.zeros(1, np.int8), canary=opposite_gradients(model, setting), device=CPU)
    nobody = torch.zeros(59, 1, dtype=torch.bool)
    noise = torch.ones_like(bank.theta)
    bank.step(sampled=nobody, slot_sampled=torch.zeros(1, dtype=torch.bool), noise=noise)
    torch.testing.assert_close(bank.theta, -0.1 * 1.5 * noise / (0.3 * 60))


def test_scores_speak_for_z(task, model):
    setting = spec(noise_multiplier=1e-3, sample_rate=1.0)
    canary = opposite_gradients(model, setting)
    bank = Bank(model, task, setting, bits=np.array([0, 1], np.int8), canary=canary, device=CPU)
    list(bank.train(torch.Generator().manual_seed(4)))
    with_z, with_z_prime = bank.scores()
    assert with_z > with_z_prime
