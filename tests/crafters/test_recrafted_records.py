from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from dpsub import crafters, models
from dpsub.trainers import StepCanary
from dpsub.trainers.step_canaries import clipped_gradients

KINDS = ["mislabeled", "blank", "adversarial", "crafted"]
NAMES = ["linear", "mlp", "convnet", "module"]


def modules(bank):
    return [bank.model.module(parameters) for parameters in bank.model.flat(bank.theta)]


def clipped_by_hand(bank, module, x, y):
    """The clipped gradient in the order of the bank's parameters."""
    module.zero_grad()
    cross_entropy(module(x[None]), torch.tensor([y])).backward()
    parts = [one.grad.t() if isinstance(bank.model, models.Linear) else one.grad for one in module.parameters()]
    whole = torch.cat([part.flatten() for part in parts])
    return whole * min(1.0, bank.spec.max_grad_norm / (float(whole.norm()) + 1e-6))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_what_training_on_the_records_adds(targets, bank_of, spec, name, kind):
    task, model = targets[name]
    canary = crafters.record_each_step(task, model, spec(), kind=kind, seed=1)
    assert isinstance(canary, StepCanary)
    bank = bank_of(name, runs=2, max_grad_norm=0.5)
    x, y = canary.record(bank, 4)
    found = canary.gradients(bank, 4)
    assert found.support is None
    for run, module in enumerate(modules(bank)):
        own = x[0] if len(x) == 1 else x[run]
        torch.testing.assert_close(found.z[run], clipped_by_hand(bank, module, own, y), rtol=1e-3, atol=1e-5)
        others = [clipped_by_hand(bank, module, own, label) for label in range(task.num_classes) if label != y]
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


def test_banks_of_other_records_are_refused(targets, bank_of, spec):
    task, model = targets["linear"]
    canary = crafters.record_each_step(task, model, spec(), kind="blank", seed=0)
    with pytest.raises(ValueError, match="bank must have models of records"):
        canary.gradients(bank_of("convnet"), 1)


def test_gradients_of_each_models_own_record_are_those_of_one_model_at_a_time(targets, bank_of):
    bank = bank_of("convnet", runs=3)
    x = torch.rand(3, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    together = clipped_gradients(bank, x, 2)
    for run in range(3):
        torch.testing.assert_close(together[run], clipped_gradients(bank, x[run : run + 1], 2)[run])
