import numpy as np
import pytest

from dpsub import CanaryPair


def test_a_pair_against_nothing_keeps_z_and_says_its_adjacency():
    pair = CanaryPair(z=np.ones(3, np.float32), z_prime=-np.ones(3, np.float32), slot=1, scenario="S2")
    assert pair.adjacency == "substitute"
    for adjacency in ("add_remove", "zero_out"):
        alone = pair.against_nothing(adjacency=adjacency)
        assert alone.adjacency == adjacency
        np.testing.assert_array_equal(alone.z, pair.z)
        assert alone.z_prime.shape == (3,)
        assert not alone.z_prime.any()
    with pytest.raises(ValueError, match="z_prime must be empty .* got None under 'substitute'"):
        pair.against_nothing(adjacency="substitute")


def test_a_pair_of_records_is_scored_by_their_logits():
    x = np.ones((1, 2, 2))
    pair = CanaryPair(z=(x, 3), z_prime=(x, np.int64(4)), slot=1, scenario="S4")
    assert pair.score == "logit"
    assert pair.z.x.dtype == np.float32
    assert pair.z_prime.y == 4
    alone = pair.against_nothing(adjacency="add_remove")
    assert alone.z_prime is None
    assert alone.z.y == 3
    told = "slot 1, 'S4', "
    assert repr(pair) == f"CanaryPair(records (1, 2, 2) labelled 3 and 4, {told}'substitute', {pair.fingerprint})"
    assert repr(alone) == f"CanaryPair(records (1, 2, 2) labelled 3, {told}'add_remove', {alone.fingerprint})"
    assert CanaryPair(z=np.ones(3), z_prime=-np.ones(3), slot=1, scenario="S2").score == "displacement"


def test_exchanged_worlds_are_each_other():
    x = np.ones(3, np.float32)
    for z, z_prime in (((x, 0), (2 * x, 1)), (x, -x), (x, np.array([1, -1, 0], np.float32))):
        pair = CanaryPair(z, z_prime, 4, "S3", details={"cosine": -1.0}, task="t")
        other = pair.exchanged()
        for mine, its in ((other.z, pair.z_prime), (other.z_prime, pair.z)):
            assert all(np.array_equal(a, b) for a, b in zip(mine, its, strict=True))
        assert other.fingerprint != pair.fingerprint
        assert other.exchanged().fingerprint == pair.fingerprint
        assert (other.slot, other.scenario, other.details, other.task) == (4, "S3", {"cosine": -1.0}, "t")


def test_a_fingerprint_changes_with_all_that_tells_worlds_apart():
    x = np.ones(2, np.float32)
    pair = {"z": (x, 0), "z_prime": (x, 1), "slot": 4, "scenario": "S4"}
    changes = (
        {},
        {"z": (2 * x, 0)},
        {"z": (x, 2)},
        {"z_prime": (2 * x, 1)},
        {"z_prime": (x, 2)},
        {"slot": 5},
        {"z_prime": None, "adjacency": "add_remove"},
        {"z_prime": None, "adjacency": "zero_out"},
        {"z": x, "z_prime": -x},
    )
    fingerprints = [CanaryPair(**{**pair, **change}).fingerprint for change in changes]
    assert len(set(fingerprints)) == len(changes)
    named = CanaryPair(**{**pair, "scenario": "mine", "details": {"cosine": 0.5}})
    assert named.fingerprint == fingerprints[0]


def test_worlds_that_cannot_be_exchanged_are_named():
    alone = CanaryPair(([1.0], 0), None, 0, "S4", adjacency="zero_out")
    with pytest.raises(ValueError, match="adjacency must be 'substitute' for worlds to be exchanged, got 'zero_out'"):
        alone.exchanged()


def test_none_empties_the_slot_beside_a_gradient_too():
    pair = CanaryPair(z=[1.0, 0.0], z_prime=None, slot=0, scenario="S2", adjacency="add_remove")
    assert pair.z_prime.tolist() == [0.0, 0.0]
    crossed = CanaryPair(z=[1.0, 0.0], z_prime=[-1.0, 0.0], slot=0, scenario="S2")
    assert crossed.against_nothing(adjacency="add_remove").fingerprint == pair.fingerprint


def test_a_pair_keeps_copies():
    x, z = np.ones(2, np.float32), np.ones(3, np.float32)
    pairs = CanaryPair((x, 0), (x, 1), 0, "S4"), CanaryPair(z, -z, 0, "S2")
    before = [pair.fingerprint for pair in pairs]
    x[:], z[:] = np.nan, np.nan
    assert [pair.fingerprint for pair in pairs] == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"adjacency": "foo"}, "adjacency must be one of"),
        ({"adjacency": "add_remove"}, r"z_prime must be empty \(None or a gradient of 0\) if and only if"),
        ({"z_prime": [0.0, 0.0]}, "z_prime must be empty .* if and only if .*, got .* under 'substitute'"),
        ({"z_prime": None}, "z_prime must be empty .* if and only if .*, got None under 'substitute'"),
        ({"z_prime": ([1.0, 0.0], 3)}, "z and z_prime must both be gradients or both be records"),
        ({"z_prime": [-1.0]}, "inhomogeneous"),
        ({"z": ([1.0, 0.0],)}, r"z, if it is no record \(x, y\), must have shape"),
        ({"z": ([1.0, float("nan")], 3)}, "z's features must be finite numbers"),
        ({"z": [1.0, 1e39]}, r"z, if .*, must be finite numbers in float32, got 1e\+39"),
        ({"z": [0.0, 0.0]}, "z must not be 0"),
        ({"z": [-1.0, 0.0]}, "z_prime must differ from z"),
        ({"z": ([1.0], 2), "z_prime": ([1.0], 2)}, "z_prime must differ from z"),
        ({"z": ([1.0, 0.0], -3)}, "z's label must be >= 0, got -3"),
        ({"slot": -1}, "slot must be >= 0, got -1"),
    ],
)
def test_a_pair_that_is_not_what_it_says_is_refused(change, message):
    pair = {"z": [1.0, 0.0], "z_prime": [-1.0, 0.0], "slot": 0, "scenario": "S2"}
    assert CanaryPair(**pair).z.dtype == np.float32
    with pytest.raises(ValueError, match=message):
        CanaryPair(**{**pair, **change})
