import copy
from dataclasses import replace

import numpy as np
import pytest

from dpsub import CanaryPair, data, models


@pytest.fixture(scope="module")
def arrays():
    """Records with arrays, and ways to each of their arrays."""
    task = data.digits(n_train=20)
    network = models.mlp(task, (4,))
    start = network.starting_from(np.ones(network.parameters))
    z = np.eye(1, 5)[0]
    gradients = CanaryPair(z, -z, 0, "S2")
    records = CanaryPair((np.ones(3), 0), (np.zeros(3), 0), 0, "S4")
    parts = ("x_train", "y_train", "x_aux", "y_aux", "x_test", "y_test", "pixels")
    return [
        *((task, lambda record, part=part: getattr(record, part)) for part in parts),
        (start, lambda record: record.theta_0),
        (gradients, lambda record: record.z),
        (gradients, lambda record: record.z_prime),
        (gradients.against_nothing(adjacency="add_remove"), lambda record: record.z_prime),
        (records, lambda record: record.z.x),
        (records, lambda record: record.z_prime.x),
    ]


def test_arrays_of_frozen_records_cannot_be_changed(arrays):
    for record, array_of in arrays:
        for one in (record, copy.deepcopy(record), replace(record)):
            with pytest.raises(ValueError, match="read-only"):
                array_of(one)[...] = 7
            np.testing.assert_array_equal(array_of(one), array_of(record))


def test_changes_to_the_callers_arrays_do_not_reach_them():
    x, y, z = np.ones((4, 3), np.float32), np.zeros(4, np.int64), np.eye(1, 5, dtype=np.float32)[0]
    task = data.Task(x, y, x, y, x, y, 2, "mine")
    pair = CanaryPair(z, -z, 0, "S2", details={"cosine": 1.0})
    seen = z.view()
    seen.flags.writeable = False  # a read-only view of an array that can be changed
    other = CanaryPair(seen, -z, 0, "S2")
    x[:], z[:] = 5, 0
    assert task.x_train.max() == task.x_test.max() == 1
    assert pair.z.max() == other.z.max() == 1


def test_a_start_that_was_changed_by_force_has_another_name():
    network = models.mlp(data.digits(n_train=20), (4,))
    start = network.starting_from(np.ones(network.parameters))
    before = repr(start)
    assert before == repr(network.starting_from(np.ones(network.parameters))) != repr(network)
    start.theta_0.flags.writeable = True
    start.theta_0[0] = 2
    assert repr(start) != before


@pytest.mark.parametrize("about", [{"scenario": ""}, {"scenario": None}, {"task": 3}])
def test_names_are_texts(about):
    with pytest.raises(ValueError, match=f"{next(iter(about))} must be a text that is not empty, got"):
        CanaryPair(np.ones(2), -np.ones(2), 0, **{"scenario": "S2", **about})
