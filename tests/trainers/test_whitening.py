"""Whitened scores of steps, against a covariance that is written out."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from dpsub import DPSGD, Pairs, models
from dpsub.models.interface import OPACUS_EPS
from dpsub.trainers import ScoredSteps, assemble_pairs, whitening
from dpsub.trainers.pair_slots import GradientPairSlots
from dpsub.trainers.whitening import Spread, whitened

SLOTS = [7, 2, 20]
BITS = np.array([[0, 1, 0], [1, 1, 0]], np.int8)


def clipped(model, theta, x, y, norm):
    """The clipped gradient of one record in float64, from autograd."""
    module = model.module(theta.float()).double()
    loss = functional.cross_entropy(module(torch.tensor(x).double()[None]), torch.tensor([int(y)]))
    parts = list(torch.autograd.grad(loss, list(module.parameters())))
    if isinstance(model, models.Linear):
        parts[0] = parts[0].T
    gradient = torch.cat([part.flatten() for part in parts])
    return gradient * min(1.0, norm / (float(gradient.norm()) + OPACUS_EPS))


def pairs_of(task, model, kind, norm):
    if kind == "records":
        x, y = task.x_train[SLOTS], task.y_train[SLOTS]
        return Pairs(SLOTS, x, task.x_train[[1, 3, 4]], y, (y + 3) % 10, scenario="S4")
    rng = np.random.default_rng(3)
    z, z_prime = rng.normal(size=(2, 3, 4))
    z, z_prime = (norm * one / np.linalg.norm(one, axis=1, keepdims=True) for one in (z, z_prime / 2))
    return Pairs(SLOTS, z, z_prime, support=[5, 0, 9, 2], parameters=model.parameters, scenario="S2")


def assembled(cast, name, kind, spec, bits=BITS, seed=0):
    task, model = cast[name]
    pairs = pairs_of(task, model, kind, spec.max_grad_norm)
    bank, slots = assemble_pairs(
        model, task, spec, pairs=pairs, bits=bits, generator=torch.Generator().manual_seed(seed)
    )
    return task, pairs, bank, slots


def written_out(task, model, theta, pairs, spec):
    """The mean of a step's sum, its covariance over (σC)², and g_z − g_z′ of all pairs, in float64."""
    norm, q = spec.max_grad_norm, spec.sample_rate
    others = [i for i in range(len(task.y_train)) if i not in SLOTS]
    shared = torch.stack([clipped(model, theta, task.x_train[i], task.y_train[i], norm) for i in others])
    if pairs.of_records:
        z, z_prime = (
            torch.stack([clipped(model, theta, x, y, norm) for x, y in zip(xs, ys, strict=True)])
            for xs, ys in ((pairs.z, pairs.y), (pairs.z_prime, pairs.y_prime))
        )
    else:
        z, z_prime = torch.zeros(2, 3, model.parameters, dtype=torch.float64)
        for whole, some in ((z, pairs.z), (z_prime, pairs.z_prime)):
            whole[:, pairs.support.copy()] = torch.tensor(some).double()
    covariance = q * (1 - q) * (shared.T @ shared + z.T @ z / 2 + z_prime.T @ z_prime / 2)
    covariance += q**2 * spec.steps * (z - z_prime).T @ (z - z_prime) / 4
    covariance = torch.eye(model.parameters).double() + covariance / (spec.noise_multiplier * norm) ** 2
    return q * (shared.sum(dim=0) + (z + z_prime).sum(dim=0) / 2), covariance, z - z_prime


@pytest.fixture(scope="module")
def small(cast):
    """Models whose covariance can be written out."""
    task, linear = cast["linear"]
    return {"linear": (task, linear), "mlp": (task, models.mlp(task, (4,)))}


@pytest.mark.parametrize("kind", ["records", "gradients"])
@pytest.mark.parametrize(("name", "q"), [("linear", 0.4), ("linear", 1.0), ("mlp", 0.4), ("mlp", 0.02)])
def test_scores_are_products_with_the_sum_divided_by_its_covariance(small, name, q, kind):
    spec = DPSGD(0.8, 0.5, q, 2, 0.5)
    task, pairs, bank, slots = assembled(small, name, kind, spec)
    steps, known = ScoredSteps(bank, slots, expected=True, whiten=35), np.zeros((2, 3))
    for _ in range(spec.steps):
        before = bank.model.flat(bank.theta).double().clone()
        steps.advance()
        for run, total in enumerate(bank.model.flat(bank.last_sum).double()):
            mean, covariance, apart = written_out(task, bank.model, before[run], pairs, spec)
            known[run] += (apart @ torch.linalg.solve(covariance, total - mean)).numpy() / 0.5**2
    np.testing.assert_allclose(steps.scores.numpy(), known, atol=5e-4)


@pytest.mark.parametrize("name", ["linear", "mlp", "convnet", "attention"])
def test_the_covariance_of_many_models_in_parts_is_that_of_each_in_one(cast, banks_of_modules, name, monkeypatch):
    spec = DPSGD(0.8, 1.0, 0.02, 2, 0.5)
    _, _, bank, slots = assembled(cast | banks_of_modules, name, "records", spec)
    vector = torch.randn(bank.theta.shape, generator=torch.Generator().manual_seed(1))
    whole = bank.model.flat(Spread(bank, slots, bank.theta).times(vector))
    monkeypatch.setattr(whitening, "RECORDS_AT_ONCE", 4 * bank.model.classes * bank.runs * 5)
    parts = Spread(bank, slots, bank.theta)
    assert len(list(parts._parts())) == 5
    torch.testing.assert_close(bank.model.flat(parts.times(vector)), whole, atol=1e-5, rtol=1e-5)
    for run in range(2):
        _, _, alone, its = assembled(cast | banks_of_modules, name, "records", spec, bits=BITS[:1])
        alone.model.flat(alone.theta)[:] = bank.model.flat(bank.theta)[run : run + 1]
        one = torch.empty_like(alone.theta)
        alone.model.flat(one)[:] = bank.model.flat(vector)[run : run + 1]
        found = alone.model.flat(Spread(alone, its, alone.theta).times(one))[0]
        torch.testing.assert_close(found, whole[run], atol=1e-5, rtol=1e-4)


def test_the_covariance_is_that_of_many_steps(cast):
    spec = DPSGD(0.5, 1.0, 0.3, 1, 1e-9)
    task, pairs, bank, _ = assembled(cast, "linear", "records", spec)
    theta = bank.model.flat(bank.theta)[0].double()
    mean, covariance, apart = written_out(task, bank.model, theta, pairs, spec)
    towards = torch.cat([apart, torch.randn(3, len(theta), generator=torch.Generator().manual_seed(0)).double() / 5])
    seen = []
    for seed in range(40):
        bits = np.random.default_rng(seed).integers(0, 2, (128, 3), dtype=np.int8)
        _, _, many, _ = assembled(cast, "linear", "records", spec, bits=bits, seed=seed)
        many.advance(slot_sampled=torch.rand(3, 128, generator=many.generator) < 0.3)
        seen.append((many.model.flat(many.last_sum).double() - mean) @ towards.T)
    seen = torch.cat(seen)
    known = towards @ covariance @ towards.T * 0.5**2
    errors = (known.diag()[:, None] * known.diag() + known.square()).sqrt() / len(seen) ** 0.5
    assert ((seen.T @ seen / len(seen) - known).abs() < 4.5 * errors).all()
    assert (seen.mean(dim=0).abs() < 4 * (known.diag() / len(seen)).sqrt()).all()


def test_coins_enter_by_the_sum_alone(cast):
    spec, found = DPSGD(1.0, 1.0, 0.5, 5, 0.1), []
    for bits in (BITS, 1 - BITS):
        _, _, bank, slots = assembled(cast, "mlp", "records", spec, bits=bits)
        total = torch.randn(bank.theta.shape, generator=torch.Generator().manual_seed(1))
        found.append(whitened(bank, slots, bank.theta, total, 4))
    assert torch.equal(*found)


def test_what_is_solved_before_the_last_iteration_stays_solved(cast):
    spec = DPSGD(1.0, 1.0, 1.0, 1, 0.1)
    _, _, bank, slots = assembled(cast, "linear", "gradients", spec)
    assert isinstance(slots, GradientPairSlots)
    total = torch.zeros_like(bank.theta)
    total[..., 0] = torch.randn(total.shape[:-1], generator=torch.Generator().manual_seed(1))
    few, many = (whitened(bank, slots, bank.theta, total, iterations) for iterations in (12, 60))
    torch.testing.assert_close(many, few, atol=1e-5, rtol=1e-4)
    assert not few[..., 1].any(), "0 for a sum of 0"
