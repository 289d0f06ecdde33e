import copy

import numpy as np
import pytest

from dpsub import CanaryPair, Pairs, Record

X = np.arange(12.0).reshape(4, 3)
RECORDS = {"slots": [5, 0, 9, 2], "z": X, "z_prime": X + 1, "y": [0, 1, 2, 0], "y_prime": [0, 1, 2, 1]}
GRADIENTS = {"slots": [3, 1], "z": np.eye(2), "z_prime": -np.eye(2), "support": [4, 2], "parameters": 6}


def test_single_pairs_and_pairs_turn_into_each_other():
    singles = [CanaryPair((X[i], i), (X[i] + 1, i), 7 - i, "S4", task="a") for i in range(4)]
    pairs = Pairs.of(singles)
    assert len(pairs) == 4
    assert pairs.of_records
    assert (pairs.scenario, pairs.task, pairs.adjacency) == ("S4", "a", "substitute")
    assert [one.fingerprint for one in pairs] == [one.fingerprint for one in singles]
    assert pairs[-1].slot == 4
    assert isinstance(pairs[0].z, Record)
    assert Pairs.of(pairs) is pairs
    assert Pairs.of(list(pairs)).fingerprint == pairs.fingerprint


@pytest.mark.parametrize(
    ("given", "what"), [(RECORDS, "4 pairs of records (3,)"), (GRADIENTS, "2 pairs of gradients (6,)")]
)
def test_pairs_print_in_a_line(given, what):
    pairs = Pairs(**given, scenario="wrong")
    assert repr(pairs) == f"Pairs({what}, 'wrong', {pairs.fingerprint})"
    assert repr(pairs[0]).startswith("CanaryPair(")
    assert "\n" not in repr(pairs[0])


def test_gradients_are_kept_at_the_parameters_where_one_is_not_0():
    rows = np.zeros((2, 9), np.float32)
    rows[0, 4], rows[1, 7] = 0.5, 2
    pairs = Pairs.of([CanaryPair(row, -row, slot, "S2") for slot, row in enumerate(rows)])
    assert pairs.support.tolist() == [4, 7]
    assert (pairs.z.shape, pairs.parameters) == ((2, 2), 9)
    for i, row in enumerate(rows):
        assert np.array_equal(pairs[i].z, row)
        assert np.array_equal(pairs[i].z_prime, -row)


def test_arrays_are_copies_that_cannot_be_changed():
    mine = X.copy()
    pairs = Pairs(**RECORDS | {"z": mine})
    mine[:] = 0
    assert pairs.z[1, 0] == 3
    assert not pairs.z.flags.writeable
    assert copy.deepcopy(pairs).fingerprint == pairs.fingerprint


def test_the_fingerprint_changes_with_everything_that_training_sees():
    known = {Pairs(**RECORDS).fingerprint, Pairs(**GRADIENTS).fingerprint}
    for change in ({"slots": [5, 0, 9, 3]}, {"z": X + 2}, {"y": [1, 1, 2, 0]}, {"y_prime": [0, 1, 2, 2]}):
        known.add(Pairs(**RECORDS | change).fingerprint)
    for change in ({"support": [4, 3]}, {"parameters": 7}, {"z": np.eye(2) / 2}):
        known.add(Pairs(**GRADIENTS | change).fingerprint)
    assert len(known) == 9


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"slots": [5, 0, 9, 5]}, "slots must be one index or more, all different, got .5 0 9 5."),
        ({"slots": [5, 0, 9, -1]}, "slots must be whole numbers >= 0"),
        ({"slots": []}, "slots must be one index or more"),
        ({"slots": [5, 0, 9]}, r"z must have shape \(3, features, ...\), got \(4, 3\)"),
        ({"z": X * np.nan}, r"z must be finite numbers in float32, got nan \(12 of 12"),
        ({"z_prime": X[:, :2]}, r"z_prime must have shape \(4, 3\), got \(4, 2\)"),
        ({"z_prime": X, "y_prime": [1, 1, 2, 1]}, "z_prime must differ from z: .* equal ones in pair 1"),
        ({"y_prime": None}, "y and y_prime must be given for records, or support and parameters for gradients"),
        ({"support": [0, 1, 2]}, "y and y_prime must be given for records, or support and parameters for gradients"),
        ({"y": [0, 1, 2]}, r"y must have shape \(4,\), got \(3,\)"),
        ({"details": {"fingerprint": 1}}, "details must be numbers or texts, with names other"),
    ],
)
def test_pairs_that_are_none_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        Pairs(**RECORDS | change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"support": [4, 4]}, "support must be different parameters, got .4 4."),
        ({"support": [4]}, r"support must have shape \(2,\), got \(1,\)"),
        ({"parameters": 4}, "support must be whole numbers >= 0 and < 4, got 4"),
        ({"z_prime": np.eye(2)}, "equal ones in pair 0"),
        ({"z_prime": np.diag([1, 0])}, "z_prime must not be 0, as an empty slot is, got 0 in pair 1"),
        ({"z": np.diag([0, 1])}, "z must not be 0, as an empty slot is, got 0 in pair 0"),
    ],
)
def test_gradients_that_fit_no_parameters_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        Pairs(**GRADIENTS | change)


def single(slot=0, scenario="S4", task="a", x=X[0]):
    return CanaryPair((x, 0), (x, 1), slot, scenario, task=task)


GRADIENT = CanaryPair(np.ones(3), -np.ones(3), 4, "S4", task="a")


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ([single(0)], "slots must be one index or more, all different, got .0 0."),
        ([single(1, "S5")], "pairs must be of one scenario, got 'S4' and 'S5'"),
        ([single(1, task="b")], "pairs must be of one task, got 'a' and 'b'"),
        ([single(1).against_nothing(adjacency="zero_out")], "pairs must be of one adjacency"),
        ([single(1, x=X[0, :2])], "must have the same shape"),
        ([GRADIENT], "pairs must be of one parameters, got 3 and None"),
        ([3], "pairs must be one dpsub.CanaryPair or more, or a dpsub.Pairs, got .* 3]"),
    ],
)
def test_pairs_that_do_not_go_together_are_refused(others, message):
    with pytest.raises(ValueError, match=message):
        Pairs.of([single(), *others])


def test_what_is_no_pairs_at_all_is_refused():
    for nothing in ([], None, "S4"):
        with pytest.raises(ValueError, match="pairs must be one dpsub.CanaryPair or more, or a dpsub.Pairs"):
            Pairs.of(nothing)
    alone = [single().against_nothing(adjacency="zero_out")]
    with pytest.raises(ValueError, match="pairs must be under 'substitute', where a coin exchanges one record, got"):
        Pairs.of(alone)
