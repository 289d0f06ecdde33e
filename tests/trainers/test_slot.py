import itertools

import numpy as np
import pytest
import torch
from cases import slow_but
from naive_pairs import clipped

from dpsub import CanaryPair
from dpsub.trainers.devices import matmul_precision

CANARIES = ("gradient", "record")
every_model = pytest.mark.parametrize("name", ["linear", "mlp", "convnet", "large convnet"])
# Full batches, and batches gathered by themselves; each optimizer has met both in the comparison with Opacus.
TRAININGS = {"sgd": {"sample_rate": 1.0, "learning_rate": 0.3}, "adam": {"sample_rate": 0.3, "learning_rate": 0.003}}
RUNS = {"sgd": 4, "adam": 24}  # twins differ in their batches' coins only where there are any


CASES = [*itertools.product(("linear", "mlp", "convnet"), TRAININGS, CANARIES, ("substitute", "add_remove"))]
LONG = [case for case in CASES if case[:2] == ("convnet", "adam") and case[2:] != ("gradient", "substitute")]


@pytest.mark.parametrize(
    ("name", "optimizer", "kind", "adjacency"), slow_but(CASES, *(case for case in CASES if case not in LONG))
)
def test_scores_speak_for_z(bank_of, canary_of, spec, name, optimizer, kind, adjacency):
    setting, runs = spec(noise_multiplier=1e-3, optimizer=optimizer, **TRAININGS[optimizer]), RUNS[optimizer]
    pair = canary_of(name, kind)
    if adjacency != "substitute":
        pair = pair.against_nothing(adjacency=adjacency)
    # The same starts, batches and noise in both worlds: what differs is the canary's doing.
    banks = [bank_of(name, setting, [bit] * runs, pair) for bit in (0, 1)]
    for bank in banks:
        list(bank.train())
    difference = (banks[0].scores() - banks[1].scores()).numpy()
    assert difference.mean() > 4 * difference.std() / np.sqrt(runs)


def test_a_gradients_score_is_how_far_models_moved_against_it(bank_of, canary_of, spec):
    setting = spec(max_grad_norm=2.0)
    bank = bank_of("mlp", setting, [0, 1, 1], canary_of("mlp", "gradient", norm=2.0))
    list(bank.train())
    moved = (bank.theta - bank.theta_0)[:, 3]
    torch.testing.assert_close(bank.scores(), -moved, atol=1e-7, rtol=1e-6)


def test_a_pair_that_is_not_opposite_is_scored_along_its_difference(cast, bank_of, spec):
    _, model = cast["mlp"]
    z, z_prime = np.zeros((2, model.parameters), np.float32)
    z[3], z_prime[5] = 2.0, 1.5
    pair = CanaryPair(z, z_prime, 7, "own")
    scores = []
    for shown in (pair, pair.exchanged()):
        bank = bank_of("mlp", spec(max_grad_norm=2.0), [0, 1, 1], shown)
        list(bank.train())
        moved = (bank.theta_0 - bank.theta)[:, [3, 5]]
        expected = moved @ torch.tensor([2.0, -1.5]) / 4 * (1 if shown is pair else -1)
        torch.testing.assert_close(bank.scores(), expected, atol=1e-7, rtol=1e-6)
        scores.append(bank.scores())
    assert scores[0].ne(0).all()


def test_an_orthogonal_pair_is_told_apart_by_both_gradients(cast, bank_of, spec):
    """The worlds lie √2 C apart, z and an empty slot only C."""
    _, model = cast["mlp"]
    z, z_prime = np.zeros((2, model.parameters), np.float32)
    z[3] = z_prime[5] = 2.0
    setting = spec(max_grad_norm=2.0, noise_multiplier=30.0, sample_rate=1.0)
    bits = [0, 1] * 300
    bank = bank_of("mlp", setting, bits, CanaryPair(z, z_prime, 7, "own"))
    list(bank.train())
    moved = (bank.theta_0 - bank.theta)[:, 3]

    def distance(scores):
        zs, others = scores[0::2], scores[1::2]
        return float((zs.mean() - others.mean()) / torch.cat([zs - zs.mean(), others - others.mean()]).std())

    assert distance(bank.scores()) > 1.2 * distance(moved)


def test_a_logit_is_log_odds_and_never_saturates(cast, bank_of, canary_of, spec):
    _, model = cast["linear"]
    pair = canary_of("linear", "record")
    for shown in (pair, pair.against_nothing(adjacency="add_remove")):
        bank = bank_of("linear", spec(), [0, 1], shown)
        bank.theta += torch.randn(bank.theta.shape, generator=bank.generator)
        p = torch.softmax(model.logits(bank.theta, model.inputs(torch.tensor(pair.z.x[None]))), dim=1)[0].double()
        odds, other_odds = (torch.log(p[y] / (1 - p[y])) for y in (pair.z.y, pair.z_prime.y))
        expected = odds - other_odds if shown is pair else odds
        torch.testing.assert_close(bank.scores().double(), expected, atol=1e-4, rtol=1e-4)
        bank.theta *= 1e4
        scores = bank.scores()
        assert torch.isfinite(scores).all()
        assert float(scores.abs().min()) > 1e3


@pytest.mark.parametrize("kind", CANARIES)
@every_model
def test_the_products_of_privatised_and_zs_gradient_are_what_a_watcher_computes(
    cast, bank_of, canary_of, spec, name, kind
):
    _, model = cast[name]
    pair = canary_of(name, kind, norm=0.5)
    bank = bank_of(name, spec(sample_rate=0.6, max_grad_norm=0.5, learning_rate=1.0), [0, 1], pair)
    bank.advance()
    before = model.flat(bank.theta).clone()
    if kind == "record":
        x, y = model.inputs(torch.tensor(pair.z.x[None])), torch.tensor([pair.z.y])
        direction = model.flat(model.clipped_sum(bank.theta, x, y, None, 0.5)).clone()
    else:
        direction = torch.tensor(pair.z).expand(2, -1)
    gradient = bank.slot.gradient(bank)
    bank.advance()
    noisy_average = before - model.flat(bank.theta)  # the learning rate is 1
    torch.testing.assert_close(bank.noisy_average, noisy_average, atol=1e-6, rtol=1e-4)
    expected = (noisy_average * direction).sum(dim=1)
    torch.testing.assert_close(bank.slot.product(bank, gradient), expected, atol=1e-5, rtol=1e-4)


@every_model
def test_the_distance_of_records_is_that_of_their_clipped_gradients(cast, bank_of, canary_of, spec, name):
    _, model = cast[name]
    pair = canary_of(name, "record")
    bank, alone = (
        bank_of(name, spec(max_grad_norm=0.5), [0, 1], shown)
        for shown in (pair, pair.against_nothing(adjacency="zero_out"))
    )
    bank.advance()
    alone.theta.copy_(bank.theta)
    found, found_alone = (each.slot.distance(each) for each in (bank, alone))
    for run, theta in enumerate(model.flat(bank.theta)):
        z, z_prime = (clipped(model, theta, *world, 0.5) for world in (pair.z, pair.z_prime))
        assert float(found[run]) == pytest.approx(float((z - z_prime).norm()), rel=1e-4)
        assert float(found_alone[run]) == pytest.approx(float(z.norm()), rel=1e-4)


@every_model
def test_the_distance_of_crafted_gradients_is_two_clipping_bounds(bank_of, canary_of, spec, name):
    pair = canary_of(name, "gradient")
    for shown, distance in ((pair, 2.0), (pair.against_nothing(adjacency="add_remove"), 1.0)):
        bank = bank_of(name, spec(), [0, 1, 1], shown)
        assert bank.slot.distance(bank).tolist() == pytest.approx([distance] * 3)


def test_gradients_of_several_coordinates_are_added_as_they_are(cast, bank_of, spec):
    """z and z′ need not be opposite, nor touch the same parameters."""
    _, model = cast["mlp"]
    z, z_prime = np.zeros((2, model.parameters), np.float32)
    z[[2, 5]], z_prime[[5, 9]] = (0.6, -0.8), (0.3, 0.1)
    bank = bank_of("mlp", spec(), [0, 1, 0, 1], CanaryPair(z, z_prime, 7, "own"))
    total = torch.ones(4, model.parameters)
    bank.slot.add_to(total, torch.tensor([True, True, False, False]))
    ones = np.ones_like(z)
    np.testing.assert_allclose(total, [ones + z, ones + z_prime, ones, ones], atol=1e-7)


def test_a_gradient_is_never_rounded_where_products_may_be(cast, bank_of, spec):
    _, model = cast["mlp"]
    z = np.random.default_rng(0).normal(size=model.parameters).astype(np.float32)
    bank, total = bank_of("mlp", spec(), [0, 1], CanaryPair(z, -z / 3, 7, "own")), torch.zeros(2, model.parameters)
    with matmul_precision("medium"):
        bank.slot.add_to(total, None)
    np.testing.assert_array_equal(total, [z, -z / 3])
