"""Stores of audits of training functions are as strict as those of audits: what dpsub does not write is refused."""

import json
import random
import shutil
from copy import deepcopy
from hashlib import sha256

import numpy as np
import pytest
import trainings_of_others as others
from numcodecs import Zstd

from dpsub import audit_training, audits
from dpsub.audits.plans import fingerprint
from dpsub.audits.storage.contents import WHERE_FROM, vouched

OPTIONS = {"runs": 12, "adjacency": "substitute", "name": "two scores", "seed": 3, "steps": others.STEPS}
OPTIONS |= {"parameters": {"of": "tests", "sample_rate": 0.5}, "progress": False}
NOT_OURS = r"store must be as dpsub writes it, got .*audit\.zarr.*, whose .* is not: "
pytestmark = pytest.mark.filterwarnings("ignore:.* runs failed")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    place = tmp_path_factory.mktemp("training") / "audit.zarr"
    found = audit_training(others.fails_at_times, store=place, **OPTIONS)
    return place, found.attrs["failed_runs"]


@pytest.fixture
def store(made, tmp_path):
    return shutil.copytree(made[0], tmp_path / "audit.zarr")


def change(store, act, files=()):
    """Change documents and files, and write checksums that are right again."""
    found = {path.relative_to(store).as_posix(): json.loads(path.read_bytes()) for path in store.rglob("zarr.json")}
    act(found)
    about = {
        name: value
        for name, value in found["zarr.json"]["attributes"].items()
        if name not in WHERE_FROM and not name.startswith("version_")
    }
    contents = dict(files)
    entries = [name for name in found if name.startswith("shards/") and name.count("/") == 2]
    contents |= {name: json.dumps(found[name]).encode() for name in found if name not in ("zarr.json", *entries)}
    for name in ("zarr.json", *entries):
        attributes = found[name]["attributes"]
        if name != "zarr.json":
            attributes["audit"] = fingerprint(about)
        for file in attributes["files"] if isinstance(attributes.get("files"), dict) else ():
            if file in contents:
                attributes["files"][file] = sha256(contents[file]).hexdigest()
        contents[name] = vouched(found[name])
    for name, content in contents.items():
        (store / name).parent.mkdir(parents=True, exist_ok=True)
        (store / name).write_bytes(content)


def test_an_unchanged_store_passes(store):
    expected = audits.load(store)
    change(store, lambda found: None)
    assert audits.load(store).equals(expected)


@pytest.mark.parametrize(
    ("attributes", "told"),
    [
        ({"trained_by": "nobody"}, "trained_by must be one of 'own function'"),
        ({"name": ""}, "name must be a text"),
        ({"name": None}, "'name' must be a text"),
        ({"runs": 12.0}, "runs must be a whole number"),
        ({"runs": 10**9}, "runs must be a whole number"),
        ({"seed": -1}, "seed must be a whole number"),
        ({"adjacency": "none"}, "adjacency must be one of"),
        ({"observed_steps": [4, 2]}, "steps must be increasing"),
        ({"observed_steps": [2, True]}, "observed_steps must be a whole number"),
        ({"observed_steps": 2}, "observed_steps must be a list"),
        ({"observed_steps": [2, 5]}, "'step' has numbers that no audit has"),
        ({"parameters": "of"}, "'sample_rate' is not an attribute"),
        ({"parameters": "of of sample_rate"}, "parameters must be names in order"),
        ({"parameters": "of q sample_rate"}, "'q' is missing"),
        ({"parameters": "of sample_rate seed"}, "other than an audit's own"),
        ({"sample_rate": [0.5]}, "parameters must be a mapping"),
        ({"sample_rate": float("nan")}, "parameters must be a mapping"),
        ({"more": 1}, "'more' is not an attribute"),
        ({"device": 1}, "device must be a text"),
        ({"version_torch": 1}, "version_torch must be a text"),
        ({"models_stored": -1}, "models_stored must be a whole number"),
    ],
)
def test_other_attributes_are_refused(store, attributes, told):
    change(store, lambda found: found["zarr.json"]["attributes"].update(attributes))
    for call in (audits.load, audits.status):
        with pytest.raises(ValueError, match=f"{NOT_OURS}.*{told}"):
            call(store)


@pytest.mark.parametrize(
    ("failed", "told"),
    [
        ({}, "failed must name failed runs"),
        ([], "failed must name failed runs"),
        ({"0": 1}, "failed of '0' must be a text"),
        ({"99": "a"}, "failed must name runs from"),
        ({"a": "a"}, "failed must name runs from"),
    ],
)
def test_other_failures_are_refused(store, made, failed, told):
    name = f"shards/{made[1][0]}/zarr.json"
    change(store, lambda found: found[name]["attributes"].update(failed=failed))
    with pytest.raises(ValueError, match=f"{NOT_OURS}{told}"):
        audits.load(store)


def test_failed_runs_have_no_scores_and_others_have_them(store, made):
    failed = made[1][0]
    fine = next(run for run in range(12) if run not in made[1])
    for run, numbers in ((failed, [1.0, 2.0]), (fine, [np.nan, 1.0])):
        forged = shutil.copytree(store, store.with_name(f"{run}-audit.zarr"))
        content = Zstd(level=3).encode(np.array(numbers, "<f4").tobytes())
        change(forged, lambda found: None, {f"score/c/{run}/0": content})
        with pytest.raises(ValueError, match="'score' has numbers that no audit has"):
            audits.load(forged)


def test_runs_of_dpsubs_own_trainers_do_not_fail(run, tmp_path):
    store = tmp_path / "audit.zarr"
    run(store=store, runs=2)
    change(store, lambda found: found["shards/0/zarr.json"]["attributes"].update(failed={"0": "no luck"}))
    with pytest.raises(ValueError, match=f"{NOT_OURS}failed must not be there"):
        audits.load(store)
    change(store, lambda found: found["zarr.json"]["attributes"].update(trained_by="own function"))
    with pytest.raises(ValueError, match=NOT_OURS):
        audits.load(store)


def test_links_and_files_of_others_are_refused(store, tmp_path):
    mine = tmp_path / "mine"
    mine.write_text("mine")
    shutil.rmtree(store / "shards/3")
    (store / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"store must hold only its audit to be written, got .* with 'notes\.txt'"):
        audit_training(others.two_scores, store=store, **OPTIONS)
    (store / "notes.txt").unlink()
    (store / "shards/3").symlink_to(mine)
    for repair in (False, True):
        with pytest.raises(ValueError, match="link"):
            audit_training(others.two_scores, store=store, repair=repair, **OPTIONS)
    assert mine.read_text() == "mine"


def test_damage_is_told_and_repaired(store, flip):
    expected = audits.load(store)
    for name in ("score/c/3/0", "bit/c/5", "shards/7/zarr.json", "zarr.json", "step/zarr.json"):
        flip(store / name, 90)
        with pytest.raises(ValueError, match=rf"(?s)store is damaged, .*{name}.*repair=True"):
            audit_training(others.fails_at_times, store=store, **OPTIONS)
        assert audit_training(others.fails_at_times, store=store, repair=True, **OPTIONS).equals(expected)


@pytest.mark.slow
def test_random_changes_are_refused_or_say_the_same(store):
    """Any value of any document takes that of another: the answer is the same audit, another, or a sentence."""
    rng = random.Random(0)
    whole = {path.relative_to(store).as_posix(): path.read_bytes() for path in store.rglob("*") if path.is_file()}
    values = [None, 0, -1, 1.5, "a", "", [], {}, True, 2**60, [[]], float("nan"), "own function", ["a"], [1]]

    def spoil(found):
        node = found[rng.choice(sorted(found))]
        while isinstance(node, dict) and node:
            key = rng.choice(sorted(node))
            if not isinstance(node[key], dict) or not node[key] or rng.random() < 0.2:
                node[key] = deepcopy(rng.choice(values))
                return
            node = node[key]

    refused = 0
    for _ in range(400):
        for name, content in whole.items():
            (store / name).write_bytes(content)
        try:
            change(store, spoil)
        except (TypeError, KeyError, AttributeError, ValueError):  # the checksums cannot be written
            continue
        try:
            audits.load(store)
        except ValueError as error:
            refused += str(error).startswith("store")
    assert refused > 200
