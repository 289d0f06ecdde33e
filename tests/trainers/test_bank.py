import numpy as np
import pytest
import torch
from scipy.stats import kstest
from torch import nn

from dpsub import accounting, data, models
from dpsub.trainers import assemble
from dpsub.trainers.devices import matmul_precision

CANARIES = ("gradient", "record")
every_model = pytest.mark.parametrize("name", ["linear", "mlp", "convnet", "large convnet"])


def recorded(bank, *, stepping=True):
    """What each step is given, as the bank advances; with `stepping=False` the step itself is not taken."""
    seen, step = [], bank.step

    def call(**given):
        seen.append({name: value.clone() for name, value in given.items() if isinstance(value, torch.Tensor)})
        if stepping:
            step(**given)

    bank.step = call
    return seen


@every_model
def test_without_noise_and_canary_training_is_clipped_gradient_descent(cast, bank_of, spec, name):
    task, model = cast[name]
    setting = spec(sample_rate=1.0, steps=4)
    bank = bank_of(name, setting, [0])
    list(bank.train(noise=False))
    module = model.module(model.flat(bank.theta_0)[0])
    for _ in range(setting.steps):
        totals = [torch.zeros_like(parameter) for parameter in module.parameters()]
        for x, y in zip(torch.tensor(task.x_train), torch.tensor(task.y_train), strict=True):
            loss = nn.functional.cross_entropy(module(x[None]), y[None])
            gradients = torch.autograd.grad(loss, list(module.parameters()))
            norm = torch.cat([gradient.flatten() for gradient in gradients]).norm()
            for total, gradient in zip(totals, gradients, strict=True):
                total += gradient * (1 / (norm + 1e-6)).clamp(max=1)
        with torch.no_grad():
            for parameter, total in zip(module.parameters(), totals, strict=True):
                parameter -= 0.1 * total / 24
    ours = model.module(model.flat(bank.theta)[0])
    start = model.module(model.flat(bank.theta_0)[0])
    for one, other, before in zip(ours.parameters(), module.parameters(), start.parameters(), strict=True):
        torch.testing.assert_close(one - before, other - before, atol=1e-6, rtol=1e-3)


@pytest.mark.parametrize("name", ["linear", "mlp"])
def test_rounding_hides_the_least_noise_multiplier_and_the_accountant_refuses_it(bank_of, canary_of, spec, name):
    setting = spec(noise_multiplier=1e-30)
    pair = canary_of(name, "record")
    noisy, clean = (bank_of(name, setting, [0, 1, 0], pair) for _ in range(2))
    generator = torch.Generator().manual_seed(1)
    for _ in range(setting.steps):
        sampled = torch.rand(noisy.shared, 3, generator=generator) < 0.5
        noisy.step(sampled=sampled, noise=torch.randn(noisy.theta.shape, generator=generator))
        clean.step(sampled=sampled)
    assert torch.equal(noisy.scores(), clean.scores())
    with pytest.raises(ValueError, match="noise_multiplier must be >= 0.0001"):
        accounting.epsilon(**setting.mechanism, delta=1e-5, adjacency="add_remove")


def largest_correlation(rows):
    """Over all pairs of rows, in standard deviations of an independent pair's."""
    correlations = np.corrcoef(rows)
    return np.abs(correlations[np.triu_indices(len(rows), 1)]).max() * np.sqrt(rows.shape[1])


@pytest.mark.parametrize("q", [0.5, 0.0625])
def test_masks_and_noise_are_independent_across_models_and_steps(canary_of, spec, q):
    task = data.digits(n_train=40)
    model = models.linear(task)
    runs, setting = 48, spec(sample_rate=q, steps=40)
    generator, pair = torch.Generator().manual_seed(11), canary_of((task, model), "gradient")
    bank = assemble(model, task, setting, bits=np.zeros(runs, np.int8), generator=generator, canary=pair)
    seen = recorded(bank, stepping=False)
    list(bank.train())
    # (steps, records and slot, runs) and (steps, runs, parameters)
    coins = torch.stack([torch.cat([step["sampled"], step["slot_sampled"][None]]) for step in seen]).double().numpy()
    noise = torch.stack([model.flat(step["noise"]) for step in seen]).double().numpy()
    # The largest of 1,128 absolute standard normals exceeds 5 once in 1,500 times.
    by_model = np.moveaxis(coins, 2, 0).reshape(runs, -1)
    assert largest_correlation(by_model) < 5
    assert largest_correlation(coins.reshape(40, -1)) < 5
    assert largest_correlation(np.moveaxis(coins, 1, 0).reshape(40, -1)) < 5
    assert np.abs((by_model.mean(axis=1) - q) / np.sqrt(q * (1 - q) / by_model.shape[1])).max() < 4.5
    slot = coins[:, -1]
    assert abs(slot.mean() - q) < 4.5 * np.sqrt(q * (1 - q) / slot.size)

    for rows in (np.moveaxis(noise, 1, 0).reshape(runs, -1), noise.reshape(40, -1)):
        assert largest_correlation(rows) < 5
        for row in rows:
            assert kstest(row, "norm").pvalue > 1e-5
    sizes, firsts = coins.sum(axis=1).ravel(), noise[:, :, 0].ravel()
    assert abs(np.corrcoef(sizes, firsts)[0, 1]) * np.sqrt(sizes.size) < 4.5


@pytest.mark.parametrize("kind", CANARIES)
@every_model
def test_the_record_in_the_slot_never_contributes(cast, canary_of, spec, name, kind):
    task, model = cast[name]
    x = task.x_train.copy()
    x[7] = 100.0
    changed = data.from_arrays(x, task.y_train, num_classes=10)
    pair, setting, thetas = canary_of(name, kind), spec(steps=4), []
    for of in (task, changed):
        generator = torch.Generator().manual_seed(0)
        bank = assemble(model, of, setting, bits=np.array([0, 1], np.int8), generator=generator, canary=pair)
        list(bank.train())
        thetas.append(bank.theta)
    torch.testing.assert_close(thetas[0], thetas[1], atol=0, rtol=0)


@pytest.mark.parametrize("q", [1.0, 0.3])
@every_model
def test_the_two_worlds_of_a_gradient_differ_in_it_alone(cast, bank_of, canary_of, spec, name, q):
    _, model = cast[name]
    setting, runs = spec(sample_rate=q, steps=1, learning_rate=1.0), 12 if q < 1 else 2
    thetas = []
    for bit in (0, 1):
        bank = bank_of(name, setting, [bit] * runs, canary_of(name, "gradient"))
        seen = recorded(bank)
        list(bank.train())
        thetas.append(model.flat(bank.theta))
    in_batch = seen[0]["slot_sampled"] if q < 1 else torch.ones(runs, dtype=torch.bool)
    assert in_batch.any()
    assert in_batch.all() == (q == 1)
    # Two clipping bounds apart, divided by q·n, and only where the slot was sampled; z moves its model down.
    expected = torch.zeros(runs, model.parameters)
    expected[in_batch, 3] = 2 * setting.max_grad_norm / (q * 24)
    torch.testing.assert_close(thetas[1] - thetas[0], expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("adjacency", ["add_remove", "zero_out"])
@pytest.mark.parametrize("kind", CANARIES)
@every_model
def test_against_nothing_the_slot_is_empty_and_still_counts(cast, bank_of, canary_of, spec, name, kind, adjacency):
    task, model = cast[name]
    setting = spec(sample_rate=1.0, steps=1, learning_rate=1.0)
    alone = canary_of(name, kind).against_nothing(adjacency=adjacency)
    bank = bank_of(name, setting, [0, 1], alone)
    assert bank.expected_batch_size == 24
    start = model.flat(bank.theta_0).clone()
    bank.step()
    with_z, without = start - model.flat(bank.theta)

    x, y = model.inputs(torch.tensor(task.x_train)), torch.tensor(task.y_train)
    others = torch.arange(24) != 7
    expected = model.flat(model.clipped_sum(bank.theta_0, x[others], y[others], None, 1.0))
    torch.testing.assert_close(without, expected[1] / 24, atol=1e-6, rtol=1e-4)
    # z adds its gradient, a record's clipped, divided by n: not by n − 1.
    if kind == "record":
        added = model.flat(model.clipped_sum(bank.theta_0, x[~others], y[~others], None, 1.0))[0]
    else:
        added = torch.tensor(alone.z)
    torch.testing.assert_close(with_z, (expected[0] + added) / 24, atol=1e-6, rtol=1e-4)


@every_model
def test_an_empty_batch_still_adds_noise(bank_of, canary_of, spec, name):
    bank = bank_of(name, spec(), [0], canary_of(name, "gradient"))
    start, nobody = bank.theta.clone(), torch.zeros(23, 1, dtype=torch.bool)
    bank.step(sampled=nobody, slot_sampled=nobody[0], noise=torch.ones_like(bank.theta))
    torch.testing.assert_close(start - bank.theta, torch.full_like(start, 0.1 * 0.7 / (0.3 * 24)), atol=1e-7, rtol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", CANARIES)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@every_model
def test_a_gpu_takes_the_same_steps(cast, canary_of, spec, name, optimizer, kind):
    task, model = cast[name]
    setting = spec(optimizer=optimizer, learning_rate=0.1 if optimizer == "sgd" else 0.01)
    bits, pair = np.array([0, 1, 1], np.int8), canary_of(name, kind)
    here, there = (
        assemble(model, task, setting, bits=bits, generator=torch.Generator(device), canary=pair)
        for device in ("cpu", "cuda")
    )
    start = here.theta.clone()
    there.theta.copy_(start)
    there.theta_0.copy_(start)
    generator = torch.Generator().manual_seed(2)
    with matmul_precision("highest"):
        for _ in range(setting.steps):
            sampled = torch.rand(24, 3, generator=generator) < 0.3
            noise = torch.empty_like(start).normal_(generator=generator)
            for bank in (here, there):
                drawn = sampled.to(bank.device)
                bank.step(sampled=drawn[:-1], slot_sampled=drawn[-1], noise=noise.to(bank.device))
            moved = (here.theta - start).norm()
            assert float((there.theta.cpu() - here.theta).norm() / moved) < 1e-5
    torch.testing.assert_close(there.scores().cpu(), here.scores(), atol=1e-4, rtol=1e-4)
