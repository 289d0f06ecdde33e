"""Scores of steps, against sums over single records and a covariance that is written out."""

import numpy as np
import pytest
import torch
from cases import slow_but
from naive_pairs import SLOTS, clipped, pairs_of, worlds

from dpsub import DPSGD, models
from dpsub.trainers import assemble, scored_steps
from dpsub.trainers.scored_steps import ScoredSteps, Spread, whitened
from dpsub.trainers.slot import GradientSlot

BITS = np.array([[0, 1, 0], [1, 1, 0]], np.int8)


def assembled(cast, name, kind, spec, bits=BITS, seed=0):
    task, model = cast[name]
    pairs = pairs_of(task, model, kind, spec.max_grad_norm)
    bank = assemble(model, task, spec, canary=pairs, bits=bits, generator=torch.Generator().manual_seed(seed))
    return task, pairs, bank


def written_out(task, model, theta, pairs, spec):
    """The mean of a step's sum, its covariance over (σC)², and g_z − g_z′ of all pairs, in float64."""
    norm, q = spec.max_grad_norm, spec.sample_rate
    others = [i for i in range(len(task.y_train)) if i not in SLOTS]
    shared = torch.stack([clipped(model, theta, task.x_train[i], task.y_train[i], norm) for i in others])
    z, z_prime = worlds(model, theta, pairs, norm)
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
@pytest.mark.parametrize("expected", [True, False])
@pytest.mark.parametrize("name", ["linear", "mlp"])
def test_scores_of_steps_are_products_with_what_the_sum_is_beyond_its_mean(cast, name, kind, expected):
    spec, model = DPSGD(0.8, 0.5, 0.4, 2, 0.5), cast[name][1]
    task, pairs, bank = assembled(cast, name, kind, spec)
    others = [i for i in range(len(task.y_train)) if i not in SLOTS]
    steps, known = ScoredSteps(bank, expected=expected), np.zeros((2, 3))
    for _ in range(spec.steps):
        before = model.flat(bank.theta).double().clone()
        steps.advance()
        sums = model.flat(bank.last_sum).double()
        for run in range(2):
            both = worlds(model, before[run], pairs, 0.5)
            mean = sum(both).sum(dim=0) / 2
            for i in others:
                mean = mean + clipped(model, before[run], task.x_train[i], int(task.y_train[i]), 0.5)
            for i, (z, z_prime) in enumerate(zip(*both, strict=True)):
                share = mean if expected else (z + z_prime) / 2
                known[run, i] += float((sums[run] - 0.4 * share) @ (z - z_prime)) / 0.5**2
        np.testing.assert_allclose(steps.scores.numpy(), known, atol=2e-4)


CASES = [
    (name, q, kind)
    for name, q in (("linear", 0.4), ("linear", 1.0), ("mlp", 0.4), ("mlp", 0.02))
    for kind in ("records", "gradients")
]


@pytest.mark.parametrize(("name", "q", "kind"), slow_but(CASES, CASES[0], CASES[3], CASES[5], CASES[6]))
def test_scores_are_products_with_the_sum_divided_by_its_covariance(small, name, q, kind):
    spec = DPSGD(0.8, 0.5, q, 2, 0.5)
    task, pairs, bank = assembled(small, name, kind, spec)
    steps, known = ScoredSteps(bank, expected=True, whiten=35), np.zeros((2, 3))
    for _ in range(spec.steps):
        before = bank.model.flat(bank.theta).double().clone()
        steps.advance()
        for run, total in enumerate(bank.model.flat(bank.last_sum).double()):
            mean, covariance, apart = written_out(task, bank.model, before[run], pairs, spec)
            known[run] += (apart @ torch.linalg.solve(covariance, total - mean)).numpy() / 0.5**2
    np.testing.assert_allclose(steps.scores.numpy(), known, atol=5e-4)


@pytest.mark.parametrize("name", slow_but(["linear", "mlp", "convnet", "attention"], "mlp", "attention"))
def test_the_covariance_of_many_models_in_parts_is_that_of_each_in_one(cast, banks_of_modules, name, monkeypatch):
    spec = DPSGD(0.8, 1.0, 0.02, 2, 0.5)
    _, _, bank = assembled(cast | banks_of_modules, name, "records", spec)
    vector = torch.randn(bank.theta.shape, generator=torch.Generator().manual_seed(1))
    whole = bank.model.flat(Spread(bank, bank.theta).times(vector))
    monkeypatch.setattr(scored_steps, "RECORDS_AT_ONCE", 4 * bank.model.classes * bank.runs * 5)
    parts = Spread(bank, bank.theta)
    assert len(list(parts._parts())) == 5
    torch.testing.assert_close(bank.model.flat(parts.times(vector)), whole, atol=1e-5, rtol=1e-5)
    for run in range(2):
        _, _, alone = assembled(cast | banks_of_modules, name, "records", spec, bits=BITS[:1])
        alone.model.flat(alone.theta)[:] = bank.model.flat(bank.theta)[run : run + 1]
        one = torch.empty_like(alone.theta)
        alone.model.flat(one)[:] = bank.model.flat(vector)[run : run + 1]
        found = alone.model.flat(Spread(alone, alone.theta).times(one))[0]
        torch.testing.assert_close(found, whole[run], atol=1e-5, rtol=1e-4)


def test_the_covariance_is_that_of_many_steps(cast):
    spec = DPSGD(0.5, 1.0, 0.3, 1, 1e-9)
    task, pairs, bank = assembled(cast, "linear", "records", spec)
    theta = bank.model.flat(bank.theta)[0].double()
    mean, covariance, apart = written_out(task, bank.model, theta, pairs, spec)
    towards = torch.cat([apart, torch.randn(3, len(theta), generator=torch.Generator().manual_seed(0)).double() / 5])
    seen = []
    for seed in range(40):
        bits = np.random.default_rng(seed).integers(0, 2, (128, 3), dtype=np.int8)
        _, _, many = assembled(cast, "linear", "records", spec, bits=bits, seed=seed)
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
        _, _, bank = assembled(cast, "mlp", "records", spec, bits=bits)
        total = torch.randn(bank.theta.shape, generator=torch.Generator().manual_seed(1))
        found.append(whitened(bank, bank.theta, total, 4))
    assert torch.equal(*found)


def test_what_is_solved_before_the_last_iteration_stays_solved(cast):
    spec = DPSGD(1.0, 1.0, 1.0, 1, 0.1)
    _, _, bank = assembled(cast, "linear", "gradients", spec)
    assert isinstance(bank.slot, GradientSlot)
    total = torch.zeros_like(bank.theta)
    total[..., 0] = torch.randn(total.shape[:-1], generator=torch.Generator().manual_seed(1))
    few, many = (whitened(bank, bank.theta, total, iterations) for iterations in (12, 60))
    torch.testing.assert_close(many, few, atol=1e-5, rtol=1e-4)
    assert not few[..., 1].any(), "0 for a sum of 0"
