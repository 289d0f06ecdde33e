from types import SimpleNamespace

import numpy as np
import pytest
import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dpsub import CanaryPair, Pairs, audits, bound, data, models, one_run_dataset
from dpsub.estimators import one_run_epsilon_lower_bound, one_run_guesses
from dpsub.trainers.slot import label_logits

SLOTS = [2, 17, 5, 11]


@pytest.fixture
def plain():
    draws = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(40, 6, generator=draws), torch.randint(3, (40,), generator=draws))


@pytest.fixture
def pairs(plain):
    x, y = (one.numpy() for one in plain[SLOTS])
    return Pairs(SLOTS, x, x + 1, y, (y + 1) % 3, scenario="other label")


def test_slots_hold_z_or_z_prime_by_fair_coins_and_all_else_is_as_it_was(plain, pairs):
    coins = []
    for seed in range(40):
        private = one_run_dataset(plain, pairs, seed=seed)
        assert len(private) == 40
        coins.append(private.bits)
        for i in range(-40, 40):
            x, y = private[i]
            if i % 40 not in SLOTS:
                assert x is plain[i][0] or torch.equal(x, plain[i][0])
                continue
            one = pairs[SLOTS.index(i % 40)]
            world = (one.z, one.z_prime)[private.bits[SLOTS.index(i % 40)]]
            assert torch.equal(x, torch.tensor(world.x))
            assert (int(y), y.dtype) == (world.y, torch.int64)
    assert 50 <= np.sum(coins) <= 110
    assert np.array_equal(one_run_dataset(plain, pairs, seed=3).bits, coins[3])
    with pytest.raises(IndexError):
        private[40]
    with pytest.raises(ValueError, match="read-only"):
        private.bits[0] = 1


@pytest.mark.parametrize("index", [slice(0, 3), [0, 1], 5.0, None])
def test_several_records_at_once_are_refused(plain, pairs, index):
    with pytest.raises(TypeError):
        one_run_dataset(plain, pairs, seed=0)[index]


def test_records_have_the_types_of_the_dataset(plain, pairs):
    class Tokens(torch.utils.data.Dataset):
        def __len__(self):
            return 40

        def __getitem__(self, i):
            return np.full(6, i, dtype=np.int32), i % 3

    x = np.arange(24).reshape(4, 6)
    private = one_run_dataset(Tokens(), Pairs(SLOTS, x, x, [0, 1, 2, 0], [1, 2, 0, 1]), seed=0)
    x, y = private[17]
    assert (type(x), x.dtype, x.tolist()) == (np.ndarray, np.int32, [6, 7, 8, 9, 10, 11])
    assert (type(y), y) == (int, (1, 2)[private.bits[1]])
    assert private.scores(nn.Sequential(nn.Embedding(30, 2), nn.Flatten(), nn.Linear(12, 3))).sizes["pair"] == 4


def test_scores_are_those_that_an_audit_gives_the_same_model():
    task = data.digits(n_train=40)
    model, x = models.mlp(task, (5,)), task.x_train[SLOTS]
    pairs = Pairs(SLOTS, x, x + 0.5, task.y_train[SLOTS], (task.y_train[SLOTS] + 1) % 10, scenario="S4")
    dataset = TensorDataset(torch.tensor(task.x_train), torch.tensor(task.y_train))
    theta = model.initial_parameters(1, torch.Generator().manual_seed(0))
    module = nn.Sequential(model.module(theta[0]), nn.Dropout(0.5)).train()
    private = one_run_dataset(dataset, pairs, seed=4)
    seen = private.scores(module)
    assert module.training
    expected = [
        label_logits(model.logits(theta, torch.tensor(one)), torch.tensor(y))[:, 0]
        for one, y in ((pairs.z, pairs.y), (pairs.z_prime, pairs.y_prime))
    ]
    np.testing.assert_allclose(seen.score[0], expected[0] - expected[1], atol=1e-5)
    assert (seen.score.dims, seen.score.dtype, seen.bit.dtype) == (("model", "pair"), np.float32, np.int8)
    assert np.array_equal(seen.bit[0], private.bits)
    assert np.array_equal(seen.slot, SLOTS)
    assert {"scenario": "S4", "n": 40, "pairs": 4, "seed": 4, "adjacency": "substitute"}.items() <= seen.attrs.items()
    assert seen.attrs["pairs_fingerprint"] == pairs.fingerprint


@pytest.mark.filterwarnings("ignore:Secure RNG turned off", "ignore:Full backward hook", "ignore:Optimal order")
def test_a_training_with_opacus_needs_no_other_change_and_shows_its_coins():
    draws = np.random.default_rng(0)
    x, y = draws.normal(size=(120, 60)).astype(np.float32), draws.integers(0, 2, 120)
    x[:, :40] = 0
    marked = np.eye(60, dtype=np.float32)[:40] * 5
    slots = draws.permutation(120)[:40]
    pairs = Pairs(slots, marked, marked, np.zeros(40), np.ones(40), scenario="unused feature")
    dataset = one_run_dataset(TensorDataset(torch.tensor(x), torch.tensor(y)), pairs, seed=0)

    torch.manual_seed(0)
    model = nn.Linear(60, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    engine = PrivacyEngine()
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=optimizer,
        data_loader=DataLoader(dataset, batch_size=30),
        noise_multiplier=0.5,
        max_grad_norm=1.0,
    )
    for _ in range(10):
        for batch, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(batch), labels).backward()
            optimizer.step()

    seen = dataset.scores(model)
    found = one_run_guesses(seen.score, seen.bit, guesses=30)
    assert found.correct >= 27
    assert found.pairs == 40
    other = one_run_dataset(TensorDataset(torch.tensor(x), torch.tensor(y)), pairs, seed=1)
    chance = one_run_guesses(other.scores(model).score, other.bits[None], guesses=30)
    assert chance.correct < 25, "coins that the training has not seen"


def test_a_references_scores_are_subtracted_and_the_bound_says_so(plain, pairs):
    private = one_run_dataset(plain, pairs, seed=0)
    assert len(private.outside) == 36
    outside = {x.numpy().tobytes() for x, _ in private.outside}
    assert outside == {plain[i][0].numpy().tobytes() for i in range(40) if i not in SLOTS}
    model, reference = nn.Linear(6, 3), nn.Linear(6, 3)
    seen, plainly, usual = (
        private.scores(model, reference=reference),
        private.scores(model),
        private.scores(reference),
    )
    np.testing.assert_allclose(seen.score, plainly.score - usual.score, atol=1e-6)
    assert (seen.attrs["reference"], plainly.attrs["reference"]) == (1, 0)
    assert "less the reference's" in seen.score.long_name
    found = bound(seen, delta=1e-5, rule=[2, 4])
    by_hand = one_run_guesses(seen.score, seen.bit, guesses=(2, 4), centre="median")
    assert found.epsilon == one_run_epsilon_lower_bound(*by_hand, delta=1e-5).epsilon
    assert (found.details["scored"], found.details["centre"]) == ("final model's score less a reference's", "median")
    assert bound(plainly, delta=1e-5).details["scored"] == "final model's score"


@pytest.mark.parametrize("seed", range(3))
def test_a_reference_shows_coins_that_differences_between_records_hide(seed):
    """Each record has a score of its own, which is far larger than what its coin adds."""
    draws = np.random.default_rng(seed)
    usual, worlds = torch.tensor(draws.normal(scale=50, size=200)), np.arange(200)
    pairs = Pairs(worlds, np.eye(200), np.eye(200), np.zeros(200), np.ones(200))
    private = one_run_dataset([(torch.zeros(200), 0)] * 201, pairs, seed=seed)
    model, reference = nn.Linear(200, 2, bias=False), nn.Linear(200, 2, bias=False)
    for one, coins in ((model, 1 - 2 * torch.tensor(private.bits)), (reference, 0)):
        with torch.no_grad():
            one.weight[1], one.weight[0] = 0, usual + coins
    shown = bound(private.scores(model, reference=reference), delta=1e-5)
    guesses = shown.details["guesses"]
    assert shown.epsilon == one_run_epsilon_lower_bound(guesses, guesses, 200, delta=1e-5).epsilon > 4
    assert bound(private.scores(model), delta=1e-5).epsilon < 1


class Dicts(torch.utils.data.Dataset):
    """Records as Hugging Face's datasets give them."""

    def __init__(self, form, **more):
        self.form, self.more = form, more

    def __len__(self):
        return 40

    def __getitem__(self, i):
        return {"input_ids": self.form([i % 30] * 6), **self.more, "labels": i % 3}


class Classifier(nn.Module):
    """As models of Hugging Face are called, and answer."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Embedding(30, 2), nn.Flatten(), nn.Linear(12, 3))

    def forward(self, input_ids, attention_mask=None):
        outputs = self.layers(input_ids)
        return SimpleNamespace(logits=outputs if attention_mask is None else outputs * attention_mask[:, :1])


def other_labels(dataset):
    x, y = np.array([dataset[i]["input_ids"] for i in SLOTS]), np.array([dataset[i]["labels"] for i in SLOTS])
    return Pairs(SLOTS, x, x, y, (y + 1) % 3)


@pytest.mark.parametrize("form", [list, np.array, torch.tensor])
def test_records_that_are_dicts_keep_their_kind_and_their_other_entries(form):
    plain = Dicts(form, attention_mask=form([2] * 6))
    private = one_run_dataset(plain, other_labels(plain), seed=0)
    for i in range(40):
        found, own = private[i], plain[i]
        assert found.keys() == own.keys()
        assert type(found["input_ids"]) is type(own["input_ids"])
        assert np.array_equal(found["input_ids"], own["input_ids"])
        assert np.array_equal(found["attention_mask"], own["attention_mask"])
        assert found["labels"] == (own["labels"] + (private.bits[SLOTS.index(i)] if i in SLOTS else 0)) % 3
    module = Classifier()
    tokens = torch.tensor([plain[i]["input_ids"] if form is list else plain[i]["input_ids"].tolist() for i in SLOTS])
    doubled = 2 * module(tokens).logits[..., None].double()
    labels = [torch.tensor([(plain[i]["labels"] + shift) % 3 for i in SLOTS]) for shift in (0, 1)]
    expected = label_logits(doubled, labels[0]) - label_logits(doubled, labels[1])
    np.testing.assert_allclose(private.scores(module).score[0], expected[:, 0].detach(), atol=1e-6)


def test_dicts_without_other_entries_may_exchange_x_and_have_other_keys():
    plain = [{"pixels": torch.zeros(6), "label": 1}] * 40
    pairs = Pairs(SLOTS, np.ones((4, 6)), 2 * np.ones((4, 6)), [0] * 4, [1] * 4)
    private = one_run_dataset(plain, pairs, seed=0, keys=("pixels", "label"))
    assert {float(private[slot]["pixels"][0]) for slot in SLOTS} == {1.0, 2.0}
    assert [private[slot]["label"] for slot in SLOTS] == private.bits.tolist()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"dataset": [(torch.zeros(5), 1)] * 40},
            r"pairs must have x of the shape of the dataset's, \(5,\), got \(6,\)",
        ),
        ({"dataset": [(torch.zeros(6), 1)] * 9}, "pairs must have slots among the 9 records of the dataset, .* got 17"),
        ({"pairs": [CanaryPair(np.ones(3), -np.ones(3), 1, "S2")]}, r"pairs must have x of the shape .* got \(3,\)"),
        (
            {"dataset": [{"text": [1] * 6, "labels": 1}] * 40},
            "keys must be the two names of x and y in a record, among 'text', 'labels', got",
        ),
        (
            {"dataset": Dicts(list, attention_mask=[1] * 6)},
            "pairs must keep the 'input_ids' of their slot's record, since its attention_mask may not fit others, got "
            "another one in pair 0",
        ),
    ],
)
def test_what_cannot_be_wrapped_is_named(plain, pairs, change, message):
    with pytest.raises(ValueError, match=message):
        one_run_dataset(**{"dataset": plain, "pairs": pairs, "seed": 0} | change)


def test_a_model_is_no_reference_of_itself(plain, pairs):
    module = nn.Linear(6, 3)
    with pytest.raises(ValueError, match="reference must be a model that did not see the coins, got the audited one"):
        one_run_dataset(plain, pairs, seed=0).scores(module, reference=module)


def test_a_model_that_diverged_has_no_bound(plain, pairs):
    module = nn.Linear(6, 3)
    nn.init.constant_(module.weight, float("nan"))
    with pytest.raises(ValueError, match="scores must be finite"):
        bound(one_run_dataset(plain, pairs, seed=0).scores(module), delta=1e-5)


def test_a_dataset_may_have_every_record_in_a_slot(plain):
    x, y = (one.numpy() for one in plain[:])
    all_of_them = Pairs(np.arange(40), x, x, y, (y + 1) % 3)
    assert len(audits.one_run_dataset(plain, all_of_them, seed=0).bits) == 40
