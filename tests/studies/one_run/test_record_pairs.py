import numpy as np
import pytest

from dpsub import DPSGD, crafters, data, models
from studies.one_run.pairs import natural_pairs, unused_feature_pairs

SPEC = DPSGD(1.0, 0.5, 0.5, 10, 0.3)


@pytest.fixture(scope="module")
def task():
    digits = data.digits(n_train=60)
    x, x_aux = (np.pad(one, ((0, 0), (0, 9))) for one in (digits.x_train, digits.x_test[:30]))  # 9 unused features
    return data.from_arrays(x, digits.y_train, x_aux=x_aux, y_aux=digits.y_test[:30], num_classes=10)


def test_natural_pairs_are_those_of_the_crafter_and_no_auxiliary_record_serves_two(task):
    model = models.linear(task)
    pairs = natural_pairs(task, model, SPEC, pairs=30, seed=1)
    first = crafters.natural(task, model, SPEC, seed=1, target=int(pairs.slots[0]))
    assert pairs[0].fingerprint == first.fingerprint
    assert pairs.scenario == "S5"
    assert len(set(pairs.trace["auxiliary"].tolist())) == 30
    assert np.array_equal(pairs.z_prime, task.x_aux[pairs.trace["auxiliary"]])
    with pytest.raises(ValueError, match="pairs must be <= 30, the number of auxiliary records, got 31"):
        natural_pairs(task, model, SPEC, pairs=31, seed=0)


def test_unused_features_are_touched_by_one_pair_alone(task):
    model = models.linear(task)
    unused = np.flatnonzero(~task.x_train.any(axis=0))
    pairs = unused_feature_pairs(task, model, SPEC, pairs=len(unused), seed=0, value=3)
    assert sorted(pairs.trace["feature"].tolist()) == unused.tolist()
    assert (pairs.z.sum(axis=1) == 3).all()
    assert np.array_equal(pairs.z, pairs.z_prime)
    assert (pairs.y != pairs.y_prime).all()
    assert (pairs.details["value"], pairs.details["unused"]) == (3.0, len(unused))
    usual = unused_feature_pairs(task, model, SPEC, pairs=2, seed=0)
    assert usual.details["value"] == task.x_train.max()
