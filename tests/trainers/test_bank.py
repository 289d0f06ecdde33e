import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from cases import slow_but
from naive_pairs import clipped
from scipy.stats import binom, chisquare, kstest

from dpsub import CanaryPair, data, models
from dpsub.accounting import TruncatedPoisson
from dpsub.trainers import assemble, block_size
from dpsub.trainers.bank import blocks_together
from dpsub.trainers.batches import poisson_coins, threshold
from dpsub.trainers.devices import matmul_precision

CANARIES = ("gradient", "record")
NAMES = ["linear", "linear, two classes", "mlp", "convnet", "large convnet"]
every_model = pytest.mark.parametrize("name", NAMES)


def recorded(bank, *, stepping=True):
    """What each step is given, as the bank advances; with `stepping=False` the step itself is not taken."""
    seen, step = [], bank.step

    def call(**given):
        seen.append({name: value.clone() for name, value in given.items() if isinstance(value, torch.Tensor)})
        if stepping:
            step(**given)

    bank.step = call
    return seen


@pytest.mark.parametrize("name", slow_but(NAMES, *NAMES[:-1]))
def test_without_noise_and_canary_training_is_clipped_gradient_descent(cast, bank_of, spec, name):
    task, model = cast[name]
    setting = spec(sample_rate=1.0, steps=4)
    bank = bank_of(name, setting, [0])
    list(bank.train(noise=False))
    start, ours = (model.flat(theta)[0].double() for theta in (bank.theta_0, bank.theta))
    theta = start
    for _ in range(setting.steps):
        records = zip(task.x_train, task.y_train, strict=True)
        theta = theta - 0.1 * sum(clipped(model, theta, x, y, 1.0) for x, y in records) / 24
    torch.testing.assert_close(ours - start, theta - start, atol=1e-6, rtol=1e-3)


def drawn(canary_of, setting, runs, n_train=40, seed=12):
    """Who is in each batch, (steps, records and then the slot, runs), and the noise, (steps, runs, parameters)."""
    task = data.digits(n_train=n_train)
    model = models.linear(task)
    generator, pair = torch.Generator().manual_seed(seed), canary_of((task, model), "gradient")
    bank = assemble(model, task, setting, bits=np.zeros(runs, np.int8), generator=generator, canary=pair)
    seen = recorded(bank, stepping=False)
    list(bank.train())
    batches = torch.stack([torch.cat([step["sampled"], step["slot_sampled"]]) for step in seen])
    return batches.numpy(), torch.stack([model.flat(step["noise"]) for step in seen]).double().numpy()


def test_batches_of_fixed_size_are_drawn_evenly_and_anew(canary_of, spec):
    chosen, _ = drawn(canary_of, spec(sample_rate=0.25, sampling="without_replacement", steps=60), runs=64)
    assert (chosen.sum(axis=1) == 10).all()
    tolerance = 4.5 * np.sqrt(0.25 * 0.75 / (60 * 64))
    assert np.abs(chosen.mean(axis=(0, 2)) - 0.25).max() < tolerance, "each record, the slot among them, is as likely"
    together = (chosen[:, 0] & chosen[:, -1]).mean()
    assert together == pytest.approx(0.25 * 9 / 39, abs=4.5 * np.sqrt(0.06 * 0.94 / (60 * 64)))
    again = (chosen[1:, -1] & chosen[:-1, -1]).mean()
    assert again == pytest.approx(1 / 16, abs=4.5 * np.sqrt(0.06 * 0.94 / (59 * 64)))
    assert largest_correlation(np.moveaxis(chosen, 2, 0).reshape(64, -1).astype(float)) < 5


def test_poisson_batches_are_cut_evenly_to_their_largest_size(canary_of, spec):
    sampling = TruncatedPoisson(10, 40)
    chosen, _ = drawn(canary_of, spec(sample_rate=0.25, sampling=sampling, steps=60), runs=64)
    sizes = chosen.sum(axis=1)
    law = np.append(binom.pmf(np.arange(5, 10), 40, 0.25), binom.sf(9, 40, 0.25))
    assert chisquare(np.bincount(sizes[sizes > 4] - 5), law / law.sum() * (sizes > 4).sum()).pvalue > 1e-3
    _, _, rate = sampling.attained("substitute", 1.0, 0.25)
    tolerance = 4.5 * np.sqrt(rate * (1 - rate) / (60 * 64))
    assert np.abs(chosen.mean(axis=(0, 2)) - rate).max() < tolerance, "each record, the slot among them, is as likely"
    assert largest_correlation(np.moveaxis(chosen, 2, 0).reshape(64, -1).astype(float)) < 5


def test_each_record_is_in_one_batch_of_each_epoch(canary_of, spec):
    chosen, _ = drawn(canary_of, spec(sample_rate=0.125, sampling="epochs", steps=48), runs=64, n_train=42)
    epochs = chosen.reshape(6, 8, 42, 64)
    assert (epochs.sum(axis=1) == 1).all()
    assert set(epochs.sum(axis=2).ravel().tolist()) == {5, 6}, "42 records in 8 batches"
    places = epochs.argmax(axis=1)
    assert np.abs((places[:, -1] == 0).mean() - 1 / 8) < 4.5 * np.sqrt(7 / 64 / (6 * 64))
    assert (places[0] != places[1]).mean() > 0.8, "shuffled anew"
    assert largest_correlation(np.moveaxis(chosen, 2, 0).reshape(64, -1).astype(float)) < 5


def test_reference_models_without_a_slot_draw_whole_batches(spec):
    task = data.digits(n_train=40)
    setting = spec(sample_rate=0.25, sampling="without_replacement", steps=3)
    generator = torch.Generator().manual_seed(1)
    bank = assemble(models.linear(task), task, setting, bits=np.zeros(2, np.int8), generator=generator)
    seen = recorded(bank)
    list(bank.train())
    assert all((step["sampled"].sum(dim=0) == 10).all() for step in seen)
    assert not any(len(step["slot_sampled"]) for step in seen)


def test_batches_that_are_no_whole_number_of_records_are_refused(spec):
    task = data.digits(n_train=41)
    setting = spec(sample_rate=0.25, sampling="without_replacement")
    with pytest.raises(ValueError, match=r"spec.sample_rate must be a whole number of the 41 .*: give 11 / 41"):
        assemble(models.linear(task), task, setting, bits=np.zeros(2, np.int8), generator=torch.Generator())


def largest_correlation(rows):
    """Over all pairs of rows, in standard deviations of an independent pair's."""
    correlations = np.corrcoef(rows)
    return np.abs(correlations[np.triu_indices(len(rows), 1)]).max() * np.sqrt(rows.shape[1])


@pytest.mark.parametrize("q", [0.5, 0.0625])
def test_masks_and_noise_are_independent_across_models_and_steps(canary_of, spec, q):
    runs = 48
    coins, noise = drawn(canary_of, spec(sample_rate=q, steps=40), runs, seed=11)
    coins = coins.astype(float)
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
    in_batch = seen[0]["slot_sampled"][0] if q < 1 else torch.ones(runs, dtype=torch.bool)
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
    more_than_rounding = torch.ones_like(start, dtype=torch.bool)
    with matmul_precision("highest"):
        for _ in range(setting.steps):
            sampled = torch.rand(24, 3, generator=generator) < 0.3
            noise = torch.empty_like(start).normal_(generator=generator)
            for bank in (here, there):
                drawn = sampled.to(bank.device)
                bank.step(sampled=drawn[:-1], slot_sampled=drawn[-1], noise=noise.to(bank.device))
            sums = here.last_sum, there.last_sum.cpu()
            assert float((sums[1] - sums[0]).norm() / sums[0].norm()) < 1e-5
            if optimizer == "adam":  # which scales a gradient to the step's size, even one that is all rounding
                more_than_rounding &= sums[0].abs() > 1e-5
            moved, apart = here.theta - start, there.theta.cpu() - here.theta
            assert float(apart[more_than_rounding].norm() / moved.norm()) < 1e-5
    assert more_than_rounding.float().mean() > 0.999
    torch.testing.assert_close(there.scores().cpu(), here.scores(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("q", [1e-3, 0.0625, 0.3, 0.999])
def test_coins_fall_as_often_as_they_should(q):
    rows, runs = 2**12 + 1, 2**12 - 1  # an odd number of coins: half of the last word is not used
    heads = int(poisson_coins(q, rows, runs, torch.Generator().manual_seed(0)).sum())
    assert abs(heads - rows * runs * q) < 4.5 * np.sqrt(rows * runs * q * (1 - q))


def test_coins_know_their_probability_to_32_bits():
    for q in (1e-9, 2.5 * 2**-24, 0.1, 0.25, 1 - 1e-9):
        assert abs((threshold(q) + 2**31) / 2**32 - q) <= 2**-33 * (1 + 1e-9)
    generator = torch.Generator().manual_seed(0)
    assert not poisson_coins(1e-12, 100, 100, generator).any()
    assert poisson_coins(1 - 1e-12, 100, 100, generator).all()
    assert poisson_coins(0.5, 3, 3, generator).shape == (3, 3)


@pytest.mark.parametrize("q", [1e-12, 1e-10, 1.2e-10, 1e-6])
def test_rare_coins_know_their_probability_to_64_bits(q):
    assert (threshold(q, bits=64) + 2**63) / 2**64 == pytest.approx(q, rel=1e-7)


@pytest.mark.parametrize("q", [0.999 * 2.0**-16, 1.001 * 2.0**-16])
def test_rare_coins_fall_as_often_as_they_should(q):
    tosses = 2**22
    fallen = int(poisson_coins(q, 2**15, 2**7, torch.Generator().manual_seed(0)).sum())
    assert abs(fallen - q * tosses) < 4.5 * np.sqrt(q * tosses)


def test_blocks_shrink_with_the_model_alone():
    class Sized:
        parameters = 0

    sizes = []
    for Sized.parameters in (1, 540, 89_828, 2**20, 2**20 + 1, 2**24, 2**40):
        sizes.append(block_size(Sized))
    assert sizes == [128, 128, 128, 128, 64, 8, 1]


MEMORY = """
import re, pathlib
import numpy as np, psutil, torch
from dpsub import DPSGD, CanaryPair, data, models
from dpsub.trainers import assemble
from dpsub.trainers.bank import block_bytes

torch.set_num_threads(1)
rng = np.random.default_rng(0)
task = data.from_arrays(rng.random({shape}), rng.integers(0, {classes}, {shape}[0]), num_classes={classes})
model, spec, device = models.{model}, DPSGD(1.0, 1.0, {q}, 1, 0.1, {optimizer!r}, {sampling!r}), torch.device("cpu")
before = psutil.Process().memory_info().rss
bits, generator = np.zeros({runs}, np.int8), torch.Generator()
pair = CanaryPair((task.x_train[0], 0), (task.x_train[0], 1), 0, "S4")
if {gradient}:
    z = np.eye(1, model.parameters, dtype=np.float32)[0]
    pair = CanaryPair(z, -z, 0, "S2")
bank = assemble(model, task, spec, bits=bits, generator=generator, canary=pair, coordinates="span")
bank.advance()
spare = 1
if {watched}:
    spare = 2
    bank.slot.distance(bank)
peak = re.search(r"VmHWM:\\s+(\\d+) kB", pathlib.Path("/proc/self/status").read_text())
used = 1024 * int(peak[1]) - before
print(used / block_bytes(model, task, spec, device, {runs}, spare=spare))
"""


CONVOLVED = (
    "torch.nn.Sequential(torch.nn.Unflatten(1, (1, 28, 28)), torch.nn.Conv2d(1, 8, 5), torch.nn.Tanh(), "
    "torch.nn.Flatten(), torch.nn.Linear(8 * 24 * 24, 100))"
)

MANY_RECORDS = {"model": "mlp(task, (4,))", "shape": (100_000, 2), "classes": 2, "runs": 64}
WIDE_MLP = {"model": "mlp(task, (2_000,))", "shape": (20, 600), "q": 1.0, "runs": 64}
MEMORY_CASES = {
    "coins": MANY_RECORDS | {"q": 0.45},
    "without_replacement": MANY_RECORDS | {"q": 0.45, "sampling": "without_replacement"},
    "epochs": MANY_RECORDS | {"q": 0.5, "sampling": "epochs"},
    "truncated_poisson": MANY_RECORDS | {"q": 0.45, "sampling": "truncated_poisson:45000:100000"},
    "mlp with adam": {"model": "mlp(task)", "shape": (2_000, 600), "q": 0.25, "optimizer": "adam", "runs": 128},
    "watched records": WIDE_MLP | {"gradient": False, "watched": True},
    "span": {"model": "linear(task)", "shape": (2_000, 8_000), "q": 1.0, "runs": 4},
    "convnet": {"model": "convnet(task)", "shape": (2_000, 1, 28, 28), "q": 0.02, "runs": 16},
    "module": {"model": f"from_module({CONVOLVED}, task)", "shape": (500, 784), "q": 1.0, "runs": 16},
}


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peaks are read where Linux keeps them")
@pytest.mark.parametrize("case", MEMORY_CASES)
def test_a_blocks_memory_is_not_underestimated(case):
    usual = {"classes": 100, "optimizer": "sgd", "sampling": "poisson", "gradient": True, "watched": False}
    code = MEMORY.format(**usual | MEMORY_CASES[case])
    share = float(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)
    assert 0.1 < share < 1


@pytest.mark.parametrize("name", ["linear", "linear, two classes", "mlp", "convnet"])
@pytest.mark.parametrize("changes", [{"optimizer": "adam"}, {"sampling": "epochs", "sample_rate": 0.25}])
def test_a_bank_of_several_generators_is_that_of_each_side_by_side(cast, spec, name, changes):
    (task, model), setting = cast[name], spec(**changes)
    bits = np.array([0, 1, 1, 1, 0, 1], np.int8)
    pair = CanaryPair((task.x_train[3], 0), (task.x_train[3], 1), 3, "S4")

    def trained(seeds, bits):
        sources = [torch.Generator().manual_seed(seed) for seed in seeds]
        bank = assemble(model, task, setting, bits=bits, generator=sources, canary=pair)
        for _ in bank.train():
            pass
        return model.flat(bank.theta), bank.scores()

    for together, *parts in zip(trained((5, 6), bits), trained((5,), bits[:3]), trained((6,), bits[3:]), strict=True):
        torch.testing.assert_close(together, torch.cat(parts), rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="is shorter"):  # parts are equal
        trained((5, 6), bits[:5])


def test_blocks_with_dropout_masks_train_one_by_one(cast):
    task = cast["linear"][0]
    module = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(task.x_train.shape[1], 10))
    model = models.from_module(module, task)
    object.__setattr__(model, "one_product", True)
    assert blocks_together(model, torch.device("cuda")) == 1
