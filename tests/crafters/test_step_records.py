"""Canaries that are records, crafted anew at each step for the models as they are."""

import itertools
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
from cases import slow_but
from naive_pairs import clipped
from torch.nn.functional import cosine_similarity, cross_entropy
from torch.nn.utils import parameters_to_vector

from dpsub import crafters, data
from dpsub.crafters.reference_model import gradient_of
from dpsub.crafters.step_records import Turning
from dpsub.trainers.step_canaries import StepCanary

KINDS = ["mislabeled", "blank", "adversarial", "crafted"]
NAMES = ["linear", "mlp", "convnet", "module"]


def modules(bank):
    return [bank.model.module(parameters) for parameters in bank.model.flat(bank.theta)]


ADDED = [*itertools.product(NAMES, KINDS)]


@pytest.mark.parametrize(("name", "kind"), slow_but(ADDED, *ADDED[::5], *ADDED[3:15:3]))
def test_gradients_are_what_training_on_the_records_adds(targets, bank_of, spec, name, kind):
    task, model = targets[name]
    canary = crafters.record_each_step(task, model, spec(), kind=kind, seed=1)
    assert isinstance(canary, StepCanary)
    bank = bank_of(name, runs=2, max_grad_norm=0.5)
    x, y = canary.record(bank, 4)
    found = canary.gradients(bank, 4)
    assert found.support == slice(None)
    for run, theta in enumerate(model.flat(bank.theta)):
        own = x[0] if len(x) == 1 else x[run]
        by_hand = [clipped(model, theta, own.numpy(), label, 0.5).float() for label in range(task.num_classes)]
        torch.testing.assert_close(found.z[run], by_hand[y], rtol=1e-3, atol=1e-5)
        others = by_hand[:y] + by_hand[y + 1 :]
        distances = [float((found.z[run] - other).norm()) for other in others]
        assert float((found.z[run] - found.z_prime[run]).norm()) == pytest.approx(max(distances), rel=1e-3)
        assert max(distances) > 0.1
    for worlds in (found.z, found.z_prime):
        assert (worlds.norm(dim=1) <= 0.5 * (1 + 1e-6)).all()


def test_models_train_and_craft_without_dropout(targets, bank_of, spec):
    task, model = targets["module"]
    bank = bank_of("module")
    canary = crafters.record_each_step(task, model, spec(), kind="crafted", seed=0)
    state = bank.generator.get_state()
    one, again = (canary.gradients(bank, 1).z for _ in range(2))
    assert torch.equal(one, again)
    assert torch.equal(bank.generator.get_state(), state)


def test_records_are_crafted_for_each_model_as_it_is(targets, bank_of, spec):
    task, model = targets["mlp"]
    for kind in ("adversarial", "crafted"):
        canary = crafters.record_each_step(task, model, spec(), kind=kind, seed=0, target=0)
        early, late = bank_of("mlp", runs=2, steps=0), bank_of("mlp", runs=2, steps=5)
        found = [canary.record(bank, 1)[0] for bank in (early, late)]
        assert len(torch.cat(found).unique(dim=0)) == 4
    canary = crafters.record_each_step(task, model, spec(), kind="mislabeled", seed=0)
    assert not torch.equal(canary.gradients(early, 1).z, canary.gradients(late, 1).z)
    assert torch.equal(canary.record(early, 1)[0], canary.record(late, 1)[0])


def test_records_are_drawn_anew_and_the_same_seed_draws_the_same(targets, bank_of, spec):
    task, model = targets["linear"]
    bank = bank_of("linear")
    pool = {record.tobytes(): int(y) for record, y in zip(task.x_aux, task.y_aux, strict=True)}
    assert len(pool) == len(task.y_aux)
    one, same, other = (
        crafters.record_each_step(task, model, spec(), kind="mislabeled", seed=seed) for seed in (1, 1, 2)
    )
    drawn = [one.record(bank, step) for step in range(1, 41)]
    wrong = {(y - pool[x[0].numpy().tobytes()]) % 10 for x, y in drawn}
    assert 0 not in wrong
    assert len(wrong) > 6
    assert len({x[0].numpy().tobytes() for x, _ in drawn}) > 30
    for step in (1, 2, 40):
        x, y = same.record(bank, step)
        assert torch.equal(x, drawn[step - 1][0])
        assert y == drawn[step - 1][1]
    assert any(not torch.equal(other.record(bank, step)[0], drawn[step - 1][0]) for step in (1, 2, 3))
    assert one.fingerprint == same.fingerprint != other.fingerprint


def test_blank_records_are_zero_and_have_any_label(targets, bank_of, spec):
    task, model = targets["convnet"]
    canary = crafters.record_each_step(task, model, spec(), kind="blank", seed=0)
    drawn = [canary.record(bank_of("convnet", steps=0), step) for step in range(1, 31)]
    assert not any(x.any() for x, _ in drawn)
    assert drawn[0][0].shape == (1, 1, 16, 16)
    assert {y for _, y in drawn} == {0, 1, 2}


def test_a_target_is_kept(targets, bank_of, spec):
    task, model = targets["linear"]
    canary = crafters.record_each_step(task, model, spec(), kind="mislabeled", seed=0, target=5)
    drawn = [canary.record(bank_of("linear"), step) for step in (1, 2, 3, 4)]
    for x, y in drawn:
        np.testing.assert_array_equal(x[0].numpy(), task.x_aux[5])
        assert y != task.y_aux[5]
    assert len({y for _, y in drawn}) > 1


def test_against_nothing_keeps_z_and_empties_the_other_world(targets, bank_of, spec):
    task, model = targets["mlp"]
    bank = bank_of("mlp", runs=3)
    for kind in KINDS:
        canary = crafters.record_each_step(task, model, spec(), kind=kind, seed=0)
        alone = canary.against_nothing(adjacency="zero_out")
        assert canary.adjacency == "substitute"
        assert alone.adjacency == "zero_out"
        assert alone.gradients(bank, 2).z_prime is None
        assert torch.equal(alone.gradients(bank, 2).z, canary.gradients(bank, 2).z)
        assert alone.fingerprint != canary.fingerprint
        assert canary.scenario == alone.scenario == kind


def test_fingerprint_changes_with_all_that_determines_the_canary(targets, spec):
    task, model = targets["linear"]
    canary = crafters.record_each_step(task, model, spec(), kind="adversarial", seed=0)
    changes = {
        "kind": "crafted", "x": canary.x + 1, "y": canary.y[::-1], "classes": 11, "target": 2, "seed": 1, "slot": 99,
        "task": "another", "change": replace(canary.change, steps=3),
    }  # fmt: skip
    found = {canary.fingerprint, *(replace(canary, **{name: value}).fingerprint for name, value in changes.items())}
    assert len(found) == 10
    assert deepcopy(canary).fingerprint == canary.fingerprint


def test_what_was_chosen_is_reported(targets, spec):
    task, model = targets["linear"]

    def details(**options):
        return crafters.record_each_step(task, model, spec(), seed=3, **options).details

    count = len(task.y_aux)
    with pytest.raises(ValueError, match="radius must be left out for kind 'crafted', got 0.2"):
        details(kind="crafted", radius=0.2)
    assert details(kind="blank") == {"kind": "blank", "seed": 3, "records": 1}
    assert details(kind="adversarial", radius=0.2) == {
        "kind": "adversarial", "seed": 3, "records": count, "crafting_steps": 10, "crafting_rate": 0.05, "radius": 0.2,
    }  # fmt: skip


def test_tasks_without_other_records_are_refused(targets, spec):
    task, model = targets["linear"]
    bare = data.from_arrays(task.x_train, task.y_train, num_classes=10)
    with pytest.raises(ValueError, match="task must have auxiliary or test records to start from, got neither"):
        crafters.record_each_step(bare, model, spec(), kind="crafted", seed=0)
    assert crafters.record_each_step(bare, model, spec(), kind="blank", seed=0).details["records"] == 1
    tested = replace(bare, x_test=task.x_aux[:5], y_test=task.y_aux[:5])
    started = crafters.record_each_step(tested, model, spec(), kind="crafted", seed=0)
    np.testing.assert_array_equal(started.x, task.x_aux[:5])


def cross_entropy_of_each(outputs, labels):
    return cross_entropy(outputs, labels, reduction="none")


def cosine_by_hand(module, task):
    """Makes |cos| of a record's gradient with the mean gradient of the auxiliary records."""

    def gradient(x, y):
        loss = cross_entropy(module(x), y)
        return parameters_to_vector(torch.autograd.grad(loss, list(module.parameters())))

    dtype = next(module.parameters()).dtype
    others = gradient(torch.tensor(task.x_aux, dtype=dtype), torch.tensor(task.y_aux))
    return lambda x, y: abs(float(cosine_similarity(gradient(x[None], torch.tensor([y])), others, dim=0)))


@pytest.mark.parametrize("name", slow_but(NAMES, "mlp", "module"))
def test_crafted_gradients_are_more_orthogonal_to_those_of_others(targets, bank_of, spec, name):
    task, model = targets[name]
    bank = bank_of(name)
    [module] = modules(bank)
    canary = crafters.record_each_step(task, model, spec(), kind="crafted", seed=0)
    cosine = cosine_by_hand(module, task)
    before, after = [], []
    for step in range(1, 6):
        x, y = canary.record(bank, step)
        start = replace(canary, change=None).record(bank, step)
        assert start[1] == y
        before.append(cosine(start[0][0], y))
        after.append(cosine(x[0], y))
    assert (np.array(after) <= np.array(before) + 1e-6).all()
    assert np.mean(after) < 0.5 * np.mean(before)


def test_descent_is_algorithm_3_as_long_as_it_falls(targets, bank_of, spec):
    task, model = targets["mlp"]
    bank = bank_of("mlp")
    [module] = modules(bank)
    canary = crafters.record_each_step(
        task, model, spec(), kind="crafted", seed=0, steps=2, learning_rate=0.5, target=3
    )
    y, by_hand = int(task.y_aux[3]), cosine_by_hand(module.double(), task)

    def cosine(x):
        return by_hand(torch.tensor(x), y)

    x, h, path = task.x_aux[3].astype(np.float64), 1e-5, []
    for _ in range(2):
        path.append(cosine(x))
        x = x - 0.5 * np.array([(cosine(x + h * e) - cosine(x - h * e)) / (2 * h) for e in np.eye(len(x))])
    assert path[0] > path[1] > cosine(x)
    found, label = canary.record(bank, 1)
    assert label == y
    np.testing.assert_allclose(found[0].numpy(), x, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_adversarial_records_raise_the_loss_within_their_radius(targets, bank_of, spec, name):
    task, model = targets[name]
    bank = bank_of(name, runs=2)
    canary = crafters.record_each_step(task, model, spec(), kind="adversarial", seed=0)
    radius = canary.details["radius"]
    assert radius == pytest.approx(float(np.ptp(task.x_aux)) * 8 / 255)
    for step in (1, 2, 3):
        x, y = canary.record(bank, step)
        start = replace(canary, change=None).record(bank, step)[0][0]
        away = (x - start).flatten(1)
        length = away.abs().amax(dim=1)
        assert (length <= radius * (1 + 1e-4)).all()
        assert (length > 0.5 * radius).all()
        for own, module in zip(x, modules(bank), strict=True):
            losses = cross_entropy_of_each(module(torch.stack([start, own])), torch.tensor([y, y]))
            assert losses[1] > losses[0]


def test_a_record_without_a_gradient_is_not_taken():
    """So far out a head is sure of the label, and the gradient is 0, which is orthogonal to everything."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = torch.nn.Linear(4, 3)
        label, others = torch.tensor([1]), (np.random.default_rng(0).normal(size=(9, 4)), np.arange(9) % 3)
        others = (others[0].astype(np.float32), others[1])
        for _ in range(5):
            found = Turning(20, 1e5)(module, cross_entropy_of_each, torch.randn(4), label, others)
            assert gradient_of(module, cross_entropy_of_each, found[None], label).norm() > 0.1
