"""Stores of audits of one training: interrupted, resumed, refused, damaged, packed."""

from dataclasses import replace
from itertools import count

import numpy as np
import pytest
import xarray as xr

from dpsub import DPSGD, Pairs, audit, audit_one_run, audit_steps, audits, crafters, data, models
from dpsub._core.random_streams import stream
from dpsub.audits import one_run_blocks, one_run_plans, shards
from dpsub.trainers import ScoredSteps

SPEC = DPSGD(noise_multiplier=2.0, max_grad_norm=0.5, sample_rate=0.4, steps=3, learning_rate=0.1)
OPTIONS = {"models": 300, "metrics": ("accuracy", "weights"), "seed": 3, "device": "cpu", "progress": False}


@pytest.fixture(scope="module")
def task():
    return data.digits(n_train=40)


@pytest.fixture(scope="module")
def model(task):
    return models.linear(task)


@pytest.fixture(scope="module")
def pairs(task, model):
    return crafters.gradient_pairs(task, model, SPEC, pairs=6, seed=0)


@pytest.fixture
def store(tmp_path):
    return tmp_path / "audit.zarr"


@pytest.fixture
def call(task, model, pairs, store):
    """An audit of three blocks into one store; what is given takes the place of the usual arguments."""

    def run(store=store, task=task, model=model, pairs=pairs, spec=SPEC, **options):
        return audit_one_run(task, model, pairs, spec, store=store, **{**OPTIONS, **options})

    return run


@pytest.fixture(scope="module")
def expected(task, model, pairs):
    return audit_one_run(task, model, pairs, SPEC, **OPTIONS)


@pytest.fixture
def forbid_training(monkeypatch):
    """From the call on, whatever trains fails."""
    return lambda: monkeypatch.setattr(one_run_blocks, "assemble_pairs", None)


@pytest.fixture
def trained(monkeypatch):
    """The numbers of the blocks that are trained."""
    found, train = [], shards.train_one_run_block

    def noted(plan, block, *arguments):
        found.append(block)
        return train(plan, block, *arguments)

    monkeypatch.setattr(shards, "train_one_run_block", noted)
    return found


def interrupt(patch, where, name, after):
    """Let Ctrl-C come at a later call of this function."""
    original, calls = getattr(where, name), count()

    def interrupted(*arguments, **options):
        if next(calls) == after:
            raise KeyboardInterrupt
        return original(*arguments, **options)

    patch.setattr(where, name, interrupted)


def test_a_stored_audit_is_the_same_audit_and_is_read_the_second_time(call, store, expected, forbid_training):
    first = call()
    assert first.equals(expected)
    assert first.attrs.items() >= expected.attrs.items()
    assert (first.attrs["models_stored"], first.attrs["audited"]) == (300, "one run")
    forbid_training()
    assert call().identical(first)
    assert audits.load(store).identical(first)
    with xr.open_zarr(store) as opened:
        assert opened.equals(expected)
        assert opened.slot.dims == ("pair",)
        assert opened.attrs.items() >= first.attrs.items()
    assert audits.load_all(store.parent, label="{models} models")["300 models", "S2"].identical(first)


@pytest.mark.parametrize("metrics", [(), ("accuracy",), ("weights",)])
def test_records_and_every_choice_of_metrics_are_stored_too(call, task, store, metrics):
    x, y = task.x_train[:3], task.y_train[:3]
    details = {"cosine": np.float32(0.5), "of": "the tests"}
    pairs = Pairs([0, 7, 2], x, x, y, (y + 1) % 10, scenario="mine", details=details)
    options = {"pairs": pairs, "models": 2, "metrics": metrics, "whiten": 2, "spec": replace(SPEC, sample_rate=1.0)}
    made = call(**options)
    assert made.equals(call(store=None, **options))
    assert audits.load(store).identical(made)
    assert (made.attrs["pairs_cosine"], made.attrs["pairs_of"]) == (0.5, "the tests")
    assert np.array_equal(made.slot, [0, 7, 2])


def test_an_interrupted_audit_goes_on_to_the_same_numbers(call, store, expected, monkeypatch, trained):
    with monkeypatch.context() as patch:
        interrupt(patch, shards, "train_one_run_block", after=2)
        with pytest.raises(KeyboardInterrupt, match=r"256 of 300 models are in .*audit\.zarr; the same call goes on"):
            call()
    assert (audits.status(store).stored, audits.status(store).complete) == (256, False)
    with xr.open_zarr(store) as opened:
        assert int((opened.bit < 0).sum()) == 44 * 6
        assert int(opened.score.isnull().sum()) == 44 * 6
    with pytest.raises(ValueError, match="store must be complete, got .* with 256 of 300 models"):
        audits.load(store)
    trained.clear()
    assert call().equals(expected)
    assert trained == [2]
    assert audits.load(store).equals(expected)
    shown = str(audits.status(store))
    assert "audit.zarr: 6 pairs of S2 on digits, 300 of 300 models, complete, " in shown


def test_a_single_training_that_is_interrupted_begins_anew(call, store, monkeypatch):
    with monkeypatch.context() as patch:
        interrupt(patch, ScoredSteps, "advance", after=2)
        with pytest.raises(KeyboardInterrupt, match="0 of 1 models are in"):
            call(models=1)
    assert not audits.status(store).complete
    assert call(models=1).equals(call(store=None, models=1))
    assert audits.status(store).stored == 1


def test_a_writer_that_is_killed_goes_on_to_the_same_numbers(call, tmp_path, dies_after, monkeypatch):
    with monkeypatch.context() as patch:
        operations = dies_after(patch, 10**6)
        expected = call(store=tmp_path / "whole.zarr", models=130)
        needed = next(operations)
    for n in range(1, needed, 11):
        place = tmp_path / f"killed-{n}.zarr"
        with monkeypatch.context() as patch:
            dies_after(patch, n)
            with pytest.raises(dies_after.error):
                call(store=place, models=130)
        assert call(store=place, models=130).equals(expected)


def test_blocks_beyond_128_are_stored_together(call, store, monkeypatch):
    for module in (one_run_plans, one_run_blocks):
        monkeypatch.setattr(module, "block_size", lambda model: 1)
    options = {"models": 130, "metrics": (), "spec": replace(SPEC, steps=1)}
    found = call(**options)
    assert len(list(store.glob("shards/*/zarr.json"))) == 65
    assert found.isel(model=slice(3)).equals(call(store=None, **options | {"models": 3}))
    for number in (0, 1, 64, 129):
        tossed = stream(3, "one_run", number).integers(0, 2, (1, 6), dtype=np.int8)
        assert np.array_equal(found.bit[number], tossed[0])


def test_another_audit_is_refused_and_the_difference_is_shown(call, task, model, pairs, store, expected):
    call()
    few = {name: getattr(pairs, name) for name in ("support", "parameters", "task", "scenario", "details")}
    for change, told in (
        ({"models": 301}, "models: stored 300, asked for 301"),
        ({"seed": 4}, "seed: stored 3, asked for 4"),
        ({"spec": replace(SPEC, noise_multiplier=2.1)}, r"noise_multiplier: stored 2\.0, asked for 2\.1"),
        ({"metrics": ("accuracy",)}, "metrics: stored 'accuracy weights', asked for 'accuracy'"),
        ({"metrics": ()}, "test_fingerprint: stored '.*', asked for nothing"),
        ({"whiten": 2}, "whiten: stored 0, asked for 2"),
        ({"subtract_expected": False}, "subtract_expected: stored 1, asked for 0"),
        ({"matmul_precision": "high"}, "matmul_precision: stored 'highest', asked for 'high'"),
        ({"pairs": replace(pairs, scenario="mine")}, "scenario: stored 'S2', asked for 'mine'"),
        ({"pairs": replace(pairs, details={"seed": 1})}, "pairs_seed: stored 0, asked for 1"),
        ({"pairs": replace(pairs, z=pairs.z_prime, z_prime=pairs.z)}, "pairs_fingerprint: stored '"),
        ({"pairs": replace(pairs, slots=pairs.slots[::-1])}, "pairs_fingerprint: stored '"),
        ({"pairs": Pairs(pairs.slots[:5], pairs.z[:5], pairs.z_prime[:5], **few)}, "pairs: stored 6, asked for 5"),
        ({"task": replace(task, y_test=(task.y_test + 1) % 10)}, "test_fingerprint: stored"),
    ):
        with pytest.raises(ValueError, match=f"(?s)store holds another audit, .*audit.zarr:.*{told}.*give another"):
            call(**change)
    assert call(spec=replace(SPEC, noise_multiplier=2.0 * (1 + 1e-9))).equals(expected), "up to rounding"


def test_audits_of_other_functions_are_told_apart(call, task, model, pairs, store, tmp_path):
    call(models=2)
    quiet = {"device": "cpu", "progress": False}
    with pytest.raises(ValueError, match=r"stored by dpsub\.audit_one_run, asked for by dpsub\.audit\n"):
        audit(task, model, pairs[0], SPEC, runs=2, store=store, **quiet)
    with pytest.raises(ValueError, match=r"stored by dpsub\.audit_one_run, asked for by dpsub\.audit_steps\n"):
        audit_steps(task, model, pairs[0], SPEC, store=store, **quiet)
    audit(task, model, pairs[0], SPEC, runs=2, store=tmp_path / "other.zarr", **quiet)
    with pytest.raises(ValueError, match=r"stored by dpsub\.audit, asked for by dpsub\.audit_one_run\n"):
        call(store=tmp_path / "other.zarr")


DAMAGE = {
    "score/c/1/0": [1],
    "step_score/c/0/0": [0],
    "bit/c/1/0": [1],
    "shards/0/zarr.json": [0],
    "slot/c/0": [],
    "slot/zarr.json": [],
    "zarr.json": [],
}


def test_damage_is_found_and_only_what_is_lost_is_trained_again(call, store, flip, trained):
    options = {"models": 130, "metrics": ()}
    made = call(**options)
    for name, lost in DAMAGE.items():
        flip(store / name, 90)
        function = "audit" if name == "zarr.json" else "audit_one_run"  # the root says which it was
        with pytest.raises(ValueError, match=rf"(?s)store is damaged.*{name} is .*\n{function}\(\.\.\., repair=True\)"):
            call(**options)
        assert list(audits.status(store).damaged) == [name]
        trained.clear()
        assert call(**options, repair=True).equals(made)
        assert trained == lost
        assert audits.status(store).complete


def test_a_packed_audit_is_read_like_its_folder(call, store, forbid_training):
    made = call(models=3)
    packed = audits.pack(store)
    forbid_training()
    for place in (store, packed):
        assert call(store=place, models=3).identical(made)
        assert audits.load(place).identical(made)
        assert audits.status(place).complete
    with pytest.raises(ValueError, match="store holds another audit"):
        call(models=4)


def test_progress_counts_steps_and_begins_where_the_store_is(call, capsys, monkeypatch):
    with monkeypatch.context() as patch:
        interrupt(patch, shards, "train_one_run_block", after=2)
        with pytest.raises(KeyboardInterrupt):
            call()
    call(progress=True)
    shown = capsys.readouterr().err
    assert "6 pairs of S2 on digits" in shown
    assert "900/900" in shown
    assert "steps/s" in shown
    assert "0/900" not in shown.replace("900/900", "")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"repair": 1}, "repair must be True or False, got 1"),
        ({"allow_mix": None}, "allow_mix must be True or False, got None"),
        ({"store": 3}, "store must be a path in the file system, got 3"),
        ({"client": 3}, "client must be a dask.distributed.Client that is .* got 3"),
        ({"models": 0}, "models must be >= 1 and <= 1000000, got 0"),
    ],
)
def test_bad_input_leaves_nothing_behind(call, tmp_path, change, told):
    with pytest.raises(ValueError, match=told):
        call(**change)
    assert not list(tmp_path.iterdir())
