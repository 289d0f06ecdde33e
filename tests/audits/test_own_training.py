"""Audits of training functions that are not dpsub's: their law, their seeds, their failures, and their stores."""

import functools
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
import trainings_of_others as others
import xarray as xr
from cases import slow_but
from scipy.stats import ks_2samp

import dpsub
from dpsub import accounting, audit_training, audits, estimators
from dpsub._core.random_streams import stream, torch_seed

TESTS = Path(others.__file__).parent
OPTIONS = {"runs": 60, "adjacency": "substitute", "name": "one normal", "seed": 3, "progress": False}
TWO = OPTIONS | {"name": "two scores", "steps": others.STEPS}
failing = pytest.mark.filterwarnings("ignore:.* runs failed")


def interrupted_at(call, train):
    """The function, with a Ctrl-C at this call; and the seeds that it was called with."""
    seeds = []

    def interrupted(bit, seed):
        seeds.append(seed)
        if len(seeds) == call:
            raise KeyboardInterrupt
        return train(bit, seed)

    return interrupted, seeds


def test_scores_are_those_of_a_plain_loop():
    found = audit_training(others.two_scores, parameters={"sample_rate": np.float32(0.5), "of": "µ"}, **TWO)
    bits = stream(3, "training").integers(0, 2, 60, dtype=np.int8)
    scores = [others.two_scores(int(bit), torch_seed(3, "training", run)) for run, bit in enumerate(bits)]
    np.testing.assert_array_equal(found.bit, bits)
    np.testing.assert_array_equal(found.score, np.array(scores, np.float32))
    assert found.score.dims == ("run", "step")
    assert found.step.values.tolist() == [2, 4]
    about = {"name": "two scores", "adjacency": "substitute", "runs": 60, "seed": 3, "sample_rate": 0.5, "of": "µ"}
    assert about.items() <= found.attrs.items()
    assert found.attrs["version_torch"]
    assert found.attrs["failed_with_z"] == found.attrs["failed_with_z_prime"] == 0
    assert "run" not in found.coords


def test_law_of_scores_is_that_of_a_direct_loop():
    found = audit_training(others.one_normal, **OPTIONS | {"runs": 4000})
    rng = np.random.default_rng(8)
    for bit in (0, 1):
        direct = rng.normal(1 - 2 * bit, size=4000)
        assert ks_2samp(found.score.values[found.bit.values == bit, 0], direct).pvalue > 1e-3
    assert 0.46 < float(found.bit.mean()) < 0.54


def test_coins_and_seeds_are_the_audits_own():
    seen = []

    def train(bit, seed):
        seen.append((bit, seed))
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002, which some training functions use
        return 0.0

    audit_training(train, **OPTIONS)
    few = list(seen)
    seen.clear()
    audit_training(train, **OPTIONS | {"runs": 90})
    assert seen[:60] == few
    assert all(type(bit) is int and type(seed) is int and 0 <= seed < 2**32 for bit, seed in seen)
    assert len({seed for _, seed in seen}) == 90
    seen.clear()
    audit_training(train, **OPTIONS | {"seed": 4})
    assert not set(seen) & set(few)


def test_estimators_take_the_result():
    # ±1 and noise of 1: the Gaussian mechanism at twice the sensitivity
    truth = accounting.epsilon(noise_multiplier=1.0, sample_rate=1, steps=1, delta=1e-5, adjacency="substitute")
    found = audit_training(others.one_normal, **OPTIONS | {"runs": 500})
    bound = estimators.epsilon_lower_bound(found.score.isel(step=-1), found.bit, delta=1e-5)
    assert truth / 3 < bound.epsilon < truth


@pytest.mark.parametrize(("train", "steps"), [(others.deaf, None), (others.deaf_but_for_rounding, [1, 2])])
def test_runs_of_a_training_that_ignores_its_seed_are_told_and_no_bound_of_them_is_valid(train, steps, store):
    options = OPTIONS | {"runs": 200, "steps": steps}
    with pytest.warns(UserWarning, match="^all runs of a world have the same score, whatever their seed") as told:
        found = audit_training(train, store=store, **options)
    assert told[0].filename == __file__
    with pytest.warns(UserWarning, match="all runs of a world"):
        loaded = audits.load(store)
    assert loaded.identical(found)
    for one in (found, loaded.isel(run=slice(3, 90))):
        for found_at in dpsub.bound(one, delta=1e-5):
            assert found_at.epsilon > 3
            assert not found_at.valid
            assert "whatever their seed" in found_at.note
    assert not estimators.epsilon_lower_bound(found.score[:, 0], found.bit, delta=1e-5).valid
    assert not estimators.risk_lower_bound(found.score[:, 0], found.bit).valid


@pytest.mark.parametrize("seeds", slow_but([10, 50], 10))
@pytest.mark.parametrize("train", [others.right_of_ten, others.one_normal])
def test_scores_of_few_values_are_no_sign_of_a_seed_that_is_ignored(train, seeds):
    for seed in range(seeds):
        found = audit_training(train, **OPTIONS | {"seed": seed})
        assert "seed_ignored" not in found.coords
        assert dpsub.bound(found, delta=1e-5)[0].valid


def test_an_interrupted_run_is_all_that_is_trained_again(store):
    expected = audit_training(others.one_normal, **OPTIONS)
    interrupted, calls = interrupted_at(41, others.one_normal)
    with pytest.raises(KeyboardInterrupt, match="40 of 60 models are in"):
        audit_training(interrupted, store=store, **OPTIONS)
    status = audits.status(store)
    assert (status.audit, status.stored, status.models, status.complete) == ("one normal", 40, 60, False)
    with pytest.raises(ValueError, match="store must be complete, got .* with 40 of 60 models"):
        audits.load(store)
    found = audit_training(interrupted, store=store, **OPTIONS)
    assert found.equals(expected)
    assert audits.load(store).identical(found)
    assert audit_training(interrupted, store=store, **OPTIONS).identical(found)
    assert len(calls) == 61


def test_load_all_takes_them_by_scenario_or_name(tmp_path):
    for name, parameters in (("a", {"sample_rate": 0.5}), ("b", {"sample_rate": 0.5, "scenario": "S4"})):
        options = OPTIONS | {"name": name, "parameters": parameters}
        audit_training(others.one_normal, store=tmp_path / f"{name}.db", **options)
    assert set(audits.load_all(tmp_path)) == {("q = 0.5", "a"), ("q = 0.5", "S4")}


def test_another_audit_is_refused_with_the_difference(store):
    given = {"sample_rate": 0.5, "fine": True}
    audit_training(others.one_normal, parameters=given, store=store, **OPTIONS)
    for change, told in (
        ({"name": "other"}, "name: stored 'one normal', asked for 'other'"),
        ({"seed": 4}, "seed: stored 3, asked for 4"),
        ({"parameters": given | {"fine": 1}}, "fine: stored True, asked for 1"),
        ({"parameters": given | {"more": 1}}, "more: stored nothing, asked for 1"),
    ):
        with pytest.raises(ValueError, match=f"(?s)store holds another audit, .*{told}"):
            audit_training(others.one_normal, store=store, **{"parameters": given, **OPTIONS, **change})


def of_rate(rate):
    calls = []

    def train(bit, seed):
        calls.append(seed)
        return rate * others.one_normal(bit, seed)

    return train


def shifted(bit, seed, by):
    return by + others.one_normal(bit, seed)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(others.one_normal, others.slow, id="function"),
        pytest.param(of_rate(1.0), of_rate(2.0), id="closure"),
        pytest.param(functools.partial(shifted, by=1), functools.partial(shifted, by=2), id="partial"),
    ],
)
def test_another_function_is_refused_unless_failed_runs_are_tried_again(one, other, store):
    found = audit_training(one, store=store, **OPTIONS)
    assert audit_training(one, store=store, **OPTIONS).identical(found)
    with pytest.raises(ValueError, match="another audit, .*\n  train: stored 'code and constants .*\n.* its code"):
        audit_training(other, store=store, **OPTIONS)
    assert audit_training(other, store=store, retry=True, **OPTIONS).identical(found)


def failures(attributes):
    names = ("failed_runs", "failed_messages", "failed_with_z", "failed_with_z_prime")
    return [attributes[name] for name in names]


def test_runs_that_fail_cost_themselves_alone(store):
    whole = audit_training(others.two_scores, **TWO)
    seeds = [torch_seed(3, "training", run) for run in range(60)]
    wrong = [run for run, seed in enumerate(seeds) if not (seed % 5 and seed % 7 and seed % 3)]
    with pytest.warns(
        UserWarning, match=rf"{len(wrong)} of 60 runs failed, \d+ with z and .*depend on the world"
    ) as told:
        found = audit_training(others.fails_at_times, store=store, **TWO)
    assert told[0].filename == __file__
    kept = np.setdiff1d(range(60), wrong)
    assert found.run.values.tolist() == kept.tolist()
    np.testing.assert_array_equal(found.score, whole.score.values[kept])
    np.testing.assert_array_equal(found.bit, whole.bit.values[kept])
    runs, messages, with_z, with_z_prime = failures(found.attrs)
    assert runs == wrong
    assert [with_z, with_z_prime] == np.bincount(whole.bit.values[wrong]).tolist()
    for told in (
        "RuntimeError: no luck with ",
        "train's scores must be finite numbers in float32, got nan",
        r"train's scores must have shape \(2,\), got",
    ):
        assert any(re.search(told, message) for message in messages)
    with pytest.warns(
        UserWarning, match=rf"^{len(wrong)} of 60 runs failed, \d+ with z and .*depend on the world"
    ) as told:
        assert audits.load(store).identical(found)
    assert told[0].filename == __file__
    with pytest.warns(UserWarning, match=rf"^audit\.db: {len(wrong)} of 60 runs failed") as told:
        (one,) = audits.load_all(store.parent, label="{name}").values()
    assert one.identical(found)
    assert told[0].filename == __file__
    assert f"60 of 60 models, {len(wrong)} failed, complete" in str(audits.status(store))
    with pytest.warns(UserWarning, match="runs failed"):  # stay as they are
        assert audit_training(others.fails_at_times, store=store, **TWO).identical(found)
    assert audit_training(others.two_scores, store=store, retry=True, **TWO).equals(whole)
    assert audits.load(store).equals(whole)


@failing
def test_a_retry_that_is_killed_loses_no_run_that_was_fine(store, killed_after):
    options = TWO | {"runs": 12, "store": store}
    whole = audit_training(others.two_scores, **options | {"store": None})
    failed = audit_training(others.fails_at_times, **options).attrs["failed_runs"]
    for done in (0, 1, 1):
        killed_after(lambda: audit_training(others.two_scores, retry=True, **options), done)
        failed = failed[done:]
        status = audits.status(store)
        assert (status.stored, status.failed, status.damaged) == (12, len(failed), ())
        assert audits.load(store).attrs["failed_runs"] == failed
    assert audit_training(others.two_scores, retry=True, **options).equals(whole)


@failing
def test_runs_that_are_stored_together_find_the_same_numbers(store, monkeypatch):
    expected = audit_training(others.fails_at_times, **TWO)
    monkeypatch.setattr("dpsub.audits.own_training.MOST_SHARDS", 7)
    interrupted, _ = interrupted_at(31, others.fails_at_times)
    with pytest.raises(KeyboardInterrupt, match="27 of 60 models are in"):
        audit_training(interrupted, store=store, **TWO)
    found = audit_training(interrupted, store=store, **TWO)
    assert found.equals(expected)
    assert failures(found.attrs) == failures(expected.attrs)
    with closing(sqlite3.connect(store)) as database:
        assert database.execute("SELECT count(*) FROM shards").fetchone() == (7,)
    assert audits.load(store).identical(found)
    whole = audit_training(others.two_scores, **TWO)
    assert audit_training(others.two_scores, store=store, retry=True, **TWO).equals(whole)


@pytest.mark.parametrize(
    ("returned", "told"),
    [
        (float("inf"), "train's scores must be finite numbers in float32, got inf"),
        ([1.0, 2.0], r"train's scores must have shape \(1,\), got \(2,\)"),
        (torch.ones((), requires_grad=True), "Use tensor.detach"),
        (np.ma.masked_all(1), "must not be masked"),
    ],
)
def test_if_all_runs_fail_the_first_message_is_the_error(returned, told, store):
    options = OPTIONS | {"runs": 3}
    for place in (None, store):
        with pytest.raises(ValueError, match=f"train must not fail in every run, got 3 failures.*{told}"):
            audit_training(lambda bit, seed: returned, store=place, **options)
    with pytest.raises(ValueError, match="train must not fail in every run"):
        audits.load(store)
    assert audit_training(others.one_normal, store=store, retry=True, **options).sizes["run"] == 3


@pytest.mark.parametrize("returned", [1, np.float16(1), np.array(1.0), [1.0], (1,), torch.ones(1), xr.DataArray(1.0)])
def test_numbers_of_any_kind_are_scores(returned):
    found = audit_training(lambda bit, seed: returned, **OPTIONS | {"runs": 2})
    assert found.score.values.tolist() == [[1.0], [1.0]]


@pytest.mark.parametrize(
    ("train", "told"),
    [
        (None, "got None"),
        (lambda bit: 0.0, "too many positional arguments"),
        (lambda bit, seed, more: 0.0, "missing a required argument: 'more'"),
        (lambda seed, bit: 0.0, "got .* of seed, bit: exchange them"),
    ],
)
def test_a_function_of_another_signature_is_refused_before_any_training(train, told, store):
    with pytest.raises(ValueError, match=rf"train must be called as train\(bit, seed\).*{told}"):
        audit_training(train, store=store, **OPTIONS)
    assert not store.exists()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"name": " "}, "name must be a text that is not empty"),
        ({"steps": [0, 2]}, "steps must be whole numbers >= 1, got 0"),
        ({"parameters": {"seed": 1}}, "other than an audit's own attributes, got 'seed'"),
        ({"parameters": {"version_torch": 1}}, "other than an audit's own attributes, got 'version_torch'"),
    ],
)
def test_arguments_out_of_range_are_refused(change, told):
    with pytest.raises(ValueError, match=told):
        audit_training(others.one_normal, **OPTIONS | change)


def test_progress_names_the_audit_and_counts_failures(capsys):
    with pytest.warns(UserWarning, match="runs failed"):
        audit_training(others.fails_at_times, **TWO | {"progress": True})
    shown = capsys.readouterr().err
    assert "two scores" in shown
    assert "60/60" in shown
    assert re.search(r"\d+ failed", shown)


KILLED = """
import sys, dpsub, trainings_of_others as others
if __name__ == "__main__":
    options = {"runs": 60, "adjacency": "substitute", "name": "one normal", "seed": 3, "progress": False}
    client = None
    if (workers := int(sys.argv[2])) > 1:
        from distributed import Client
        client = Client(n_workers=workers, threads_per_worker=1, host="127.0.0.1", dashboard_address="127.0.0.1:0")
    dpsub.audit_training(others.slow, store=sys.argv[1], client=client, **options)
"""


def begun(store, processes):
    """A process that audits into a store."""
    script = store.with_name("script.py")
    script.write_text(KILLED)
    path = os.pathsep.join([str(TESTS), str(Path(dpsub.__file__).parents[1])])
    command, environment = [sys.executable, script, store, str(processes)], {**os.environ, "PYTHONPATH": path}
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


def stored(store):
    """How many runs a store holds, which may not be there yet."""
    with suppress(ValueError):
        return audits.status(store).stored
    return 0


def stopped(store, how, moments, processes=1):
    """End an audit by a signal when it has stored so many more runs, each time; it then goes on to the same numbers."""
    rng, counts = np.random.default_rng(), []
    for more in moments:
        before = stored(store)
        process = begun(store, processes)
        while process.poll() is None and stored(store) < before + more:
            time.sleep(0.001)
        time.sleep(rng.uniform(0, 0.05))
        workers = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        process.send_signal(how)
        told = process.communicate(timeout=60)[1]
        assert not psutil.wait_procs(workers, timeout=20)[1], "workers outlive the audit"
        assert how == signal.SIGKILL or re.search(
            r"KeyboardInterrupt: \d+ of 60 models are in .*audit\.db; the same", told
        )
        status = audits.status(store)
        assert not status.damaged
        assert not status.being_written
        counts.append(status.stored)
    print(f"runs stored when stopped: {counts}")
    assert 0 < counts[0] < 60
    assert counts == sorted(counts)
    assert audit_training(others.slow, store=store, **OPTIONS).equals(audit_training(others.one_normal, **OPTIONS))


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_kill_9_at_ten_random_moments_changes_no_bit(store, processes):
    stopped(store, signal.SIGKILL, np.random.default_rng().integers(1, 6, 10), processes)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_ctrl_c_keeps_finished_runs_and_says_how_many(store, processes):
    stopped(store, signal.SIGINT, [5, 10], processes)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
def test_an_opacus_training_has_the_law_of_the_same_audit():
    options = {"adjacency": "substitute", "name": "Opacus head", "parameters": {"steps": others.SPEC.steps}}
    theirs = audit_training(others.opacus_head, runs=400, seed=1, progress=False, **options)
    ours = dpsub.audit(
        *others.digits(), others.SPEC, runs=4000, observe_every=others.SPEC.steps, device="cpu", progress=False
    )
    for bit in (0, 1):
        scores = [one.score.values[one.bit.values == bit, -1] for one in (theirs, ours)]
        p = ks_2samp(*scores).pvalue
        print(f"bit {bit}: {[len(one) for one in scores]} models, p = {p:.3f}")
        assert p > 1e-3
    apart = [one.score.values[theirs.bit.values == bit, -1] for bit, one in ((0, theirs), (1, theirs))]
    assert ks_2samp(*apart).pvalue < 1e-3, "the canary is not seen, so equal laws say nothing"
