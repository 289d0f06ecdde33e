import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch
import xarray as xr
import zarr

from dpsub import DPSGD, CanaryPair, audit, audits, crafters, data, models
from dpsub.audits import contents, plans, stores

SPEC = DPSGD(noise_multiplier=10.0, max_grad_norm=2.0, sample_rate=1.0, steps=4, learning_rate=0.01)
OPTIONS = {"runs": 300, "observe_every": 2, "seed": 3, "device": "cpu", "progress": False}  # three blocks


@pytest.fixture(scope="module")
def task():
    return data.digits(n_train=30)


@pytest.fixture(scope="module")
def model(task):
    return models.linear(task)


@pytest.fixture(scope="module")
def canary(task, model):
    return crafters.gradient(task, model, SPEC, seed=0)


@pytest.fixture(scope="module")
def expected(task, model, canary):
    return audit(task, model, canary, SPEC, **OPTIONS)


@pytest.fixture
def run(task, model, canary, tmp_path):
    """An audit into one store; what is given takes the place of the usual arguments."""

    def call(store=tmp_path / "audit.zarr", task=task, model=model, canary=canary, spec=SPEC, **options):
        return audit(task, model, canary, spec, store=store, **{**OPTIONS, **options})

    return call


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 256 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", disk], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("file systems cannot be mounted here")
    yield disk
    subprocess.run(["umount", disk], check=True)


def flip(path, at):
    content = bytearray(path.read_bytes())
    content[at % len(content)] ^= 1 << (at % 8)
    path.write_bytes(content)


def files(store):
    return sorted(p for p in store.rglob("*") if p.is_file() and p.name != contents.LOCK)


@pytest.mark.parametrize("repeats", [1, 2])
def test_a_stored_audit_is_the_same_audit_and_is_read_the_second_time(run, tmp_path, monkeypatch, repeats):
    options = {"metrics": ("accuracy", "distance", "gradient", "weights"), "repeats": repeats}
    expected = run(store=None, **options)
    first = run(**options)
    monkeypatch.setattr(_plans, "Bank", None)
    again = run(**options)
    assert first.equals(expected)
    assert first.identical(again)
    assert {**first.attrs, **expected.attrs} == first.attrs
    assert first.attrs["models_stored"] == 300 * repeats
    assert first.attrs["wall_seconds"] > 0
    assert len(first.attrs["commit"]) >= 5
    with xr.open_zarr(tmp_path / "audit.zarr") as opened:
        assert opened.equals(expected)
        assert opened.attrs.items() >= first.attrs.items()
    status = audits.status(tmp_path / "audit.zarr")
    assert status.complete
    assert (status.models, status.stored, status.device) == (300 * repeats, 300 * repeats, "cpu")
    assert "S2 on digits, 300 of 300 models, complete" in str(status) or repeats == 2


def test_networks_and_records_are_stored_too(task, tmp_path):
    model = models.mlp(task, (4,))
    pair = CanaryPair((task.x_train[3], 1), (task.x_train[4], 2), 3, "S4", details={"cosine": np.float32(0.5)})
    for name, canary in (("pair", pair), ("nothing", pair.against_nothing(adjacency="add_remove"))):
        found = [
            audit(task, model, canary, SPEC, store=store, **{**OPTIONS, "runs": 5})
            for store in (None, tmp_path / name, tmp_path / name)
        ]
        assert found[0].equals(found[1])
        assert found[1].identical(found[2])
        assert found[2].attrs["canary_cosine"] == 0.5


def test_repeats_have_seeds_of_their_own(run, task, model, expected):
    several = run(store=None, repeats=3)
    seeds = audits.repeat_seeds(3, 3)
    assert several.score.dims == ("repeat", "run", "step")
    assert several.bit.dims == ("repeat", "run")
    assert several.attrs["seeds"] == seeds
    assert several.attrs["canary_crafted"] == "once"
    assert several.isel(repeat=0, drop=True).equals(expected)
    assert several.isel(repeat=2, drop=True).equals(run(store=None, seed=seeds[2]))
    assert len(set(seeds)) == 3
    assert audits.repeat_seeds(3, 5)[:3] == seeds


def test_canaries_can_be_crafted_anew_for_each_repeat(run, task, model, tmp_path):
    spec = replace(SPEC, sample_rate=0.5)
    pairs = [crafters.gradient(task, model, spec, seed=seed) for seed in audits.repeat_seeds(3, 2)]
    found = run(spec=spec, canary=pairs, repeats=2)
    assert found.attrs["canary_crafted"] == "anew for each repeat"
    assert found.attrs["canary_parameter"] == [pair.details["parameter"] for pair in pairs]
    assert found.attrs["canary_fingerprint"] == [pair.fingerprint for pair in pairs]
    assert found.identical(run(spec=spec, canary=pairs, repeats=2))
    alone = run(store=None, spec=spec, canary=pairs[1], seed=audits.repeat_seeds(3, 2)[1])
    assert found.isel(repeat=1, drop=True).equals(alone)
    with pytest.raises(ValueError, match="canary must be one for all repeats, or one for each of the 3, got 2"):
        run(store=None, spec=spec, canary=pairs, repeats=3)
    with pytest.raises(ValueError, match="canary must be of one scenario and adjacency in all repeats"):
        run(store=None, spec=spec, canary=[pairs[0], pairs[1].against_nothing(adjacency="add_remove")], repeats=2)
    with pytest.raises(ValueError, match="store holds another audit"):
        run(spec=spec, canary=pairs[::-1], repeats=2)


def test_many_blocks_are_put_into_few_shards(run, task, monkeypatch):
    monkeypatch.setattr(_plans, "SHARDS", 2)
    few = run(runs=700)
    assert few.equals(run(store=None, runs=700))
    monkeypatch.setattr(_plans, "SHARDS", 128)
    assert few.equals(run(store=None, runs=700))


class Killed(BaseException):
    pass


def dies_after(monkeypatch, operations):
    """Every change to the disk after so many fails, the first of them midway, as if the process were no more."""
    done = count()

    def dying(original, torn):
        def call(path, *arguments, **options):
            i = next(done)
            if i < operations:
                return original(path, *arguments, **options)
            if i == operations and torn:
                original(path, arguments[0][: len(arguments[0]) // 2])
            raise Killed

        return call

    monkeypatch.setattr(Path, "write_bytes", dying(Path.write_bytes, torn=True))
    monkeypatch.setattr(Path, "replace", dying(Path.replace, torn=False))
    monkeypatch.setattr(Path, "unlink", dying(Path.unlink, torn=False))
    return done


def test_an_audit_that_dies_between_any_two_writes_goes_on_to_the_same_numbers(run, tmp_path, expected, monkeypatch):
    with monkeypatch.context() as patch:
        operations = dies_after(patch, 10**6)
        run(store=tmp_path / "whole")
        needed = next(operations)
    assert needed > 40
    for n in range(needed):
        store = tmp_path / f"killed-{n}"
        with monkeypatch.context() as patch:
            dies_after(patch, n)
            with pytest.raises(Killed):
                run(store=store)
        if (store / "zarr.json").exists():
            assert not audits.status(store).damaged
        assert run(store=store).equals(expected)
        assert not list(store.rglob("*.partial"))
        assert [p.relative_to(store) for p in files(store)] == [
            p.relative_to(tmp_path / "whole") for p in files(tmp_path / "whole")
        ]


def test_a_repair_that_dies_goes_on(run, tmp_path, expected, monkeypatch):
    store = tmp_path / "audit.zarr"
    for damaged in ("score/c/1/0", "zarr.json"):
        for n in count():
            run()
            flip(store / damaged, 90)
            with monkeypatch.context() as patch:
                dies_after(patch, n)
                with suppress(Killed):
                    run(repair=True)
                    break
            assert run(repair=True).equals(expected)
        assert n > 5


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
        process = start(store)
        while process.poll() is None and not stores.is_taken(store):
            time.sleep(0.001)
        time.sleep(rng.uniform(0, seconds / 4))
        process.kill()
        process.wait()
        if (store / "zarr.json").exists():
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


def test_a_flipped_byte_anywhere_is_noticed_named_and_mended(run, tmp_path, expected):
    store = tmp_path / "audit.zarr"
    run()
    for at, path in enumerate(files(store)):
        name = path.relative_to(store).as_posix()
        flip(path, 37 * at + len(path.read_bytes()) // 2)
        if list(audits.status(store).damaged) != [name]:  # white space, of which no number depends
            assert path.name == "zarr.json"
            assert json.loads(path.read_bytes())
        else:
            with pytest.raises(ValueError, match=f"(?s)store is damaged.*{name} is .*repair=True"):
                run()
        assert run(repair=True).equals(expected)
        assert audits.status(store).complete


def test_damage_is_told_by_runs_and_only_what_is_lost_is_trained_again(run, tmp_path, expected, monkeypatch):
    store = tmp_path / "audit.zarr"
    run()
    flip(store / "score/c/1/0", 50)
    (store / "bit/c/2").unlink()
    trained = []
    original = plans.train_shard
    monkeypatch.setattr(
        audits, "train_shard", lambda plan, shard, *a: trained.append(shard.number) or original(plan, shard, *a)
    )
    with pytest.raises(ValueError, match=r"bit/c/2 is missing \(runs 256 to 299 of repeat 0\)"):
        run()
    assert audits.status(store).stored == 128
    assert run(repair=True).equals(expected)
    assert sorted(trained) == [1, 2]


def test_a_store_that_lost_what_it_says_of_itself_keeps_its_shards(run, tmp_path, expected, monkeypatch):
    store = tmp_path / "audit.zarr"
    run()
    (store / "zarr.json").unlink()
    (store / contents.LOCK).unlink()
    with pytest.raises(ValueError, match=r"(?s)store is damaged.*zarr\.json is missing.*repair=True"):
        run()
    monkeypatch.setattr(_plans, "Bank", None)
    assert run(repair=True).equals(expected)


def test_a_place_is_the_same_however_it_is_said(run, tmp_path, expected, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    run(store="~/new folder/audit.zarr/")
    monkeypatch.setattr(_plans, "Bank", None)
    assert run(store=Path("new folder/audit.zarr")).equals(expected)
    (tmp_path / "link").symlink_to(tmp_path / "new folder")
    assert run(store="link/audit.zarr").equals(expected)
    assert audits.status("link/../link/audit.zarr").complete


def test_what_a_damaged_store_says_of_itself_is_not_replaced_by_another_audit(run, tmp_path, expected):
    run()
    flip(tmp_path / "audit.zarr/zarr.json", 200)
    with pytest.raises(ValueError, match="store has lost what it says of itself"):
        run(seed=4, repair=True)
    assert run(repair=True).equals(expected)


def test_another_audit_is_refused_and_the_difference_is_shown(run, task, canary, tmp_path):
    run()
    for change, told in (
        ({"runs": 301}, "runs: stored 300, asked for 301"),
        ({"seed": 4}, "seed: stored 3, asked for 4"),
        ({"spec": replace(SPEC, noise_multiplier=10.1)}, "noise_multiplier: stored 10.0, asked for 10.1"),
        ({"metrics": ("accuracy",)}, "metrics: stored '', asked for 'accuracy'"),
        ({"repeats": 2}, "repeats: stored 1, asked for 2"),
        ({"observe_every": 4}, "observe_every: stored 2, asked for 4"),
        ({"matmul_precision": "high"}, "matmul_precision: stored 'highest', asked for 'high'"),
        ({"canary": replace(canary, z=-canary.z, z_prime=canary.z)}, "canary_fingerprint: stored '"),
        ({"canary": canary.against_nothing(adjacency="add_remove")}, "adjacency: stored 'substitute', asked for"),
        ({"canary": replace(canary, slot=(canary.slot + 1) % 30)}, "slot: stored"),
    ):
        with pytest.raises(ValueError, match=f"(?s)store holds another audit, .*audit.zarr:.*{told}"):
            run(**change)
    measured = {"metrics": ("accuracy",), "store": tmp_path / "measured.zarr"}
    run(**measured)
    with pytest.raises(ValueError, match=r"store holds another audit, .*measured.zarr:\n  test_fingerprint: stored"):
        run(**measured, task=replace(task, y_test=(task.y_test + 1) % 10))


def test_numbers_that_differ_by_rounding_are_the_same_audit(run, canary, expected, monkeypatch):
    with monkeypatch.context() as patch:
        dies_after(patch, 32)
        with pytest.raises(Killed):
            run()
    nearly = replace(canary, z=canary.z * np.float32(1 + 1e-6), details={**canary.details, "travel": 1.0})
    spec = replace(SPEC, noise_multiplier=10.0 * (1 + 1e-9))
    resumed = run(canary=nearly, spec=spec)
    assert resumed.equals(expected)
    assert resumed.attrs.items() >= expected.attrs.items()
    with pytest.raises(ValueError, match="canary_fingerprint"):
        run(canary=replace(canary, z=canary.z * np.float32(0.99)))


def test_another_kind_of_device_is_refused_unless_told_and_the_mix_is_recorded(run, expected, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        dies_after(patch, 32)
        with pytest.raises(Killed):
            run()
    assert 0 < audits.status(tmp_path / "audit.zarr").stored < 300
    here = plans.made_on(torch.device("cpu"))
    monkeypatch.setattr(audits, "made_on", lambda *_: here._replace(device="NVIDIA H200"))
    with pytest.raises(ValueError, match=r"(?s)device: cpu, now NVIDIA H200.*allow_mix=True"):
        run()
    mixed = run(allow_mix=True)
    assert mixed.equals(expected)
    assert mixed.attrs["device"] == "NVIDIA H200 + cpu"
    other = here._replace(versions={**here.versions, "torch": "9.9"})
    monkeypatch.setattr(audits, "made_on", lambda *_: other)
    assert run().identical(mixed)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_a_complete_store_is_read_whatever_the_device(run, expected, tmp_path):
    run()
    assert run(device="cuda", client="tcp://127.0.0.1:1").equals(expected)
    with pytest.raises(ValueError, match='device "cuda" was asked for, but torch finds no CUDA device'):
        run(store=tmp_path / "new.zarr", device="cuda")
    assert not (tmp_path / "new.zarr").exists()
    with pytest.raises(ValueError, match="device must be one of 'auto', 'cpu', 'cuda', got 'gpu'"):
        run(device="gpu")


def test_ctrl_c_finishes_what_is_being_written_and_says_how_to_go_on(run, expected, tmp_path, monkeypatch):
    put, interrupted = stores.Store._put, []
    elsewhere = signal.signal(signal.SIGINT, signal.default_int_handler)  # dask-jobqueue takes it when imported

    def interrupt(self, name, content):
        if name == "score/c/1/0" and not interrupted:
            interrupted.append(name)
            signal.raise_signal(signal.SIGINT)
        put(self, name, content)

    monkeypatch.setattr(stores.Store, "_put", interrupt)
    told = r"256 of 300 models are in .*audit.zarr; the same call goes on from there"
    with pytest.raises(KeyboardInterrupt, match=told):
        run()
    assert "1" in os.listdir(tmp_path / "audit.zarr/shards")
    with xr.open_zarr(tmp_path / "audit.zarr", chunks=None) as opened:
        assert 0 < opened.attrs["models_stored"] < 300
        assert (opened.bit == -1).sum() == opened.score[:, 0].isnull().sum() == 300 - opened.attrs["models_stored"]
    assert signal.signal(signal.SIGINT, elsewhere) is signal.default_int_handler
    assert run().equals(expected)


def after_shard(monkeypatch, number, act):
    """Do something behind the store's back once this shard is written."""
    write = stores.Store.write

    def call(self, shard, arrays, made):
        write(self, shard, arrays, made)
        if shard.number == number:
            act()

    monkeypatch.setattr(stores.Store, "write", call)


def test_a_store_that_is_changed_while_it_is_written_gives_no_numbers(run, tmp_path, expected, monkeypatch):
    for name, act, told in (
        ("gone", lambda store: (store / "score/c/0/0").unlink(), "score/c/0/0 is missing"),
        ("other", lambda store: flip(store / "score/c/0/0", 50), "score/c/0/0 is not what was written"),
        ("forgotten", lambda store: (store / "shards/0/zarr.json").unlink(), "store was changed while it was being"),
    ):
        store = tmp_path / name
        with monkeypatch.context() as patch:
            after_shard(patch, 2, lambda store=store, act=act: act(store))
            with pytest.raises(ValueError, match=f"(?s){name}.*{told}|{told}.*{name}"):
                run(store=store)
        assert run(store=store, repair=True).equals(expected)


def test_a_folder_that_is_replaced_by_another_audit_is_not_written_to(run, tmp_path, monkeypatch):
    store, other = tmp_path / "audit.zarr", run(store=None, seed=77)

    def replaced():
        shutil.rmtree(store)
        with monkeypatch.context() as patch:
            patch.undo()
            assert run(seed=77).equals(other)

    write = stores.Store.write
    after_shard(monkeypatch, 0, lambda: (monkeypatch.setattr(stores.Store, "write", write), replaced()))
    with pytest.raises(OSError, match=r"the store was removed or replaced while it was being written.*audit\.zarr"):
        run()
    assert run(seed=77).equals(other)


def test_a_document_vouches_for_its_own_shard_only(run, tmp_path, expected):
    store = tmp_path / "audit.zarr"
    run()
    for name in ("score/c/1/0", "bit/c/1", "shards/1/zarr.json"):
        (store / name).unlink()
    for other in ("1", "7"):
        (store / "shards" / other).mkdir(exist_ok=True)
        shutil.copy(store / "shards/0/zarr.json", store / "shards" / other)
    with pytest.raises(ValueError, match=r"(?s)shards/1/zarr.json is not what was.*shards/7/zarr.json is not what was"):
        run()
    assert run(repair=True).equals(expected)
    assert run().equals(expected)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[" * 100_000, b"null", b"\xff\xfe\x00", b'{"attributes": {"sha256": 3}}']
)
def test_documents_of_every_kind_are_damage_and_mended(run, tmp_path, expected, content):
    store = tmp_path / "audit.zarr"
    run()
    (store / "shards/1 (copy)").mkdir()
    (store / "shards/1 (copy)/zarr.json").write_bytes(content)
    assert run().equals(expected)
    for name in ("zarr.json", "shards/1/zarr.json"):
        (store / name).write_bytes(content)
        with pytest.raises(ValueError, match=f"(?s)store is damaged.*{name} is"):
            run()
        assert not audits.status(store).complete
        assert run(repair=True).equals(expected)
        assert run().equals(expected)


def test_what_cannot_be_read_is_damage(run, tmp_path):
    store = tmp_path / "audit.zarr"
    run()
    (store / "score/c/1/0").unlink()
    (store / "score/c/1/0").mkdir()
    with pytest.raises(ValueError, match=r"score/c/1/0 cannot be read: Is a directory \(runs 128 to 255"):
        run()
    with pytest.raises(IsADirectoryError, match=r"what was stored before stays: put this right.*score/c/1/0"):
        run(repair=True)
    (store / "score/c/1/0").rmdir()
    (store / "keep.partial").mkdir()
    assert run(repair=True).attrs["models_stored"] == 300


def test_a_damaged_root_can_be_mended_where_numbers_differ_by_rounding(run, tmp_path, canary, expected):
    run()
    flip(tmp_path / "audit.zarr/step/c/0", 3)
    nearly = replace(canary, z=canary.z * np.float32(1 + 1e-6))
    assert run(canary=nearly, spec=replace(SPEC, noise_multiplier=10.0 * (1 + 1e-9)), repair=True).equals(expected)


def test_what_rounds_is_told_from_what_differs(run, task, model):
    x = task.x_train[3]
    pair = CanaryPair((x, 1), (x * np.float32(1.0005), 1), 3, "S3")
    run(canary=pair)
    with pytest.raises(ValueError, match="canary_fingerprint: stored"):
        run(canary=replace(pair, z=pair.z_prime, z_prime=pair.z))
    with pytest.raises(ValueError, match="learning_rate: stored"):
        run(canary=pair, spec=replace(SPEC, learning_rate=0.01 * (1 + 1e-7)))


def test_a_later_zarr_goes_on_as_the_store_was_begun(run, tmp_path, expected, monkeypatch):
    with monkeypatch.context() as patch:
        dies_after(patch, 32)
        with pytest.raises(Killed):
            run()
    create = zarr.Group.create_array
    monkeypatch.setattr(
        zarr.Group, "create_array", lambda *a, **options: create(*a, **{**options, "compressors": None})
    )
    with zarr.config.set({"default_zarr_format": 2}):
        assert run().equals(expected)
        assert run().equals(expected)


def test_a_look_at_the_status_does_not_keep_a_writer_out(run, tmp_path, expected):
    run(runs=1)
    stop = threading.Event()

    def look():
        while not stop.is_set():
            audits.status(tmp_path / "audit.zarr")

    thread = threading.Thread(target=look)
    thread.start()
    for _ in range(5):
        flip(tmp_path / "audit.zarr/bit/c/0", 5)
        run(runs=1, repair=True)
    stop.set()
    thread.join()


def test_whoever_ends_the_process_leaves_word_of_what_is_there(run, monkeypatch):
    after_shard(monkeypatch, 1, sys.exit)  # as dask-jobqueue does on Ctrl-C
    with pytest.raises(
        SystemExit, match=r"(172|256) of 300 models are in .*audit.zarr; the same call goes on from there"
    ):
        run()


def test_what_the_project_keeps_is_whole():
    stores = [path.parent for path in (Path(__file__).parent.parent / "results").glob("paper/*/*.zarr/zarr.json")]
    assert stores
    for store in stores:
        assert audits.status(store).complete, audits.status(store)


def test_one_process_writes_at_a_time(run, tmp_path, expected, monkeypatch):
    store, put, told = tmp_path / "audit.zarr", stores.Store._put, []

    def meanwhile(self, name, content):
        put(self, name, content)
        if name.startswith("shards/0"):
            told.append(str(audits.status(store)))
            with pytest.raises(BlockingIOError, match=r"somebody else is writing this store.*audit\.zarr"):
                run()

    monkeypatch.setattr(stores.Store, "_put", meanwhile)
    assert run().equals(expected)
    assert "128 of 300 models, being written" in told[0]
    assert not audits.status(store).being_written


def test_a_file_system_without_locks_is_warned_about(run, monkeypatch):
    def flock(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(stores.fcntl, "flock", flock)
    with pytest.warns(UserWarning, match=r"audit.zarr cannot be locked \(No locks available\): let no other process"):
        run()


def test_a_full_disk_is_named_and_what_was_stored_stays(run, tmp_path, expected, monkeypatch):
    written, full = count(), Path.write_bytes

    def write_bytes(path, content):
        if next(written) == 15:
            full(path, content[:5])
            raise OSError(errno.ENOSPC, "No space left on device")
        full(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", write_bytes)
        with pytest.raises(OSError, match=r"No space left on device; what was stored.*audit\.zarr/\w+/") as error:
            run()
    assert error.value.errno == errno.ENOSPC
    assert not list(tmp_path.rglob("*.partial"))
    assert run().equals(expected)


def test_a_disk_that_is_really_full(run, small_disk, expected):
    ballast = small_disk / "ballast"
    store = small_disk / "audit.zarr"
    ballast.write_bytes(bytes(2**18 - 15 * 2**12))
    with pytest.raises(OSError, match=r"No space left on device.*audit\.zarr"):
        run(store=store)
    ballast.unlink()
    assert run(store=store).equals(expected)
    with pytest.raises(OSError, match=r"the audit takes 1\.6 MiB more, and 0\.\d MiB are free.*other\.zarr"):
        run(store=small_disk / "other.zarr", observe_every=1, runs=100_000)


def test_a_folder_that_cannot_be_written(run, small_disk, tmp_path, expected, monkeypatch):
    subprocess.run(["mount", "-o", "remount,size=1m", small_disk], check=True)
    store = small_disk / "audit.zarr"
    with monkeypatch.context() as patch:
        dies_after(patch, 32)
        with pytest.raises(Killed):
            run(store=store)
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    for there in (store, small_disk / "new.zarr"):
        with pytest.raises(OSError, match=f"Read-only file system.*{there.name}") as error:
            run(store=there)
        assert error.value.errno == errno.EROFS
    assert audits.status(store).stored > 0
    subprocess.run(["mount", "-o", "remount,rw", small_disk], check=True)
    assert run(store=store).equals(expected)
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    assert run(store=store).equals(expected)


def test_a_place_that_is_something_elses_is_refused(run, tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters/to_anna.txt").write_text("x")
    xr.Dataset({"a": ("x", [1, 2])}).to_zarr(tmp_path / "other.zarr", zarr_format=2)
    xr.Dataset({"a": ("x", [1, 2])}).to_zarr(tmp_path / "other3.zarr", zarr_format=3, consolidated=False)
    for name, told in (
        ("file", r"store must be a folder, or not there yet, got the file .*/file: give another path"),
        ("letters", r"store must be a folder of its own, got .*/letters, which holds 'to_anna.txt' and no audit"),
        ("other.zarr", r"store must be a folder of its own, got .*/other.zarr, which holds '\.zattrs'"),
        ("other3.zarr", r"store must be an audit, got .*/other3.zarr, another zarr group"),
    ):
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(ValueError, match=told):
            run(store=tmp_path / name, repair=True)
        with pytest.raises(ValueError, match="store must be"):
            audits.status(tmp_path / name)
        assert sorted(tmp_path.rglob("*")) == before
    (tmp_path / "empty").mkdir()
    assert run(store=tmp_path / "empty").attrs["models_stored"] == 300
    with pytest.raises(ValueError, match=r"store must be an audit's folder, got .*/nowhere, where there is none"):
        audits.status(tmp_path / "nowhere")


def test_a_store_of_another_format_says_which_and_what_to_do(run, tmp_path):
    run()
    path = tmp_path / "audit.zarr/zarr.json"
    document = json.loads(path.read_bytes())
    attributes = {**document["attributes"], "dpsub_store": 7, "version_dpsub": "3.1.4"}
    path.write_bytes(contents.vouched({**document, "attributes": attributes}))
    told = r"store must be of format 1, .* got .* of format 7, by dpsub 3\.1\.4: use that dpsub, or give another path"
    with pytest.raises(ValueError, match=told):
        run()
    with pytest.raises(ValueError, match=told):
        audits.status(tmp_path / "audit.zarr")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"runs": 0}, "runs must be >= 1, got 0"),
        ({"runs": 2.5}, "runs must be a whole number >= 1, got 2.5"),
        ({"repeats": 0}, "repeats must be >= 1, got 0"),
        ({"observe_every": 5}, "observe_every must be <= spec.steps = 4, got 5"),
        ({"canary": []}, "canary must be one for all repeats, or one for each of the 1, got 0"),
        ({"store": 3}, "store must be a path in the file system, got 3"),
        ({"store": ""}, "store must be a path in the file system, got ''"),
        ({"store": "s3://bucket/audit.zarr"}, "store must be a path in the file system, got 's3://bucket/audit.zarr'"),
    ],
)
def test_bad_input_leaves_nothing_behind(run, tmp_path, change, told):
    with pytest.raises(ValueError, match=told):
        run(**change)
    assert not list(tmp_path.iterdir())


def test_progress_counts_models_and_repeats_and_begins_where_the_store_is(run, capsys, monkeypatch):
    with monkeypatch.context() as patch:
        dies_after(patch, 44)
        with pytest.raises(Killed):
            run(repeats=2, progress=True)
    capsys.readouterr()
    run(repeats=2, progress=True)
    shown = capsys.readouterr().err
    assert "models/s" in shown
    assert "repeats: 100%" in shown
    assert "| 600/600" in shown
    assert "S2 on digits:   0%" not in shown
    run(repeats=2, progress=True)
    assert capsys.readouterr().err == ""


def test_complete_stores_are_read_without_what_they_were_made_on(run, tmp_path):
    made = run(repeats=2)
    xr.testing.assert_identical(audits.load(tmp_path / "audit.zarr"), made)


def test_stores_that_are_absent_partial_or_damaged_are_not_read(run, tmp_path):
    path = tmp_path / "audit.zarr"
    with pytest.raises(ValueError, match="store must be an audit's folder, got .* where there is none"):
        audits.load(path)
    run()
    shutil.rmtree(path / "shards" / "1")
    with pytest.raises(ValueError, match="store must be complete, got .* with 172 of 300 models"):
        audits.load(path)
    run()
    flip(path / "score" / "c" / "0" / "0", 50)
    with pytest.raises(ValueError, match="score/c/0/0 is not what was written"):
        audits.load(path)


def test_shards_of_another_audit_are_not_read_as_this_one(run, tmp_path):
    run(store=tmp_path / "one.zarr")
    run(store=tmp_path / "two.zarr", seed=4)
    for part in ("shards", "score", "bit"):
        shutil.copytree(tmp_path / "two.zarr" / part, tmp_path / "one.zarr" / part, dirs_exist_ok=True)
    with pytest.raises(ValueError, match="store must hold one audit, got .*one.zarr, whose shards come from another"):
        audits.load(tmp_path / "one.zarr")


def test_audit_killed_before_its_last_word_is_read_with_its_origin(run, tmp_path, monkeypatch):
    path, words = tmp_path / "audit.zarr", count()
    put = stores.Store._put_root

    def put_once(store):
        if next(words):
            raise KeyboardInterrupt
        put(store)

    with monkeypatch.context() as killed:
        killed.setattr(stores.Store, "_put_root", put_once)
        with pytest.raises(KeyboardInterrupt):
            run()
    loaded = audits.load(path)
    assert loaded.models_stored == 300
    xr.testing.assert_identical(loaded, run())
