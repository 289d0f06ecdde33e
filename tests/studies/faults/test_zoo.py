"""The zoo of faults: each does what it says, and the audit that the page names finds it."""

from functools import partial

import numpy as np
import pytest
import torch
from cases import slow_but
from scipy.stats import binom

from dpsub import data
from dpsub.accounting import gdp_mu
from dpsub.opacus import audit_optimizer
from studies.faults import zoo, zoo_audits, zoo_training
from studies.faults.zoo_training import SLOT, Training
from studies.own_training import faulty_training
from studies.own_training.faulty_training import MicrobatchOptimizer
from studies.own_training.mended_training import MendedOptimizer

pytestmark = pytest.mark.filterwarnings("ignore")  # torch and Opacus warn about many things

SIGMA, SIZE = 1.5, 4
OPTIMIZERS = [name for name, trainer in zoo.ZOO.items() if trainer.loader is zoo.poisson]


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def stepped(name, gradients, noise_multiplier=SIGMA):
    """What each parameter, in a group of its own, takes as sum of these per-sample gradients."""
    torch.manual_seed(0)
    parameters = [torch.nn.Parameter(torch.zeros(one.shape[1:])) for one in gradients]
    optimizer = zoo.ZOO[name].optimizer(
        torch.optim.SGD([{"params": [one]} for one in parameters], lr=0.1),
        noise_multiplier=noise_multiplier,
        max_grad_norm=1.0,
        expected_batch_size=SIZE,
    )
    optimizer.records, optimizer.sample_rate = SIZE, 1.0
    for parameter, one in zip(parameters, gradients, strict=True):
        parameter.grad_sample = one.clone()
    optimizer.step()
    return [parameter.grad * SIZE for parameter in parameters]


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        ("right", 1, 1),
        ("half the noise", 0.5, 0.5),
        ("noise on one group", 1, 0),
        ("noise of microbatches", 0.5, 0.5),
        ("noise of workers", 0.5, 0.5),
        ("too much noise", 2, 2),
        ("clips the average", 1, 1),
        ("clips each layer", 1, 1),
        ("sums before clipping", 1, 1),
        ("divides by n", 1, 1),
    ],
)
def test_the_noise_is_as_far_off_as_the_fault_says(name, first, second):
    spread = [float(one.std()) / SIGMA for one in stepped(name, [torch.zeros(3, 40_000)] * 2)]
    assert spread == pytest.approx([first, second], rel=0.02)


def test_a_hundred_seeds_give_a_hundred_noises():
    trainer, noises = zoo.ZOO["100 seeds"], set()
    weights = torch.nn.Parameter(torch.zeros(4))
    optimizer = trainer.optimizer(
        torch.optim.SGD([weights], lr=0.1), noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=1
    )
    for _ in range(2000):
        weights.grad_sample = torch.zeros(0, 4)
        optimizer.step()
        noises.add(tuple(weights.grad.tolist()))
        optimizer.zero_grad()
    assert len(noises) == 100


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        ("right", [0.6 + 1, 0], [0.8, 1]),
        ("clips the average", [4, 0], [4, 1]),  # the average (1, 0, 1, 1/4) is cut to norm 1 and times four
        ("clips each layer", [1 + 1, 0], [1, 1]),
        ("sums before clipping", [4, 0], [4, 1]),
    ],
)
def test_clipping_is_wrong_as_the_fault_says(name, first, second):
    gradients = [
        torch.tensor([[3.0, 0], [1, 0], [0, 0], [0, 0]]),
        torch.tensor([[4.0, 0], [0, 0], [0, 1], [0, 0]]),
    ]
    expected = np.array([first, second], dtype=float)
    if name == "clips the average":
        expected /= np.linalg.norm(expected / 4)
    elif name == "sums before clipping":
        expected /= np.linalg.norm(expected)
    found = torch.stack(stepped(name, gradients, noise_multiplier=1e-12)).numpy()
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_divisor_that_follows_from_n_differs_between_the_worlds():
    parameter = torch.nn.Parameter(torch.zeros(2))
    optimizer = zoo.DividesByN(
        torch.optim.SGD([parameter], lr=0.1), noise_multiplier=1e-12, max_grad_norm=1.0, expected_batch_size=30
    )
    optimizer.sample_rate = 0.1
    for records, divisor in ((300, 30), (299, 29)):
        optimizer.records = records
        parameter.grad_sample = torch.tensor([[1.0, 0]])
        optimizer.step()
        assert float(parameter.grad[0]) == pytest.approx(1 / divisor, rel=1e-5)
        optimizer.zero_grad()


def in_batches(name, epochs):
    """(steps, records) how often each record is in each batch."""
    training = Training(zoo.ZOO[name], n_train=100, batch_size=10)
    batches = [numbers for _ in range(epochs) for *_, numbers in training.loader]
    return np.array([np.bincount(numbers, minlength=100) for numbers in batches]), training


def test_samplers_draw_as_they_say():
    poisson, training = in_batches("right", 100)
    assert abs(poisson[:, SLOT].mean() - 0.1) < 4 * np.sqrt(0.09 / 1000)
    assert len(np.unique(poisson.sum(axis=1))) > 10
    shuffled, _ = in_batches("shuffled", 20)
    assert (shuffled.reshape(20, 10, 100).sum(axis=1) == 1).all()
    weighted, _ = in_batches("weighted", 100)
    y = training.data.tensors[1].numpy()
    often = y == y[SLOT]
    expected = 10 * 5 / (5 * often.sum() + (~often).sum())
    assert weighted[:, SLOT].mean() == pytest.approx(expected, rel=0.15)


def test_steps_are_chosen_by_the_chance_of_a_record_that_each_epoch_has_once():
    rng = np.random.default_rng(0)
    epoch, sigma, steps = 10, 0.5, 60
    bits = rng.integers(0, 2, steps)
    there = np.concatenate([rng.permutation(epoch) == 0 for _ in range(steps // epoch)])
    product = sigma * rng.normal(size=steps) + there * (1 - 2 * bits)
    chosen = zoo_training.not_seen_yet(product, bits, noise_multiplier=sigma, sample_rate=1 / epoch)
    for t in range(steps):
        start = t // epoch * epoch
        weights = []
        for place in range(start, start + epoch):
            at = np.arange(start, t)
            means = (at == place) * (1 - 2 * bits[at])
            weights.append(np.exp(-(((product[at] - means) / sigma) ** 2).sum() / 2))
        assert chosen[t] == (weights[t - start] / sum(weights) > 1.5 / epoch)
    assert 0 < chosen.sum() < steps


QUICK = [name for name in zoo_audits.BEST if name not in ("right", "too much noise", "weighted", "shuffled")]


@pytest.mark.parametrize("fault", slow_but(QUICK, *set(QUICK) - {"divides by n", "sums before clipping"}))
def test_the_audit_that_the_page_names_finds_the_fault(fault):
    audit, adjacency = zoo_audits.BEST[fault]
    [row] = zoo_audits.detection([(fault, audit, adjacency)], steps=400, seeds=[0]).itertuples()
    assert (row.found, row.of) == (1, 1)
    assert 0 < row.steps <= 400
    if audit != "noise tested":  # which bets on more than the canary
        assert row.wealth.max() >= -np.log(zoo_audits.ALPHA) > row.wealth[: int(row.steps) - 1].max()


def test_the_accountant_sees_shuffled_batches_by_their_sizes():
    find = partial(zoo_audits.batch_sizes, adjacency="substitute", steps=60, seed=0)
    assert find(zoo.ZOO["shuffled"])[1] < 60
    assert find(zoo.ZOO["right"])[1] is None


BLIND = [
    ("clips each layer", "Dirac", "substitute"),
    ("clips the average", "Diracs of norm C", "substitute"),
    ("sums before clipping", "against the others", "substitute"),
    ("noise on one group", "Dirac", "substitute"),
    ("too much noise", "Diracs", "substitute"),
    ("weighted", "Diracs", "substitute"),
    ("shuffled", "record", "substitute"),
    ("divides by n", "length", "substitute"),
]


@pytest.mark.slow
@pytest.mark.parametrize("cell", BLIND, ids=" by ".join)
def test_audits_that_cannot_meet_a_fault_do_not_find_it(cell):
    [row] = zoo_audits.detection([cell], steps=500, seeds=range(3)).itertuples()
    assert row.found <= binom.ppf(0.999, 3, zoo_audits.ALPHA)  # their claims are true, or look so


@pytest.mark.slow
def test_sampling_is_found_by_a_record():
    cells = [("weighted", "record", "substitute"), ("shuffled", "record, not seen yet", "substitute")]
    weighted, shuffled = zoo_audits.detection(cells, steps=3000, seeds=[0]).itertuples()
    assert weighted.found == shuffled.found == 1
    assert weighted.steps < 1000


CANARIES = [
    *({"canary": kind} for kind in ("dirac", "diracs", "constant", "random")),
    {"canary": "random", "anew": True},
    {"canary": "diracs", "anew": True},
]


@pytest.mark.slow
def test_right_trainings_are_accused_in_no_more_than_alpha_of_200_audits():
    audits = [(asked, adjacency) for asked in CANARIES for adjacency in ("substitute", "add_remove")]
    accused = 0
    for seed in range(200):
        asked, adjacency = audits[seed % len(audits)]
        asked = asked | {"test_noise": seed % 2 == 0}
        _, at = zoo_audits.beside_records(zoo.ZOO["right"], adjacency=adjacency, steps=250, seed=seed, **asked)
        accused += at is not None
    assert accused <= binom.ppf(0.999, 200, zoo_audits.ALPHA)


@pytest.mark.slow
def test_right_sampling_is_accused_in_no_more_than_alpha_of_audits():
    looks = [("product", "substitute"), ("product", "add_remove"), ("length", "substitute"), ("length", "add_remove")]
    looks.append(("not seen yet", "substitute"))
    accused = 0
    for seed in range(50):
        look, adjacency = looks[seed % len(looks)]
        asked = {"look": look, "noise_multiplier": zoo_audits.LITTLE, "steps": 400}
        _, at = zoo_audits.record_as_canary(zoo.ZOO["right"], adjacency=adjacency, seed=seed, **asked)
        accused += at is not None
    assert accused <= binom.ppf(0.999, 50, zoo_audits.ALPHA)


def script_refuted_at(optimizer, seed, records=1280):
    task = data.digits(n_train=records)
    x, y = torch.tensor(task.x_train), torch.tensor(task.y_train)
    law = {"sample_rate": 4 / records, "noise_multiplier": 2.0}
    model, optimizer, loader = faulty_training.prepare(x, y, **law, seed=seed, kind=optimizer)
    auditor = audit_optimizer(optimizer, delta=1e-5, adjacency="substitute", sample_rate=4 / records, seed=seed)
    faulty_training.train(model, optimizer, loader, epochs=1)
    assert auditor.steps == records // 4
    return auditor.refuted_at


@pytest.mark.parametrize("records", slow_but([400, 1280], 400))
def test_the_script_with_half_the_noise_is_found_within_an_epoch_and_the_mended_one_is_not(records):
    assert script_refuted_at(MicrobatchOptimizer, 0, records) <= records // 4
    assert script_refuted_at(MendedOptimizer, 0, records) is None


@pytest.mark.slow
def test_half_the_noise_is_found_within_an_epoch_on_digits():
    found = [script_refuted_at(MicrobatchOptimizer, seed) is not None for seed in range(20)]
    assert sum(found) >= binom.ppf(0.001, 20, 0.9)


@pytest.mark.slow
def test_noise_of_1_57_for_1_27_is_found_within_ten_thousand_observations():
    claimed, true = gdp_mu(1.27, 1e-5), gdp_mu(1.57, 1e-5)
    trainer, right = zoo.scaled_noise(claimed / true), zoo.ZOO["right"]
    asked = {"noise_multiplier": 1 / claimed, "adjacency": "substitute", "steps": 10_000, "stop": True}
    after = [zoo_audits.canary_alone(trainer, seed=seed, **asked).refuted_at for seed in range(5)]
    assert sum(one is not None for one in after) >= 4
    assert not zoo_audits.canary_alone(right, seed=0, **asked).refuted
