from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from dpsub import DPSGD, audit, audits, crafters, models
from dpsub.models import Model, Stochastic

NAMES = ("attention", "lstm", "residual", "linear", "mlp")
SPEC = DPSGD(noise_multiplier=1.0, max_grad_norm=1.0, sample_rate=0.5, steps=4, learning_rate=0.1)
QUICK = {"runs": 12, "device": "cpu", "progress": False}


@pytest.fixture(params=NAMES)
def bench(request, banks_of_modules):
    task, bank = banks_of_modules[request.param]
    generator = torch.Generator().manual_seed(5)
    theta = bank.initial_parameters(3, generator)
    theta = theta + 0.03 * torch.randn(theta.shape, generator=generator)
    return bank, theta, torch.tensor(task.x_train), torch.tensor(task.y_train)


def naive(bank, theta, x, y, max_grad_norm):
    """The records' clipped gradients of one model, one record after the other, (records, parameters)."""
    module, found = bank.module(theta), []
    for one, label in zip(x, y, strict=True):
        loss = nn.functional.cross_entropy(module(one[None]), label[None])
        parts = torch.autograd.grad(loss, list(module.parameters()))
        gradient = torch.cat([part.flatten() for part in parts])
        found.append(gradient * (max_grad_norm / (gradient.norm() + 1e-6)).clamp(max=1))
    return torch.stack(found)


def test_sums_are_those_of_records_one_by_one(bench):
    bank, theta, x, y = bench
    sampled = torch.rand(len(y), 3, generator=torch.Generator().manual_seed(0)) < 0.4
    sampled[:, 1] = False
    whole, batches = bank.clipped_sum(theta, x, y, None, 0.5), bank.clipped_sum(theta, x, y, sampled, 0.5)
    for run in range(3):
        each = naive(bank, theta[run], x, y, 0.5)
        torch.testing.assert_close(whole[run], each.sum(dim=0), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(batches[run], each[sampled[:, run]].sum(dim=0), rtol=1e-4, atol=1e-5)
        norms = naive(bank, theta[run], x, y, torch.inf).norm(dim=1)
        torch.testing.assert_close(bank.gradient_norms(theta, x, y)[:, run], norms, rtol=1e-4, atol=1e-5)


def test_parts_and_batches_of_their_own_change_nothing_but_rounding(bench):
    bank, theta, x, y = bench
    sampled = torch.rand(len(y), 3, generator=torch.Generator().manual_seed(0)) < 0.4
    expected = bank.clipped_sum(theta, x, y, sampled, 0.5)
    for changed in (replace(bank, gather=True), replace(bank, room=1), replace(bank, room=1, gather=True)):
        found = changed.clipped_sum(theta, x, y, sampled, 0.5, out=torch.full_like(theta, 7))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_outputs_are_the_modules(bench):
    bank, theta, x, _ = bench
    logits = bank.logits(theta, x)
    for run in range(3):
        torch.testing.assert_close(logits[..., run], bank.module(theta[run])(x), rtol=1e-4, atol=1e-5)


def test_banks_of_modules_are_models(banks_of_modules):
    for _, bank in banks_of_modules.values():
        assert isinstance(bank, Model)
        assert isinstance(bank, Stochastic)


def test_dropout_keeps_the_mean_and_drops_its_share(module_of):
    task, module = module_of("attention", dropout=0.3)
    bank = models.from_module(module, task)
    theta = bank.initial_parameters(400, torch.Generator())
    x, y = torch.tensor(task.x_train[:1]), torch.tensor(task.y_train[:1])
    still = bank.clipped_sum(theta, x, y, None, torch.inf)
    assert torch.equal(still[0], still[1]), "without dropout"
    moving = bank.training(torch.Generator().manual_seed(0)).clipped_sum(theta, x, y, None, torch.inf)
    assert not torch.equal(moving[0], moving[1])
    # The gradient by the output layer's weights is an outer product with what dropout has passed.
    passed = moving[:, -70:-10].view(400, 10, 6)[:, 0] != 0
    assert abs(float(passed.float().mean()) - 0.7) < 4.5 * (0.21 / 2400) ** 0.5
    again = bank.training(torch.Generator().manual_seed(0)).clipped_sum(theta, x, y, None, torch.inf)
    assert torch.equal(moving, again)


def test_observing_does_not_change_the_dropout_of_training(module_of):
    task, module = module_of("attention", dropout=0.3)
    bank = models.from_module(module, task)
    pair = crafters.mislabeled(task, bank, SPEC, seed=0)
    plain = audit(task, bank, pair, SPEC, **QUICK)
    observed = audit(task, bank, pair, SPEC, metrics=("distance", "gradient", "weights"), **QUICK)
    assert observed.score.equals(plain.score)
    without = models.from_module(module_of("attention")[1], task)
    assert not audit(task, without, pair, SPEC, **QUICK).score.equals(plain.score)


def test_audits_of_modules_are_stored_and_told_apart(module_of, tmp_path, monkeypatch):
    task, module = module_of("residual")
    bank = models.from_module(module, task, start="fresh")
    pair = crafters.gradient(task, bank, SPEC, seed=0)
    store = tmp_path / "audit.zarr"
    made = audit(task, bank, pair, SPEC, store=store, **{**QUICK, "runs": 200})
    again = audit(
        task, models.from_module(module, task, start="fresh"), pair, SPEC, store=store, **{**QUICK, "runs": 200}
    )
    assert again.identical(made)
    assert audits.load(store).identical(made)
    for other in (models.from_module(module, task), models.from_module(module, task, start="fresh", name="other")):
        with pytest.raises(ValueError, match="model: stored"):
            audit(task, other, pair, SPEC, store=store, **{**QUICK, "runs": 200})


def test_activations_are_what_the_backward_pass_needs(module_of):
    task, _ = module_of("residual")  # records of 8 × 8
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.Tanh(), nn.Linear(5, 10))
    assert models.from_module(module, task).activations == 64 + 5 + 5, "of the inputs, of tanh, and of the last layer"


def test_inputs_are_crafted_against_modules(banks_of_modules):
    task, bank = banks_of_modules["residual"]
    pair = crafters.crafted_input(task, bank, SPEC, seed=0, steps=50)
    assert pair.scenario == "S3"
    assert np.isfinite(audit(task, bank, pair, SPEC, **QUICK).score.values).all()


def test_banks_of_modules_may_start_where_they_are_told(banks_of_modules):
    _, bank = banks_of_modules["attention"]
    theta_0 = np.linspace(-1, 1, bank.parameters, dtype=np.float32)
    for own in (bank, replace(bank, start="fresh")):
        started = own.starting_from(theta_0)
        theta = started.initial_parameters(3, torch.Generator())
        np.testing.assert_array_equal(theta, np.tile(theta_0, (3, 1)))
        found = nn.utils.parameters_to_vector(started.module().parameters()).detach()
        np.testing.assert_array_equal(found, theta_0)
        assert repr(started) not in (repr(bank), repr(own), repr(own.starting_from(theta_0 + 1)))
    with pytest.raises(ValueError, match=r"theta_0 must have shape \(\d+,\), got \(2,\)"):
        bank.starting_from([1.0, 2.0])
