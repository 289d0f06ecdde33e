"""Many pairs in one training, against naive loops over single records."""

import itertools

import numpy as np
import pytest
import torch
from cases import slow_but
from modules_of_others import ACCEPTED
from naive_pairs import SLOTS, clipped, pairs_of, worlds
from torch.nn import functional

from dpsub import DPSGD, Pairs, models
from dpsub.trainers.scored_steps import ScoredSteps
from dpsub.trainers.slot import loss_products

KINDS = pytest.mark.parametrize("kind", ["records", "gradients"])


CASES = [*itertools.product((0.3, 1.0), ("linear", "mlp", "convnet"), ("records", "gradients"))]


@pytest.mark.parametrize(("q", "name", "kind"), slow_but(CASES, *CASES[::5], *CASES[3::4]))
def test_every_step_is_that_of_a_loop_over_single_records(cast, bank_of, name, kind, q):
    task, model = cast[name]
    pairs, spec = pairs_of(task, model, kind, 0.5), DPSGD(0.8, 0.5, q, 3, 0.5)
    bits = np.array([[0, 1, 0], [1, 1, 0]], np.int8)
    bank = bank_of(name, spec, bits, pairs)
    others = [i for i in range(len(task.y_train)) if i not in SLOTS]
    assert bank.shared == len(others) == 21
    draws = torch.Generator().manual_seed(5)
    thetas = [model.flat(bank.theta)[run].double() for run in range(2)]
    for _ in range(spec.steps):
        sampled = torch.rand(21, 2, generator=draws) < q
        in_slot = torch.rand(3, 2, generator=draws) < q
        noise = torch.randn(2, model.parameters, generator=draws)
        drawn = torch.empty_like(bank.theta)
        model.flat(drawn)[:] = noise
        batch = {"sampled": sampled, "slot_sampled": in_slot} if q < 1 else {}
        bank.step(**batch, noise=drawn)
        for run, theta in enumerate(thetas):
            total = spec.noise_multiplier * spec.max_grad_norm * noise[run].double()
            for place, record in enumerate(others):
                if sampled[place, run]:
                    total += clipped(model, theta, task.x_train[record], int(task.y_train[record]), 0.5)
            both = worlds(model, theta, pairs, 0.5)
            for i in range(3):
                if in_slot[i, run]:
                    total += both[bits[run, i]][i]
            thetas[run] = theta - spec.learning_rate * total / (q * len(task.y_train))
        torch.testing.assert_close(model.flat(bank.theta).double(), torch.stack(thetas), atol=2e-5, rtol=1e-4)


@KINDS
@pytest.mark.parametrize("bit", [0, 1])
@pytest.mark.parametrize("q", [0.5, 1.0])
def test_one_pair_is_the_slot_of_a_single_canary(cast, bank_of, kind, bit, q):
    task, model = cast["mlp"]
    alone = pairs_of(task, model, kind)[1]
    spec = DPSGD(0.5, 1.0, q, 4, 0.2, optimizer="adam")
    one, many = bank_of("mlp", spec, [bit], alone), bank_of("mlp", spec, [[bit]], Pairs.of([alone]))
    draws = torch.Generator().manual_seed(1)
    for _ in range(spec.steps):
        sampled, in_slot = torch.rand(23, 1, generator=draws) < q, torch.rand(1, 1, generator=draws) < q
        noise = torch.randn(1, model.parameters, generator=draws)
        batch = {"sampled": sampled, "slot_sampled": in_slot} if q < 1 else {}
        one.step(**batch, noise=noise)
        many.step(**batch, noise=noise)
    torch.testing.assert_close(many.theta, one.theta, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(many.scores(), one.scores(), atol=1e-5, rtol=1e-4)


@KINDS
def test_a_coin_changes_what_is_in_its_slot_and_nothing_else(cast, bank_of, kind):
    task, model = cast["mlp"]
    pairs, spec = pairs_of(task, model, kind), DPSGD(1.0, 1.0, 0.5, 1, 0.1)
    seen = 0
    for seed in range(12):
        sums = []
        for first in (0, 1):
            bank = bank_of("mlp", spec, [[first, 1, 0]], pairs, seed)
            start = model.flat(bank.theta)[0].double()
            ScoredSteps(bank, expected=False).advance()
            sums.append(model.flat(bank.last_sum)[0].double())
        z, z_prime = (each[0] for each in worlds(model, start, pairs, 1.0))
        in_batch = not torch.equal(*sums)
        torch.testing.assert_close(sums[0] - sums[1], in_batch * (z - z_prime), atol=2e-5, rtol=1e-4)
        seen += in_batch
    assert 1 <= seen <= 11


@KINDS
@pytest.mark.parametrize("sampling", ["poisson", "without_replacement"])
def test_each_slot_is_in_a_batch_as_often_as_a_record_and_by_itself(cast, bank_of, kind, sampling):
    task, model = cast["linear"]
    spec, runs = DPSGD(1.0, 1.0, 0.25, 1, 0.1, sampling=sampling), 4_000
    pairs, bits = pairs_of(task, model, kind), np.random.default_rng(0).integers(0, 2, (runs, 3), dtype=np.int8)
    bank = bank_of("linear", spec, bits, pairs)
    seen = []
    bank.step = lambda **batch: seen.append(batch)
    bank.advance()
    coins = seen[0]["slot_sampled"]
    present = bank.slot.in_batch(coins).numpy()
    assert np.array_equal(present, np.stack([bits.T == 0, bits.T == 1]) & coins.numpy())
    error = 4 * (0.25 * 0.75 / runs) ** 0.5
    assert np.abs(present.any(axis=0).mean(axis=1) - 0.25).max() < error
    together = (present.any(axis=0)[0] & present.any(axis=0)[1]).mean()
    assert abs(together - (1 / 16 if sampling == "poisson" else 0.25 * 5 / 23)) < error
    with pytest.raises(ValueError, match=r"slot_sampled must have shape \(3, 4000\), got \(1, 4000\)"):
        bank.slot.in_batch(coins[0])


@pytest.mark.parametrize(
    "name", ["linear", "deep relu mlp", "mlp on images", "convnet", "large convnet", "attention", "lstm", "residual"]
)
def test_products_of_records_are_those_of_their_gradients(cast, banks_of_modules, name):
    _check_products(*(banks_of_modules | cast)[name])


@pytest.mark.parametrize(
    "name", ["fused attention", "masked attention", "bag of words", "weight norm", "distances", "gradient of one's own"]
)
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_products_do_not_need_operations_that_differentiate_forward(module_of, name):
    task, (make, loss) = module_of("attention")[0], ACCEPTED[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        _check_products(task, models.from_module(make(), task, loss=loss))


def _check_products(task, model):
    generator = torch.Generator().manual_seed(0)
    theta = model.initial_parameters(3, generator)
    theta = theta + 0.1 * torch.randn(theta.shape, generator=generator)
    direction = torch.randn(theta.shape, generator=generator)
    x, y = model.inputs(torch.tensor(task.x_train[:6])), torch.tensor(task.y_train[:6])
    products, norms = loss_products(model, theta, x, y, direction), model.gradient_norms(theta, x, y)
    for i in range(6):
        gradients = model.flat(model.clipped_sum(theta, x[i : i + 1], y[i : i + 1], None, float("inf")))
        torch.testing.assert_close(norms[i], gradients.norm(dim=1), atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(products[i], (gradients * model.flat(direction)).sum(dim=1), atol=2e-5, rtol=1e-4)


def test_a_loss_of_ones_own_is_differentiated_too(module_of):
    task, module = module_of("mlp")

    def squares(outputs, labels):
        return (outputs - functional.one_hot(labels, outputs.shape[1])).square().sum(dim=1)

    _check_products(task, models.from_module(module, task, loss=squares))


def test_observers_of_one_canary_do_not_take_many_pairs(cast, bank_of):
    bank = bank_of("linear", DPSGD(1.0, 1.0, 1.0, 1, 0.1), [[0, 0, 0]], pairs_of(*cast["linear"], "records"))
    for ask in (bank.slot.gradient, bank.slot.distance):
        with pytest.raises(ValueError, match="canary must be one pair to observe its gradient, got 3 pairs"):
            ask(bank)
