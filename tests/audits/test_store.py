"""Whatever happens to the process that writes a store, it goes on to the same numbers."""

import errno
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import xarray as xr

from dpsub import CanaryPair, audits, data, models
from dpsub._core import provenance
from dpsub.audits import bank_plans, plans
from dpsub.audits.store import FORMAT, Database
from dpsub.estimators import epsilon_lower_bound


@pytest.mark.parametrize("repeats", [1, 2])
def test_a_stored_audit_is_the_same_audit_and_is_read_the_second_time(run, store, repeats, forbid_training):
    options = {"metrics": ("accuracy", "distance", "gradient", "weights"), "repeats": repeats}
    expected = run(store=None, **options)
    began = time.monotonic()
    first = run(**options)
    elapsed = time.monotonic() - began
    forbid_training()
    assert first.equals(expected)
    assert first.identical(run(**options))
    assert first.identical(audits.load(store))
    assert first.attrs.items() >= expected.attrs.items()
    assert 0 < first.attrs["wall_seconds"] < elapsed
    assert first.attrs["commit"] == provenance.commit()
    status = audits.status(store)
    assert status.complete
    assert (status.models, status.stored, status.device) == (300 * repeats, 300 * repeats, "cpu")
    assert f"S2 on digits, {300 * repeats} of {300 * repeats} models, complete" in str(status)
    assert list(store.parent.iterdir()) == [store]


def test_networks_and_records_are_stored_too(run, task, tmp_path):
    model = models.mlp(task, (4,))
    pair = CanaryPair((task.x_train[3], 1), (task.x_train[4], 2), 3, "S4", details={"cosine": np.float32(0.5)})
    for name, canary in (("pair", pair), ("nothing", pair.against_nothing(adjacency="add_remove"))):
        found = [
            run(store=store, model=model, canary=canary, runs=5) for store in (None, tmp_path / name, tmp_path / name)
        ]
        assert found[0].equals(found[1])
        assert found[1].identical(found[2])
        assert found[2].attrs["canary_cosine"] == 0.5


def test_a_place_is_the_same_however_it_is_said(run, tmp_path, expected, monkeypatch, forbid_training):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    run(store="~/new folder/audit.db")
    forbid_training()
    assert run(store=Path("new folder/audit.db")).equals(expected)


@pytest.mark.parametrize("shards", [0, 1, 2])
def test_an_audit_that_dies_goes_on_to_the_same_numbers(run, store, expected, killed_after, shards):
    killed_after(run, shards)
    if shards:
        status = audits.status(store)
        assert not status.damaged
        assert 0 < status.stored < 300
    assert run().equals(expected)
    assert audits.status(store).complete


def test_what_is_there_of_an_audit_that_died_is_read_if_asked_for(run, store, killed_after):
    killed_after(run, 2)
    stored = audits.status(store).stored
    with pytest.raises(
        ValueError, match=rf"store must be complete, got .* with {stored} of 300 models: .*partial=True"
    ):
        audits.load(store)
    there = audits.load(store, partial=True)
    assert stored == int((there.bit >= 0).sum())
    assert int(there.score[:, 0].isnull().sum()) == 300 - stored
    with pytest.raises(ValueError, match=f"{300 - stored} of 300 runs are not trained yet.*finish the audit, or drop"):
        epsilon_lower_bound(there.score, there.bit, delta=1e-5)
    trained = there.isel(run=there.bit.values >= 0)
    assert len(epsilon_lower_bound(trained.score, trained.bit, delta=1e-5)) == there.sizes["step"]


IN_A_TRANSACTION = """
import os, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("PRAGMA cache_size = 1")  # pages go to the disk before the transaction ends
connection.execute("BEGIN")
connection.execute("UPDATE shards SET data = zeroblob(300000), made = '{}'")
connection.execute("DELETE FROM about")
os._exit(9)
"""


def test_a_process_that_dies_in_a_transaction_leaves_what_was_there_before(run, store, expected):
    run()
    before = store.read_bytes()
    for read in (lambda: audits.load(store), run):
        subprocess.run([sys.executable, "-c", IN_A_TRANSACTION, store], check=False)
        assert store.with_name("audit.db-journal").exists()
        assert store.read_bytes() != before
        assert read().equals(expected)
        assert audits.status(store).complete
        assert store.read_bytes() == before


KILLED = """
import sys
from dpsub import DPSGD, audit, crafters, data, models

task = data.digits(n_train=100)
model = models.linear(task)
spec = DPSGD(10.0, 2.0, 1.0, 150, 0.01)
canary = crafters.gradient(task, model, spec, seed=0)
options = {"runs": 4_000, "observe_every": 10, "seed": 1, "device": "cpu", "progress": False}
result = audit(task, model, canary, spec, store=sys.argv[1], **options)
result.to_netcdf(sys.argv[2], engine="scipy") if len(sys.argv) > 2 else None
"""


@pytest.mark.slow
def test_kill_9_at_twenty_random_moments_changes_no_bit(tmp_path):
    rng, stored = np.random.default_rng(), []

    def start(store, *more):
        return subprocess.Popen([sys.executable, "-c", KILLED, store, *more])

    assert start(tmp_path / "whole", tmp_path / "whole.nc").wait() == 0
    seconds = audits.status(tmp_path / "whole").wall_seconds
    whole = xr.load_dataset(tmp_path / "whole.nc", engine="scipy")
    for kill in range(20):
        store = tmp_path / f"killed-{kill // 4}"  # each store is killed four times over
        begun = store.stat().st_mtime_ns if store.exists() else 0
        process = start(store)
        while process.poll() is None and not (store.exists() and store.stat().st_mtime_ns != begun):
            time.sleep(0.001)
        time.sleep(rng.uniform(0, seconds / 4))
        process.kill()
        process.wait()
        if store.stat().st_size:
            status = audits.status(store)
            assert not status.damaged
            assert not status.being_written
            stored.append(status.stored)
    print(f"models stored when killed: {stored}")
    assert len(set(stored)) >= 8
    for store in range(5):
        name = f"killed-{store}"
        assert start(tmp_path / name, tmp_path / f"{name}.nc").wait() == 0
        assert xr.load_dataset(tmp_path / f"{name}.nc", engine="scipy").equals(whole)


def during(monkeypatch, act):
    """Does something once the first shard is written."""
    write, done = Database.write, []

    def acting(self, *arguments):
        write(self, *arguments)
        if not done:
            done.append(True)
            act()

    monkeypatch.setattr(Database, "write", acting)


def test_one_process_writes_at_a_time(run, store, expected, monkeypatch):
    told = []

    def meanwhile():
        told.append(str(audits.status(store)))
        with pytest.raises(BlockingIOError, match=r"another process is writing this store.*audit\.db"):
            run()

    during(monkeypatch, meanwhile)
    assert run().equals(expected)
    assert re.search("(128|44) of 300 models, being written", told[0])
    assert not audits.status(store).being_written


def test_a_look_at_the_status_does_not_keep_a_writer_out(run, store, flip):
    run(runs=1)
    stop = threading.Event()

    def look():
        while not stop.is_set():
            audits.status(store)

    thread = threading.Thread(target=look)
    thread.start()
    for seed in range(5):
        run(runs=1, store=store.with_name(f"{seed}.db"), seed=seed)
        run(runs=1)
    stop.set()
    thread.join()


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])  # dask-jobqueue turns one into the other
def test_whoever_ends_the_process_leaves_word_of_what_is_there(run, store, expected, killed_after, error):
    ended = killed_after(run, 2, error)
    stored = audits.status(store).stored
    told = rf"{stored} of 300 models are in .*audit.db; the same call goes on from there"
    assert re.search(told, str(ended.value))
    assert list(store.parent.iterdir()) == [store]
    assert run().equals(expected)


def test_ctrl_c_leaves_whole_shards(run, store, expected, monkeypatch):
    elsewhere = signal.signal(signal.SIGINT, signal.default_int_handler)  # dask-jobqueue takes it when imported
    with monkeypatch.context() as patch:
        during(patch, lambda: signal.raise_signal(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt, match="the same call goes on from there"):
            run()
    assert 0 < audits.status(store).stored < 300
    assert signal.signal(signal.SIGINT, elsewhere) is signal.default_int_handler
    assert run().equals(expected)


def test_a_disk_that_is_full(run, small_disk, expected):
    ballast, store = small_disk / "ballast", small_disk / "audit.db"
    ballast.write_bytes(bytes(2**18 - 2 * 2**12))
    with pytest.raises(sqlite3.OperationalError, match="disk is full") as error:
        run(store=store)
    assert error.value.__notes__ == [f"store: {store}"]
    ballast.unlink()
    assert run(store=store).equals(expected)


def test_a_disk_that_cannot_be_written(run, small_disk, expected, killed_after):
    store = small_disk / "audit.db"
    killed_after(lambda: run(store=store), 1)
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    for there in (store, small_disk / "new.db"):
        with pytest.raises(OSError, match=f"Read-only file system.*{there.name}") as error:
            run(store=there)
        assert error.value.errno == errno.EROFS
    assert audits.status(store).stored > 0
    subprocess.run(["mount", "-o", "remount,rw", small_disk], check=True)
    assert run(store=store).equals(expected)
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    assert run(store=store).equals(expected)


def test_another_audit_is_refused_and_the_difference_is_shown(run, task, canary, tmp_path, spec):
    run()
    for change, told in (
        ({"spec": replace(spec, noise_multiplier=10.1)}, "noise_multiplier: stored 10.0, asked for 10.1"),
        ({"coordinates": "all"}, "trained_coordinates: stored 'span', asked for 'all'"),
        ({"canary": replace(canary, z=-canary.z, z_prime=canary.z)}, "canary_fingerprint: stored '"),
        ({"canary": canary.against_nothing(adjacency="add_remove")}, "adjacency: stored 'substitute', asked for"),
        ({"canary": replace(canary, slot=(canary.slot + 1) % 30)}, "slot: stored"),
    ):
        with pytest.raises(ValueError, match=f"(?s)store holds another audit, .*audit.db:.*{told}"):
            run(**change)
    measured = {"metrics": ("accuracy",), "store": tmp_path / "measured.db"}
    run(**measured)
    with pytest.raises(ValueError, match=r"store holds another audit, .*measured.db:\n  test_fingerprint: stored"):
        run(**measured, task=replace(task, y_test=(task.y_test + 1) % 10))


def test_records_are_compared_feature_by_feature(run, task, forbid_training):
    """With one large feature, whole records are within 1e-3 of each other's norm, and z − z′ is 0 for both pairs."""
    large = data.from_arrays(np.column_stack([task.x_train, np.full(30, 1e6)]), task.y_train, num_classes=10)
    x, other = large.x_train[3], large.x_train[4]
    options = {"task": large, "model": models.linear(large), "runs": 5}
    run(**options, canary=CanaryPair((x, 1), (x, 2), 3, "S4"))
    for pair in (CanaryPair((other, 1), (other, 2), 3, "S4"), CanaryPair((x, 1), (x, 3), 3, "S4")):
        with pytest.raises(ValueError, match="canary_fingerprint"):
            run(**options, canary=pair)
    forbid_training()
    nearly = x + np.float32(1e-4) * large.x_train.std(axis=0)
    found = run(**options, canary=CanaryPair((nearly, 1), (nearly, 2), 3, "S4"))
    assert found.attrs["canary_fingerprint"] == CanaryPair((x, 1), (x, 2), 3, "S4").fingerprint


def test_numbers_that_differ_by_rounding_are_the_same_audit(run, canary, expected, killed_after, spec):
    killed_after(run, 1)
    nearly = replace(canary, z=canary.z * np.float32(1 + 1e-6), details={**canary.details, "travel": 1.0})
    resumed = run(canary=nearly, spec=replace(spec, noise_multiplier=10.0 * (1 + 1e-9)))
    assert resumed.equals(expected)
    assert resumed.attrs.items() >= expected.attrs.items()
    with pytest.raises(ValueError, match="canary_fingerprint"):
        run(canary=replace(canary, z=canary.z * np.float32(0.99)))


def test_what_rounds_is_told_from_what_differs(run, task, spec):
    x = task.x_train[3]
    pair = CanaryPair((x, 1), (x * np.float32(1.0005), 1), 3, "S3")
    run(canary=pair)
    with pytest.raises(ValueError, match="canary_fingerprint: stored"):
        run(canary=replace(pair, z=pair.z_prime, z_prime=pair.z))
    with pytest.raises(ValueError, match="learning_rate: stored"):
        run(canary=pair, spec=replace(spec, learning_rate=0.01 * (1 + 1e-7)))


def test_another_kind_of_device_is_refused_unless_told_and_the_mix_is_recorded(
    run, expected, monkeypatch, killed_after
):
    killed_after(run, 1)
    here = plans.made_on(torch.device("cpu"))
    monkeypatch.setattr(plans, "made_on", lambda *_: here._replace(device="NVIDIA H200"))
    with pytest.raises(ValueError, match=r"(?s)device: cpu, now NVIDIA H200.*allow_mix=True"):
        run()
    mixed = run(allow_mix=True)
    assert mixed.equals(expected)
    assert mixed.attrs["device"] == "NVIDIA H200 + cpu"
    monkeypatch.setattr(plans, "made_on", lambda *_: here._replace(versions={**here.versions, "torch": "9.9"}))
    assert run().identical(mixed)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_a_complete_store_is_read_whatever_the_device(run, expected, tmp_path):
    run()
    assert run(device="cuda", client="tcp://127.0.0.1:1").equals(expected)
    with pytest.raises(ValueError, match='device "cuda" was asked for, but torch finds no CUDA device'):
        run(store=tmp_path / "new.db", device="cuda")
    assert not (tmp_path / "new.db").exists()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"runs": 0}, "runs must be >= 1, got 0"),
        ({"canary": []}, "canary must be one for all repeats, or one for each of the 1, got 0"),
        ({"store": "/"}, "store must be a file, got the folder /: give /audit.db"),
        ({"store": "s3://bucket/audit.db"}, "store must be a file of the file system, got 's3://bucket/audit.db'"),
    ],
)
def test_bad_input_leaves_nothing_behind(run, tmp_path, change, told):
    with pytest.raises(ValueError, match=told):
        run(**change)
    assert not list(tmp_path.iterdir())


def changed(store, *statements):
    with closing(sqlite3.connect(store)) as database, database:
        for statement in statements:
            database.execute(*(statement if isinstance(statement, tuple) else (statement,)))
        database.commit()


def test_a_flipped_bit_anywhere_gives_no_other_number(run, store, expected, flip):
    run()
    whole, noticed = store.read_bytes(), 0
    used = np.flatnonzero(np.frombuffer(whole, np.uint8))
    for at in np.random.default_rng(0).choice(used, 60):
        flip(store, int(at))
        for read in (lambda: audits.load(store), run):
            try:
                assert read().equals(expected)
            except (ValueError, sqlite3.Error) as error:
                assert "store" in f"{error} {getattr(error, '__notes__', '')}"  # noqa: PT017
                noticed += 1
        store.write_bytes(whole)
    assert noticed > 80


def test_only_what_is_lost_is_computed_again(run, store, expected, monkeypatch):
    run()
    changed(
        store, "UPDATE shards SET data = zeroblob(length(data)) WHERE number = 1", "DELETE FROM shards WHERE number = 2"
    )
    trained, assemble = [], bank_plans.assemble
    monkeypatch.setattr(bank_plans, "assemble", lambda *a, **b: trained.append(len(b["bits"])) or assemble(*a, **b))
    with pytest.raises(ValueError, match=r"store is damaged, .*: shards 1 are not what was written.*repair=True"):
        run()
    status = audits.status(store)
    assert (status.stored, status.damaged) == (128, (1,))
    assert "damaged shards: 1" in str(status)
    assert run(repair=True).equals(expected)
    assert trained == [128, 128]  # whole blocks
    assert audits.status(store).complete


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM about",
        "DELETE FROM arrays",
        "UPDATE arrays SET data = zeroblob(3)",
        "UPDATE about SET value = value || ' ' WHERE name = 'title'",
    ],
)
def test_a_store_that_lost_what_it_says_of_itself_is_named_and_left_as_it_is(run, store, damage):
    run()
    changed(store, damage)
    before = store.read_bytes()
    for call in (run, lambda: run(repair=True), lambda: audits.load(store), lambda: audits.status(store)):
        with pytest.raises(ValueError, match="store is damaged, .*copy it again from an undamaged original, or give"):
            call()
    assert store.read_bytes() == before


def test_shards_of_another_audit_are_not_read_as_this_one(run, store, tmp_path, expected):
    run()
    run(store=tmp_path / "two.db", seed=4)
    with closing(sqlite3.connect(store, isolation_level=None)) as database:
        database.execute("ATTACH ? AS two", [str(tmp_path / "two.db")])
        database.execute("DELETE FROM shards")
        database.execute("INSERT INTO shards SELECT * FROM two.shards")
    for call in (run, lambda: audits.load(store)):
        with pytest.raises(ValueError, match="store is damaged.*shards 0, 1, 2 are not what was written"):
            call()
    assert run(repair=True).equals(expected)


def test_a_place_that_is_something_elses_is_refused_and_left_as_it_is(run, tmp_path):
    (tmp_path / "file").write_text("x" * 1_000)
    (tmp_path / "folder").mkdir()
    changed(tmp_path / "other.db", "CREATE TABLE letters (x)")
    for name, told in (
        ("file", "store must be an audit's file, got .*/file, file is not a database: give another path"),
        ("folder", r"store must be a file, got the folder .*/folder: give .*/folder/audit\.db"),
        ("other.db", f"store must be an audit of format {FORMAT}, got .*/other.db, a database of format 0"),
    ):
        before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        for call in (lambda: run(store=tmp_path / name, repair=True), lambda: audits.status(tmp_path / name)):
            with pytest.raises(ValueError, match=told):
                call()
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    with pytest.raises(ValueError, match=r"store must be an audit's file, got .*/nowhere, where there is none"):
        audits.status(tmp_path / "nowhere")
    (tmp_path / "empty").touch()
    assert run(store=tmp_path / "empty").sizes["run"] == 300
