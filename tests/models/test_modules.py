from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from cases import slow_but
from modules_of_others import ACCEPTED
from torch import nn

from dpsub import DPSGD, audit, audits, crafters, data, models
from dpsub.models.differentiation import draw, masked, switch
from dpsub.models.interface import Model, Stochastic
from dpsub.trainers import assemble

NAMES = ("attention", "lstm", "residual", "linear", "mlp")
SPEC = DPSGD(noise_multiplier=1.0, max_grad_norm=1.0, sample_rate=0.5, steps=4, learning_rate=0.1)
QUICK = {"runs": 12, "device": "cpu", "progress": False}
# Of operations that torch batches by a loop.
pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")
close = partial(torch.testing.assert_close, rtol=1e-3, atol=2e-5)


@pytest.fixture(params=NAMES)
def bench(request, banks_of_modules):
    task, bank = banks_of_modules[request.param]
    return bank, apart(bank, 0.03, 5), torch.tensor(task.x_train), torch.tensor(task.y_train)


def naive(bank, loss, theta, x, y, max_grad_norm=torch.inf, *, training=False):
    """The records' clipped gradients of one model, one record after the other, (records, parameters)."""
    module, found = switch(bank.module(theta), training), []
    trained = [one for one in module.parameters() if one.requires_grad]
    for one, label in zip(x, y, strict=True):
        [own] = loss(module(one[None]), label[None])
        parts = torch.autograd.grad(own, trained, materialize_grads=True)
        gradient = torch.cat([part.flatten() for part in parts])
        found.append(gradient * (max_grad_norm / (gradient.norm() + 1e-6)).clamp(max=1))
    return torch.stack(found)


def six_records():
    rng = np.random.default_rng(1)
    return data.from_arrays(rng.random((6, 8, 8)), rng.integers(0, 10, 6), num_classes=10)


def seeded_bank(make, task, loss=None):
    """A bank of a module whose weights are the same each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return models.from_module(make(), task, loss=loss)


def apart(bank, by, seed):
    """Three models of a bank that are not where training starts."""
    generator = torch.Generator().manual_seed(seed)
    theta = bank.initial_parameters(3, generator)
    return theta + by * torch.randn(theta.shape, generator=generator)


@pytest.fixture(scope="module")
def accepted(request):
    """A task of six records, a bank of any module, its loss, and three models apart from each other."""
    make, loss = ACCEPTED[request.param]
    task = six_records()
    bank = seeded_bank(make, task, loss)
    return task, bank, loss or partial(nn.functional.cross_entropy, reduction="none"), apart(bank, 0.1, 5)


OFTEN = (
    "attention", "lstm", "residual", "fused attention", "convolution 2d", "weight norm", "embedding", "bag of words",
    "LoRA", "frozen", "numbers", "otherwise in training", "weighted loss",
)  # fmt: skip


@pytest.mark.parametrize("accepted", slow_but(ACCEPTED, *OFTEN), indirect=True)
@pytest.mark.parametrize("training", slow_but([False, True], False))
def test_gradients_are_those_of_loops_over_models_and_records(accepted, training):
    task, bank, loss, theta = accepted
    x, y = torch.tensor(task.x_train), torch.tensor(task.y_train)
    here = bank.training(torch.Generator()) if training else bank
    whole = torch.stack([naive(bank, loss, own, x, y, training=training) for own in theta])
    norms = whole.norm(dim=2)
    clipped = whole * (0.5 / (norms + 1e-6)).clamp(max=1)[..., None]
    for runs, records in ((2, 2), (3, 2), (3, 6)):
        own, each = (theta[:runs], x[:records], y[:records]), clipped[:runs, :records]
        sampled = torch.rand(records, runs, generator=torch.Generator().manual_seed(0)) < 0.6
        close(here.clipped_sum(*own, None, 0.5), each.sum(dim=1))
        for gather in (False, True):
            found = replace(here, gather=gather).clipped_sum(*own, sampled, 0.5)
            close(found, torch.einsum("rnp,nr->rp", each, sampled.float()))
        if not training:
            close(bank.gradient_norms(*own), norms[:runs, :records].T)
            close(bank.logits(*own[:2]), torch.stack([bank.module(one)(own[1]) for one in own[0]], dim=2))


def by_peft():
    """LoRA on one layer, as peft puts it in."""
    peft = pytest.importorskip("peft")
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10))
    return peft.get_peft_model(net, peft.LoraConfig(r=2, target_modules=["1"], modules_to_save=["3"]))


class Sequences(nn.Module):
    """GPT-2 on token ids."""

    def __init__(self):
        super().__init__()
        transformers = pytest.importorskip("transformers")
        about = {"vocab_size": 10, "n_positions": 64, "n_embd": 8, "n_layer": 2, "n_head": 2, "num_labels": 10}
        about |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1, "attn_implementation": "eager"}
        dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
        self.net = transformers.GPT2ForSequenceClassification(transformers.GPT2Config(**about, **dropout))

    def forward(self, x):
        tokens = (10 * x).long().flatten(1)
        return self.net(tokens, attention_mask=(tokens != 0).long()).logits


EXACT = {
    "GPT-2": Sequences,
    "tied": ACCEPTED["single numbers"][0],
    "LoRA": ACCEPTED["LoRA"][0],
    "peft": by_peft,
    "DPLSTM": ACCEPTED["lstm"][0],
    "group norm": ACCEPTED["residual"][0],
}


@pytest.mark.parametrize("name", slow_but(EXACT, "tied", "LoRA", "DPLSTM", "group norm"))  # others import transformers
def test_banks_are_loops_over_records_but_for_rounding(name):
    task = six_records()
    bank = seeded_bank(EXACT[name], task)
    theta = apart(bank, 0.1, 6)
    x, y = torch.tensor(task.x_train), torch.tensor(task.y_train)
    loss = partial(nn.functional.cross_entropy, reduction="none")
    whole = torch.stack([naive(bank, loss, own, x, y, 0.5, training=True).mean(dim=0) for own in theta])
    found = bank.training(torch.Generator()).clipped_sum(theta, x, y, None, 0.5) / 6
    assert float((found - whole).abs().max()) < 1.2e-7  # float32's rounding


@pytest.mark.parametrize("accepted", ACCEPTED, indirect=True)
def test_banks_train_as_loops_over_models_and_records(accepted):
    task, bank, loss, theta = accepted
    spec = DPSGD(0.5, 0.5, 0.4, 2, 0.05, optimizer="adam")
    trained = assemble(bank, task, spec, bits=np.zeros(3, dtype=np.int8), generator=torch.Generator())
    trained.theta.copy_(theta)
    expected = [one.clone() for one in theta]
    optimizers = [torch.optim.Adam([one], lr=0.05) for one in expected]
    generator = torch.Generator().manual_seed(0)
    for _ in range(spec.steps):
        sampled = torch.rand(6, 3, generator=generator) < 0.4
        noise = torch.randn(theta.shape, generator=generator)
        trained.step(sampled=sampled, noise=noise)
        for run, (one, descent) in enumerate(zip(expected, optimizers, strict=True)):
            each = naive(bank, loss, one, torch.tensor(task.x_train), torch.tensor(task.y_train), 0.5, training=True)
            one.grad = (each[sampled[:, run]].sum(dim=0) + 0.5 * 0.5 * noise[run]) / (0.4 * 6)
            descent.step()
    close(trained.theta, torch.stack(expected))


def test_parts_and_batches_of_their_own_change_nothing_but_rounding(bench):
    bank, theta, x, y = bench
    sampled = torch.rand(len(y), 3, generator=torch.Generator().manual_seed(0)) < 0.4
    expected = bank.clipped_sum(theta, x, y, sampled, 0.5)
    for changed in (replace(bank, gather=True), replace(bank, room=1), replace(bank, room=1, gather=True)):
        found = changed.clipped_sum(theta, x, y, sampled, 0.5, out=torch.full_like(theta, 7))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


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


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Dropout, (1, 6, 7)),
        (nn.Dropout, (6, 1, 7)),  # of records in the second dimension
        (nn.Dropout, (6, 7)),  # of rows of one record as if they were records
        (nn.Dropout1d, (1, 6, 7)),
        (nn.Dropout1d, (1, 6)),  # which drops whole records
        (nn.Dropout2d, (1, 6, 7, 5)),
        (nn.Dropout2d, (1, 6, 7)),
        (nn.Dropout3d, (1, 6, 7, 5, 4)),
        (nn.Dropout3d, (1, 6, 7, 5)),
    ],
)
@pytest.mark.filterwarnings("ignore:dropout2d")
def test_dropout_drops_together_what_torch_drops_together(layer, shape):
    def together(passed):
        """The dimensions along which all of ten draws are constant."""
        return [axis for axis in range(1, passed.ndim) if torch.equal(passed.amin(axis), passed.amax(axis))]

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        given, theirs = layer(0.5), layer(0.5)
        given.register_forward_hook(lambda one, seen, passed: passed * one.p)
        ours = masked(nn.Sequential(given))[0]
        expected = torch.stack([theirs(torch.ones(shape)) for _ in range(10)])
    assert (ours(torch.ones(shape)) == 0.5).all(), "what a layer holds stays with it"
    [[masks]] = draw([ours], (10,), torch.Generator().manual_seed(0), torch.ones(1))
    found = masks * torch.ones(shape)
    assert together(found) == together(expected)
    assert set(found.unique().tolist()) == set(expected.unique().tolist())


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
    store = tmp_path / "audit.db"
    made = audit(task, bank, pair, SPEC, store=store, **QUICK)
    again = audit(task, models.from_module(module, task, start="fresh"), pair, SPEC, store=store, **QUICK)
    assert again.identical(made)
    assert audits.load(store).identical(made)
    for other in (models.from_module(module, task), models.from_module(module, task, start="fresh", name="other")):
        with pytest.raises(ValueError, match="model: stored"):
            audit(task, other, pair, SPEC, store=store, **QUICK)


def test_activations_are_what_the_backward_pass_needs(module_of):
    task, _ = module_of("residual")  # records of 8 × 8
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.Tanh(), nn.Linear(5, 10))
    assert models.from_module(module, task).activations == 64 + 5 + 5, "of the inputs, of tanh, and of the last layer"


def test_a_bank_of_fresh_starts_may_start_where_it_is_told(banks_of_modules):
    bank = replace(banks_of_modules["attention"][1], start="fresh")
    theta_0 = np.linspace(-1, 1, bank.parameters, dtype=np.float32)
    theta = bank.starting_from(theta_0).initial_parameters(3, torch.Generator())
    np.testing.assert_array_equal(theta, np.tile(theta_0, (3, 1)))
