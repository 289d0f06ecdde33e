import errno
import os
import re
import shutil
import signal
import sys
import threading
from pathlib import Path

import pytest
import xarray as xr

from dpsub import audits
from dpsub.audits.storage import locks
from dpsub.audits.storage.writer import StoreWriter


def test_one_process_writes_at_a_time(run, tmp_path, expected, monkeypatch):
    store, put, told = tmp_path / "audit.zarr", StoreWriter._put, []

    def meanwhile(self, name, content):
        put(self, name, content)
        if name.startswith("shards/0"):
            told.append(str(audits.status(store)))
            with pytest.raises(BlockingIOError, match=r"another process is writing this store.*audit\.zarr"):
                run()

    monkeypatch.setattr(StoreWriter, "_put", meanwhile)
    assert run().equals(expected)
    assert "128 of 300 models, being written" in told[0]
    assert not audits.status(store).being_written


def test_files_that_another_process_renames_meanwhile_are_passed_over(run, tmp_path, expected, monkeypatch):
    run()
    shutil.rmtree(tmp_path / "audit.zarr/shards/1")
    listed = Path.iterdir

    def with_a_file_that_is_gone(folder):
        yield from listed(folder)
        yield folder / "zarr.json.partial"

    monkeypatch.setattr(Path, "iterdir", with_a_file_that_is_gone)
    assert run().equals(expected)
    assert audits.load(audits.pack(tmp_path / "audit.zarr")).equals(expected)


def test_a_file_system_without_locks_is_warned_about(run, monkeypatch):
    def flock(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(locks.fcntl, "flock", flock)
    with pytest.warns(UserWarning, match=r"audit.zarr cannot be locked \(No locks available\): let no other process"):
        run()


def test_a_look_at_the_status_does_not_keep_a_writer_out(run, tmp_path, expected, flip):
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


def test_ctrl_c_finishes_what_is_being_written_and_says_how_to_go_on(run, expected, tmp_path, monkeypatch):
    put, interrupted = StoreWriter._put, []
    elsewhere = signal.signal(signal.SIGINT, signal.default_int_handler)  # dask-jobqueue takes it when imported

    def interrupt(self, name, content):
        if name == "score/c/1/0" and not interrupted:
            interrupted.append(name)
            signal.raise_signal(signal.SIGINT)
        put(self, name, content)

    monkeypatch.setattr(StoreWriter, "_put", interrupt)
    told = r"256 of 300 models are in .*audit.zarr; the same call goes on from there"
    with pytest.raises(KeyboardInterrupt, match=told):
        run()
    assert "1" in os.listdir(tmp_path / "audit.zarr/shards")
    with xr.open_zarr(tmp_path / "audit.zarr", chunks=None) as opened:
        assert 0 < opened.attrs["models_stored"] < 300
        assert (opened.bit == -1).sum() == opened.score[:, 0].isnull().sum() == 300 - opened.attrs["models_stored"]
    assert signal.signal(signal.SIGINT, elsewhere) is signal.default_int_handler
    assert run().equals(expected)


def test_whoever_ends_the_process_leaves_word_of_what_is_there(run, tmp_path, monkeypatch, after_shard):
    after_shard(monkeypatch, 1, sys.exit)  # as dask-jobqueue does on Ctrl-C
    with pytest.raises(SystemExit) as ended:
        run()
    stored = audits.status(tmp_path / "audit.zarr").stored
    assert stored >= 128
    told = rf"{stored} of 300 models are in .*audit.zarr; the same call goes on from there"
    assert re.search(told, str(ended.value))
