"""Whatever happens to the process that writes a store, it goes on to the same numbers."""

import errno
import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
import zarr

from dpsub import audits
from dpsub.audits.storage import locks, writer
from dpsub.audits.storage.writer import StoreWriter


def test_an_audit_that_dies_between_any_two_writes_goes_on_to_the_same_numbers(
    run, tmp_path, monkeypatch, files_of, dies_after
):
    whole = tmp_path / "whole"
    with monkeypatch.context() as patch:
        operations = dies_after(patch, 10**6)
        expected = run(store=whole, runs=150)  # two blocks
        needed = next(operations)
    assert expected.equals(run(store=None, runs=150))
    assert needed > 30
    for n in range(needed):
        store = tmp_path / f"killed-{n}"
        with monkeypatch.context() as patch:
            dies_after(patch, n)
            with pytest.raises(dies_after.error):
                run(store=store, runs=150)
        if (store / "zarr.json").exists():
            assert not audits.status(store).damaged
        assert run(store=store, runs=150).equals(expected)
        assert not list(store.rglob("*.partial"))
        assert [p.relative_to(store) for p in files_of(store)] == [p.relative_to(whole) for p in files_of(whole)]


def test_a_repair_that_dies_goes_on(run, tmp_path, monkeypatch, flip, dies_after):
    store, expected = tmp_path / "audit.zarr", run(store=None, runs=150)
    for damaged in ("score/c/1/0", "zarr.json"):
        for n in count():
            run(runs=150)
            flip(store / damaged, 90)
            with monkeypatch.context() as patch:
                dies_after(patch, n)
                with suppress(dies_after.error):
                    run(runs=150, repair=True)
                    break
            assert run(runs=150, repair=True).equals(expected)
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
        while process.poll() is None and not locks.is_taken(store):
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


def test_a_store_that_is_changed_while_it_is_written_gives_no_numbers(
    run, tmp_path, expected, monkeypatch, flip, after_shard
):
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


def test_a_folder_that_is_replaced_by_another_audit_is_not_written_to(run, tmp_path, monkeypatch, after_shard):
    store, other = tmp_path / "audit.zarr", run(store=None, seed=77)

    def replaced():
        shutil.rmtree(store)
        with monkeypatch.context() as patch:
            patch.undo()
            assert run(seed=77).equals(other)

    write = StoreWriter.write
    after_shard(monkeypatch, 0, lambda: (monkeypatch.setattr(StoreWriter, "write", write), replaced()))
    with pytest.raises(OSError, match=r"the store was removed or replaced while it was being written.*audit\.zarr"):
        run()
    assert run(seed=77).equals(other)


class FullDisk:
    """An open file that takes five bytes."""

    def __init__(self, file):
        self._file = file

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._file.close()

    def write(self, content):
        self._file.write(content[:5])
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_is_named_and_what_was_stored_stays(run, tmp_path, expected, monkeypatch):
    written = count()

    def almost_full(path, mode):
        return FullDisk(open(path, mode)) if next(written) == 15 else open(path, mode)

    with monkeypatch.context() as patch:
        patch.setattr(writer, "open", almost_full, raising=False)
        with pytest.raises(OSError, match=r"No space left on device; what was stored.*audit\.zarr/\w+/") as error:
            run()
    assert error.value.errno == errno.ENOSPC
    assert not list(tmp_path.rglob("*.partial"))
    assert 0 < audits.status(tmp_path / "audit.zarr").stored < 300
    assert run().equals(expected)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="descriptors have names where Linux keeps them")
def test_numbers_are_on_the_disk_before_the_document_that_lists_them(run, tmp_path, monkeypatch):
    store, done = tmp_path / "audit.zarr", []
    replace = Path.replace

    def synced(descriptor):
        done.append(("synced", Path(os.readlink(f"/proc/self/fd/{descriptor}"))))

    def replaced(path, target):
        done.append(("there", Path(target)))
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", replaced)
    run()
    for number in range(3):
        listed = done.index(("there", store / f"shards/{number}/zarr.json"))
        for name in (f"score/c/{number}/0", f"bit/c/{number}"):
            there = done.index(("there", store / name))
            assert ("synced", store / f"{name}.partial") in done[:there]
            assert ("synced", (store / name).parent) in done[there:listed]


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


def test_a_folder_that_cannot_be_written(run, small_disk, tmp_path, expected, killed_midway):
    subprocess.run(["mount", "-o", "remount,size=1m", small_disk], check=True)
    store = small_disk / "audit.zarr"
    killed_midway(store=store)
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


def test_a_later_zarr_goes_on_as_the_store_was_begun(run, tmp_path, expected, monkeypatch, killed_midway):
    killed_midway()
    create = zarr.Group.create_array
    monkeypatch.setattr(
        zarr.Group, "create_array", lambda *a, **options: create(*a, **{**options, "compressors": None})
    )
    with zarr.config.set({"default_zarr_format": 2}):
        assert run().equals(expected)
        assert run().equals(expected)
