from dataclasses import replace

import numpy as np
import pytest

from dpsub import crafters, data, models


def test_test_records_stand_in_for_auxiliary_ones(targets, spec):
    task, model = targets["linear"]
    without = data.from_arrays(task.x_train, task.y_train, x_test=task.x_aux[:5], y_test=task.y_aux[:5], num_classes=10)
    canary = crafters.record_each_step(without, model, spec(), kind="crafted", seed=0)
    assert canary.details["records"] == 5
    np.testing.assert_array_equal(canary.x, task.x_aux[:5])


def test_what_was_chosen_is_reported(targets, spec):
    task, model = targets["linear"]

    def details(**options):
        return crafters.record_each_step(task, model, spec(), seed=3, **options).details

    count = len(task.y_aux)
    assert details(kind="blank") == {"kind": "blank", "seed": 3, "records": 1}
    assert details(kind="crafted", steps=7, learning_rate=2, target=1) == {
        "kind": "crafted", "seed": 3, "records": count, "target": 1, "crafting_steps": 7, "crafting_rate": 2.0,
    }  # fmt: skip
    assert details(kind="adversarial", radius=0.2, ball="l2") == {
        "kind": "adversarial", "seed": 3, "records": count, "crafting_steps": 10, "crafting_rate": 0.05, "ball": "l2",
        "radius": 0.2,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "dirac"}, "kind must be one of 'mislabeled', 'blank', 'adversarial', 'crafted', got 'dirac'"),
        ({"kind": "crafted", "seed": -1}, "seed must be >= 0, got -1"),
        ({"kind": "crafted", "steps": 0}, "steps must be >= 1, got 0"),
        ({"kind": "crafted", "learning_rate": 0.0}, r"learning_rate must be > 0, got 0\.0"),
        ({"kind": "adversarial", "radius": -1}, "radius must be > 0, got -1"),
        ({"kind": "adversarial", "ball": "l1"}, "ball must be one of 'linf', 'l2', got 'l1'"),
        ({"kind": "crafted", "ball": "l2"}, "ball must be left out for kind 'crafted', got 'l2'"),
        ({"kind": "mislabeled", "steps": 3}, "steps must be left out for kind 'mislabeled', got 3"),
        ({"kind": "blank", "target": 0}, "target must be left out for kind 'blank', got 0"),
        ({"kind": "mislabeled", "target": 10**6}, "target must be >= 0 and <= .*, got 1000000"),
        ({"kind": "mislabeled", "spec": None}, r"spec must be a dpsub\.DPSGD, got a NoneType"),
    ],
)
def test_bad_arguments_are_named(targets, spec, options, message):
    task, model = targets["linear"]
    arguments = {"spec": spec(), "seed": 0} | options
    with pytest.raises(ValueError, match=message):
        crafters.record_each_step(task, model, **arguments)


def test_tasks_without_other_records_are_refused(targets, spec):
    task, model = targets["linear"]
    bare = data.from_arrays(task.x_train, task.y_train, num_classes=10)
    with pytest.raises(ValueError, match="task must have auxiliary or test records to start from, got neither"):
        crafters.record_each_step(bare, model, spec(), kind="crafted", seed=0)
    assert crafters.record_each_step(bare, model, spec(), kind="blank", seed=0).details["records"] == 1
    known = replace(task, x_aux=task.x_train[:9], y_aux=task.y_train[:9])
    with pytest.raises(ValueError, match="auxiliary records that are not private ones, got 9 of 9"):
        crafters.record_each_step(known, model, spec(), kind="mislabeled", seed=0)
    alike = replace(task, x_aux=np.full_like(task.x_aux, 0.5))
    with pytest.raises(ValueError, match="radius must be given where all features of all records are equal"):
        crafters.record_each_step(alike, model, spec(), kind="adversarial", seed=0)


def test_models_of_words_cannot_be_crafted_for(module_of, spec):
    task, module = module_of("gru")
    task = replace(task, x_aux=1 - task.x_train, y_aux=task.y_train)
    model = models.from_module(module, task)
    assert crafters.record_each_step(task, model, spec(), kind="mislabeled", seed=0).kind == "mislabeled"
    for kind in ("adversarial", "crafted"):
        with pytest.raises(ValueError, match="model must be differentiable by its records' features"):
            crafters.record_each_step(task, model, spec(), kind=kind, seed=0)


def test_rates_too_large_are_named(targets, spec):
    task, model = targets["linear"]
    with pytest.raises(ValueError, match="learning_rate must be small enough that crafting does not diverge"):
        crafters.record_each_step(task, model, spec(), kind="crafted", seed=0, learning_rate=1e39)
