import numpy as np
import pytest
import torch
from opacus.layers import DPLSTM
from torch import nn

from dpsub import DPSGD, audit, crafters, models

SPEC = DPSGD(noise_multiplier=1.0, max_grad_norm=1.0, sample_rate=0.5, steps=4, learning_rate=0.1)
QUICK = {"runs": 12, "device": "cpu", "progress": False}


class Of(nn.Module):
    """A linear head with something of one's own on the way."""

    def __init__(self, way, parameter=None):
        super().__init__()
        self.out, self.way, self.own = nn.Linear(64, 10), way, parameter

    def forward(self, x):
        return self.way(self.out(x.flatten(1)))


def flat(*layers):
    return nn.Sequential(nn.Flatten(), *layers)


def frozen(module):
    for one in module.parameters():
        one.requires_grad_(False)
    return module


@pytest.fixture(scope="module")
def task(module_of):
    return module_of("attention")[0]


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (None, "module must be a torch.nn.Module, got a NoneType"),
        (frozen(flat(nn.Linear(64, 10))), "module must have a parameter that requires a gradient, got none"),
        (flat(nn.Linear(64, 10)).double(), "module must have float32 parameters on the CPU, got torch.float64"),
        (flat(nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10)), "Opacus can .* it says:\n  .*BatchNorm"),
        (flat(nn.LSTM(64, 10)), "it says:\n"),
        (flat(nn.Linear(64, 9)), r"module must return outputs \(2, 10\), a number for each .*, got \(2, 9\)"),
        (flat(nn.Linear(63, 10)), r"module must take records \(2, 8, 8\), got from it: .*shapes"),
        (
            flat(nn.Linear(64, 8), nn.GroupNorm(8, 8), nn.Linear(8, 10)),
            r"take records \(1, 8, 8\), got from it: Expected",
        ),
        (flat(DPLSTM(64, 10)), "module must return outputs .*, got tuple"),
        (Of(lambda out: out - out.mean(0)), "module must treat each record by itself"),
        (Of(lambda out: out * torch.rand_like(out)), "module must draw randomness in nn.Dropout layers only"),
        (Of(lambda out: out if out.sum() > 0 else -out), "module must be one that torch.func.vmap can differentiate"),
        (Of(lambda out: out, nn.Parameter(torch.tensor(torch.nan))), "module must start with finite parameters"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*LSTM")
def test_modules_that_cannot_be_banks_are_refused_in_a_sentence(task, module, message):
    with pytest.raises(ValueError, match=message):
        models.from_module(module, task)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (3, "loss must be a function of outputs and labels, got 3"),
        (nn.functional.cross_entropy, r"loss must return one number a record, \(2,\), got \(\): do not reduce it"),
        (lambda outputs, labels: 0.0, r"loss must return one number a record, \(2,\), got float"),
        (lambda outputs, labels: outputs.sum() + 0.0 * labels, "loss must be of each record by itself"),
        (lambda outputs: outputs, r"loss must take outputs \(2, 10\) and labels \(2,\): "),
    ],
)
def test_losses_of_something_else_are_refused(task, loss, message):
    with pytest.raises(ValueError, match=message):
        models.from_module(flat(nn.Linear(64, 10)), task, loss=loss)


@pytest.mark.parametrize(
    ("start", "message"),
    [
        ("random", "start must be 'own', 'fresh' or a function that makes a module, got 'random'"),
        (3, "start must be 'own', 'fresh' or a function"),
        (lambda: nn.Linear(3, 2), "start must make modules with the parameters of Of, got Linear"),
        (len, r"start must be a function that makes a module without .*, got TypeError"),
        (lambda: None, "start must make modules with the parameters of Of, got None"),
        ("fresh", r"start must be a function .* no reset_parameters, got 'fresh' for a Of"),
    ],
)
def test_starts_that_cannot_be_are_refused(task, start, message):
    with pytest.raises(ValueError, match=message):
        models.from_module(Of(lambda out: out, nn.Parameter(torch.ones(2))), task, start=start)


def test_a_module_is_pointed_to_the_bank_it_can_be(task):
    with pytest.raises(ValueError, match=r"got a torch.nn.Module, Linear: make one with .*from_module"):
        models.check_fits(nn.Linear(64, 10), task)


def test_what_is_frozen_is_neither_trained_nor_counted(task):
    backbone = frozen(nn.Linear(64, 5))
    module = flat(backbone, nn.Tanh(), nn.Linear(5, 10))
    bank = models.from_module(module, task)
    assert bank.parameters == 60
    pair = crafters.gradient(task, bank, SPEC, seed=0)
    found = audit(task, bank, pair, SPEC, metrics=("weights",), **QUICK)
    assert found.weights.shape == (12, 60)
    trained = bank.module(found.weights.values[0])
    torch.testing.assert_close(trained[1].weight, backbone.weight, atol=0, rtol=0)
    assert not torch.equal(trained[3].weight, module[3].weight)


def test_the_module_is_copied(task):
    module = flat(nn.Linear(64, 10))
    bank = models.from_module(module, task)
    before = repr(bank)
    with torch.no_grad():
        module[1].weight.zero_()
    assert repr(bank) == before
    assert repr(models.from_module(module, task)) != before


def test_fresh_starts_differ_and_are_the_same_for_the_same_stream(task):
    bank = models.from_module(flat(nn.Linear(64, 10)), task, start="fresh")
    state = torch.get_rng_state()
    one, same, other = (bank.initial_parameters(3, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert not torch.equal(one[0], one[1])
    assert one.abs().max() <= 1 / 8  # U(−1/√64, 1/√64)
    assert torch.equal(torch.get_rng_state(), state), "the global stream is not touched"


def test_starts_may_be_made_by_a_function(task, module_of):
    bank = models.from_module(module_of("lstm")[1], task, start=lambda: module_of("lstm")[1])
    own = models.from_module(module_of("lstm")[1], task)
    generators = (torch.Generator().manual_seed(0) for _ in range(2))
    starts = [one.initial_parameters(2, generator) for one, generator in zip((bank, own), generators, strict=True)]
    assert torch.equal(*starts)
    with pytest.raises(ValueError, match="reset_parameters, got 'fresh' for a DPLSTM"):
        models.from_module(module_of("lstm")[1], task, start="fresh")


def test_a_loss_of_ones_own_is_trained_on_and_attacked(task):
    def squares(outputs, labels):
        return (outputs - nn.functional.one_hot(labels, 10)).square().sum(dim=1)

    module = flat(nn.Linear(64, 10))
    bank = models.from_module(module, task, loss=squares)
    assert "squares" in repr(bank)
    x, y = torch.tensor(task.x_train), torch.tensor(task.y_train)
    theta = bank.initial_parameters(1, torch.Generator())
    squares(module(x), y).sum().backward()
    expected = torch.cat([one.grad.flatten() for one in module.parameters()])
    torch.testing.assert_close(bank.clipped_sum(theta, x, y, None, torch.inf)[0], expected, rtol=1e-4, atol=1e-4)
    pair = crafters.mislabeled(task, bank, SPEC, seed=0)
    wanted = pair.details["norm"]
    assert audit(task, bank, pair, SPEC, **QUICK).score.shape == (12, 4)
    other = crafters.mislabeled(task, models.from_module(module, task), SPEC, seed=0, target=pair.slot)
    assert wanted != pytest.approx(other.details["norm"], rel=0.1)


@pytest.mark.parametrize("name", ["attention", "lstm", "residual"])
def test_every_crafter_attacks_modules_and_metrics_observe_them(module_of, name):
    task, module = module_of(name)
    task = type(task)(**{**vars(task), "x_aux": task.x_train[::-1] * 0.9, "y_aux": task.y_train})
    bank = models.from_module(module, task)
    metrics = ("weights", "distance", "gradient")
    for craft in (crafters.gradient, crafters.mislabeled, crafters.natural):
        found = audit(task, bank, craft(task, bank, SPEC, seed=0), SPEC, metrics=metrics, **QUICK)
        assert np.isfinite(found.score).all()
        assert (found.distance <= 1 + 1e-5).all()
