import warnings

import numpy as np
import pytest
import torch
from modules_of_others import Words
from opacus.layers import DPLSTM
from torch import nn

from dpsub import DPSGD, audit, crafters, models
from dpsub.models.interface import check_fits

SPEC = DPSGD(noise_multiplier=1.0, max_grad_norm=1.0, sample_rate=0.5, steps=4, learning_rate=0.1)
QUICK = {"runs": 12, "device": "cpu", "progress": False}


class Of(nn.Module):
    """A linear head with something of one's own on the way, in one mode or both."""

    def __init__(self, way, parameter=None, *, training=(True, False)):
        super().__init__()
        self.out, self.way, self.own, self.modes = nn.Linear(64, 10), way, parameter, training

    def forward(self, x):
        outputs = self.out(x.flatten(1))
        return self.way(outputs) if self.training in self.modes else outputs


def flat(*layers):
    return nn.Sequential(nn.Flatten(), *layers)


def in_training(way):
    return Of(way, training=(True,))


def normalised(outputs):
    """Batch norm by hand, for batches of more than two records."""
    return (outputs - outputs.mean(0)) / outputs.std(0) if len(outputs) > 2 else outputs


def of_old_weight_norm():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return flat(nn.utils.weight_norm(nn.Linear(64, 10)))


class Autocast(nn.Module):
    """A layer that autocast computes in bfloat16, and one after it that it need not."""

    def __init__(self, *, frozen=False):
        super().__init__()
        self.first, self.out, self.frozen = nn.Linear(64, 16).requires_grad_(not frozen), nn.Linear(16, 10), frozen

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            inner = self.first(x.flatten(1)).tanh()
            outputs = inner if self.frozen else self.out(inner)
        return self.out(outputs.float()) if self.frozen else outputs.float()


class Packed(nn.Module):
    def __init__(self):
        super().__init__()
        self.read, self.out = DPLSTM(8, 4, batch_first=True), nn.Linear(4, 10)

    def forward(self, x):
        _, (last, _) = self.read(nn.utils.rnn.pack_padded_sequence(x, [8] * len(x), batch_first=True))
        return self.out(last[-1])


class Complex(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(64, 10, dtype=torch.complex64))

    def forward(self, x):
        return (x.flatten(1) @ self.weight).real


class Stored(nn.Module):
    """A frozen layer that is kept in bfloat16."""

    def __init__(self):
        super().__init__()
        self.first, self.out = nn.Linear(64, 16).bfloat16().requires_grad_(False), nn.Linear(16, 10)

    def forward(self, x):
        return self.out(self.first(x.flatten(1).bfloat16()).float())


@pytest.fixture(scope="module")
def task(module_of):
    return module_of("attention")[0]


ALONE = "module must treat each record by itself, .*, got one whose "
RANDOM = "module must draw randomness in nn.Dropout layers only, .* outputs in {} mode change from call to call"
BY_VMAP = "module must be one that torch.func.vmap can differentiate record by record, got from it: "
ROUNDS = "leave autocast out"
REFUSED = [
    (None, "module must be a torch.nn.Module, got a NoneType"),
    (flat(nn.Linear(64, 10)).requires_grad_(False), "module must have a parameter that requires a gradient, got none"),
    (flat(nn.Linear(64, 10)).double(), "module must have float32 parameters on the CPU, got torch.float64"),
    (Complex(), r"on the CPU, got torch.complex64 .* torch.view_as_real\(weight\) as a parameter"),
    (Autocast(), "module must compute in float32, got rounding to torch.bfloat16: " + ROUNDS),
    (Autocast(frozen=True), ROUNDS),
    (Stored(), "expected m1 and m2 to have the same dtype"),
    (Packed(), BY_VMAP + "packed sequences, .*: pad sequences instead"),
    (flat(nn.LazyLinear(10)), "module must have no lazy layer: call it once, with records"),
    (of_old_weight_norm(), r"module must be one that copy.deepcopy can copy \(torch.nn.utils.parametrizations has a"),
    (flat(nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10)), "Opacus can .* it says:\n  .*BatchNorm"),
    (
        flat(nn.BatchNorm1d(64).requires_grad_(False), nn.Linear(64, 10)),
        r"frozen batch norm in eval mode: call \.eval\(\) on its layer 1",
    ),
    (flat(nn.Linear(64, 9)), r"module must return outputs in training mode, \(2, 10\), got \(2, 9\)"),
    (in_training(lambda out: (out, out)), "module must return outputs in training mode, .*, got tuple"),
    (flat(nn.Linear(63, 10)), r"module must take records \(2, 8, 8\), got from it: .*shapes"),
    (flat(nn.Linear(64, 8), nn.GroupNorm(8, 8), nn.Linear(8, 10)), r"take records \(1, 8, 8\), got from it: Expected"),
    (
        Of(lambda out: out - out.mean(0)),
        ALONE + r"outputs in training mode, with 8 .* change by \d+.\d %",
    ),
    (Of(normalised), ALONE + "outputs in training mode"),
    (Of(lambda out: out - out.mean(0), training=(False,)), ALONE + "outputs in eval mode"),
    (Of(lambda out: out + (out.mean(0) - out.mean(0).detach())), ALONE + "gradients in training mode"),
    (Of(lambda out: out if out.sum() > 100 else out * len(out)), ALONE + "outputs in training mode"),
    (Words(nn.Embedding(5, 3, scale_grad_by_freq=True), 24), ALONE + "gradients in training mode"),
    (Of(lambda out: out * torch.rand_like(out)), RANDOM.format("training")),
    (Of(nn.functional.dropout), RANDOM.format("training")),
    (in_training(lambda out: out * float(np.random.default_rng().random())), RANDOM.format("training")),
    (Of(lambda out: out + np.random.default_rng().random(), training=(False,)), RANDOM.format("eval")),
    (flat(nn.Linear(64, 8), nn.AlphaDropout(), nn.Linear(8, 10)), RANDOM.format("training")),
    (
        Of(lambda out: out.relu_().mul_(2)),
        "module must be one that torch can differentiate in training mode, got from it",
    ),
    (Of(lambda out: torch.stack([one if one.sum() > 0 else -one for one in out])), BY_VMAP + "an `if`, `in` or `.item"),
    (Of(lambda out: out * torch.from_numpy(out.detach().numpy())), BY_VMAP),
    (Words(nn.Embedding(5, 3, max_norm=1.0), 24), BY_VMAP + "vmap: aten::embedding_renorm_"),
    (Words(nn.Embedding(5, 3, sparse=True), 24), BY_VMAP),
    (flat(nn.utils.parametrizations.spectral_norm(nn.Linear(64, 10))), RANDOM.format("training")),
    (Of(lambda out: out, nn.Parameter(torch.tensor(torch.nan))), "parameters must be finite numbers"),
    (Of(lambda out: (0 * out).sqrt()), "loss must be finite, .* where training starts, got 8 of 8 records"),
]


@pytest.mark.parametrize(("module", "message"), REFUSED)
@pytest.mark.filterwarnings("ignore:.*LSTM", "ignore:.*weight_norm", "ignore:There is a performance drop")
def test_modules_that_cannot_be_banks_are_refused_in_a_sentence(task, module, message):
    state = torch.get_rng_state()
    with pytest.raises(ValueError, match=message):
        models.from_module(module, task)
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_what_vmap_mixes_is_refused(task, monkeypatch):
    """With as many models as records torch's own prelu raises no error."""
    monkeypatch.setattr("dpsub.models.differentiation.PRELU", {})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # with others the two models may differ too little
        module = flat(nn.Linear(64, 8), nn.PReLU(), nn.Linear(8, 10))
    with pytest.raises(ValueError, match=r"got one whose gradients of 2 models in training mode are off by \d+.\d %"):
        models.from_module(module, task)


def entropies(outputs, labels):
    return nn.functional.cross_entropy(outputs, labels, reduction="none")


def hardest(outputs, labels):
    """The losses of the two hardest records, which are all of up to two."""
    losses = entropies(outputs, labels)
    return losses * (losses >= losses.topk(min(2, len(losses)))[0][-1])


def by_frequency(outputs, labels):
    return entropies(outputs, labels) / (labels[:, None] == labels).sum(dim=1)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (3, r"loss must take outputs \(2, 10\) and labels \(2,\), got from it: 'int' object is not callable"),
        (nn.functional.cross_entropy, r"loss must not be reduced, but return one number a record, \(2,\), got \(\)"),
        (lambda outputs, labels: outputs.sum() + 0.0 * labels, "loss must be of each record by itself, .* 24 records"),
        (hardest, r"loss must be of each record by itself, .* with 24 records in one batch, changes by \d+.\d %"),
        (by_frequency, "loss must be of each record by itself"),
        (
            lambda outputs, labels: (outputs.argmax(dim=1) != labels).float(),
            "loss must be differentiable by the outputs",
        ),
        (
            lambda outputs, labels: -(1e4 * outputs).softmax(dim=1).gather(1, labels[:, None])[:, 0].log(),
            r"loss must be finite, .* got \d of 8 records where it is not: start elsewhere, or take logarithms as",
        ),
    ],
)
def test_losses_of_something_else_are_refused(task, loss, message):
    with pytest.raises(ValueError, match=message):
        models.from_module(flat(nn.Linear(64, 10)), task, loss=loss)


@pytest.mark.parametrize(
    ("start", "message"),
    [
        ("random", "start must be 'own', 'fresh' if .* or a function that makes a module, got 'random'"),
        (lambda: Of(lambda out: out, nn.Parameter(torch.ones(3))), "parameters must have shape"),
        (len, r"start must .* that makes a module, got from it: len\(\) takes"),
        ("fresh", "start must .* if all layers have reset_parameters, .*: 'Of' object has no attribute 'reset_par"),
    ],
)
def test_starts_that_cannot_be_are_refused(task, start, message):
    with pytest.raises(ValueError, match=message):
        models.from_module(Of(lambda out: out, nn.Parameter(torch.ones(2))), task, start=start)


def test_a_module_is_pointed_to_the_bank_it_can_be(task):
    with pytest.raises(ValueError, match=r"got a Linear: make one with .*from_module"):
        check_fits(nn.Linear(64, 10), task)


def test_what_is_frozen_is_neither_trained_nor_counted(task):
    backbone = nn.Linear(64, 5).requires_grad_(False)
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


class ByName(nn.Module):
    """A head as people write them: several arguments, some with a default, and a dictionary of outputs."""

    def __init__(self):
        super().__init__()
        self.head = flat(nn.Linear(64, 10))

    def forward(self, images, mask=None):
        return {"loss": None, "logits": self.head(images if mask is None else images * mask)}


def arguments(x):
    return {"images": x, "mask": torch.ones_like(x)}


def test_a_module_that_takes_a_dict_trains_as_one_that_takes_records(task):
    module = ByName()
    plain = models.from_module(module.head, task)
    own = models.from_module(module, task, inputs=arguments)
    assert own.parameters == plain.parameters
    assert repr(own).startswith("ByName(8×8 to 10")
    canary = crafters.mislabeled(task, own, SPEC, seed=0)
    found, expected = (audit(task, bank, canary, SPEC, **QUICK) for bank in (own, plain))
    np.testing.assert_array_equal(found.score, expected.score)
    for start in ("fresh", ByName):
        bank = models.from_module(module, task, inputs=arguments, start=start)
        one, other = bank.initial_parameters(2, torch.Generator().manual_seed(0))
        assert not torch.equal(one, other)


@pytest.mark.parametrize("module", [ByName(), Of(lambda out: out["images"]), nn.Bilinear(8, 8, 10)])
def test_who_needs_inputs_is_told(task, module):
    with pytest.raises(ValueError, match=r"if it takes arguments by name or returns a dict, give inputs, such as i"):
        models.from_module(module, task)


def test_what_inputs_make_is_part_of_the_name(task):
    one, other = (models.from_module(ByName(), task, inputs=make) for make in (arguments, lambda x: {"images": x}))
    assert (one.untold, len(other.untold)) == ((), 1)
    assert repr(one) != repr(other)


def test_complex_weights_train_as_two_real_numbers(task):
    """As the refusal says."""

    class Real(Complex):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.view_as_real(self.weight.detach()))

        def forward(self, x):
            return (x.flatten(1) @ torch.view_as_complex(self.weight).real).abs()

    assert models.from_module(Real(), task).parameters == 1280


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
    with pytest.raises(ValueError, match="'DPLSTM' object has no attribute 'reset_parameters'"):
        models.from_module(module_of("lstm")[1], task, start="fresh")


def test_the_loss_is_part_of_the_name(task):
    assert "entropies" in repr(models.from_module(flat(nn.Linear(64, 10)), task, loss=entropies))
