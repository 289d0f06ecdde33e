"""Many pairs for one training: the private records that they replace, and what each crafter makes of them."""

import numpy as np
import pytest

from dpsub import DPSGD, crafters, data, models
from dpsub.crafters import attribute_pairs, gradient_pairs, mislabeled_pairs
from studies.one_run.pairs import natural_pairs, unused_feature_pairs

SPEC = DPSGD(1.0, 0.5, 0.5, 10, 0.3)


@pytest.fixture(scope="module")
def task():
    digits = data.digits(n_train=60)
    x, x_aux = (np.pad(one, ((0, 0), (0, 9))) for one in (digits.x_train, digits.x_test[:30]))  # 9 unused features
    return data.from_arrays(x, digits.y_train, x_aux=x_aux, y_aux=digits.y_test[:30], num_classes=10)


def test_gradient_pairs_are_on_the_parameters_that_travel_least(task):
    model = models.mlp(task, (4,))
    alone = crafters.gradient(task, model, SPEC, seed=3)
    pairs = gradient_pairs(task, model, SPEC, pairs=25, seed=3)
    travel = alone.trace["travel"]
    assert np.array_equal(np.sort(travel)[:25], pairs.trace["travel"])
    assert np.array_equal(travel[pairs.support], pairs.trace["travel"])
    assert pairs.details["unmoved"] == alone.details["unmoved"]
    assert travel[int(pairs.support[0])] == travel[alone.details["parameter"]]
    assert np.array_equal(pairs.z, np.eye(25) * 0.5)
    assert np.array_equal(pairs.z, -pairs.z_prime)
    assert pairs.parameters == model.parameters


def test_record_pairs_are_those_that_single_crafters_make(task):
    model = models.linear(task)
    wrong = mislabeled_pairs(task, model, SPEC, pairs=6, seed=1)
    for i, one in enumerate(wrong):
        alone = crafters.mislabeled(task, model, SPEC, seed=1, target=one.slot)
        assert one.fingerprint == alone.fingerprint
        assert wrong.trace["cosine"][i] == pytest.approx(alone.details["cosine"])
    changed = attribute_pairs(task, model, SPEC, columns=20, values=(0.0, 0.5, 1.0), pairs=5, seed=1)
    for i, one in enumerate(changed):
        alone = crafters.attribute(task, model, SPEC, columns=20, values=(0.0, 0.5, 1.0), seed=1, target=one.slot)
        assert one.fingerprint == alone.fingerprint
        assert changed.trace["distance"][i] == pytest.approx(alone.details["distance"])
    assert (wrong.scenario, changed.scenario) == ("S4", "S6")


def test_attribute_pairs_take_only_records_that_have_another_value(task):
    column = 20
    low = float(task.x_train[:, column].min())
    able = int((task.x_train[:, column] != low).sum())
    pairs = attribute_pairs(task, models.linear(task), SPEC, columns=column, only=low, pairs=able, seed=0)
    assert (pairs.z[:, column] != low).all()
    assert (pairs.z_prime[:, column] == low).all()
    with pytest.raises(
        ValueError, match=f"pairs must be <= {able}, the private records that can be targets, got {able + 1}"
    ):
        attribute_pairs(task, models.linear(task), SPEC, columns=column, only=low, pairs=able + 1, seed=0)


MAKERS = {
    "gradient": gradient_pairs,
    "mislabeled": mislabeled_pairs,
    "natural": natural_pairs,
    "attribute": lambda *given, **options: attribute_pairs(*given, columns=20, **options),
    "unused feature": unused_feature_pairs,
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_slots_are_distinct_and_random_and_leave_a_record(task, make):
    one, other = (make(task, models.linear(task), SPEC, pairs=5, seed=seed) for seed in (0, 1))
    assert len(set(one.slots.tolist())) == 5
    assert set(one.slots.tolist()) != set(other.slots.tolist())
    assert one.task == task.fingerprint
    with pytest.raises(ValueError, match="pairs must be >= 1 and <= 59, got 60"):
        make(task, models.linear(task), SPEC, pairs=60, seed=0)


def test_too_many_pairs_are_refused():
    small = data.from_arrays(np.random.default_rng(0).normal(size=(60, 2)), np.arange(60) % 2)
    with pytest.raises(ValueError, match="pairs must be <= 6, the number of parameters, got 7"):
        gradient_pairs(small, models.linear(small), SPEC, pairs=7, seed=0)
