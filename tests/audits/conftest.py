import os
import subprocess
from itertools import count
from pathlib import Path

import pytest

from dpsub import DPSGD, audit, crafters, data, models
from dpsub.audits.storage import writer
from dpsub.audits.storage.files import LOCK
from dpsub.audits.storage.writer import StoreWriter

SPEC = DPSGD(noise_multiplier=10.0, max_grad_norm=2.0, sample_rate=1.0, steps=4, learning_rate=0.01)
OPTIONS = {"runs": 300, "observe_every": 2, "seed": 3, "device": "cpu", "progress": False}  # three blocks


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch):
    """Nothing waits for the disk: a process that dies loses nothing that it wrote, only a power cut does."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture(scope="session")
def spec():
    return SPEC


@pytest.fixture(scope="session")
def task():
    return data.digits(n_train=30)


@pytest.fixture(scope="session")
def model(task):
    return models.linear(task)


@pytest.fixture(scope="session")
def canary(task, model, spec):
    return crafters.gradient(task, model, spec, seed=0)


@pytest.fixture(scope="session")
def expected(task, model, canary, spec):
    """What `run` finds with the usual arguments."""
    return audit(task, model, canary, spec, **OPTIONS)


@pytest.fixture
def run(task, model, canary, spec, tmp_path):
    """An audit into one store; what is given takes the place of the usual arguments."""

    def call(store=tmp_path / "audit.zarr", task=task, model=model, canary=canary, spec=spec, **options):
        return audit(task, model, canary, spec, store=store, **{**OPTIONS, **options})

    return call


@pytest.fixture
def forbid_training(monkeypatch):
    """From the call on, whatever trains fails."""

    def forbid():
        monkeypatch.setattr("dpsub.audits.shards.assemble", None)

    return forbid


@pytest.fixture(scope="session")
def flip():
    """Changes one bit of a file."""

    def change(path, at):
        content = bytearray(path.read_bytes())
        content[at % len(content)] ^= 1 << (at % 8)
        path.write_bytes(content)

    return change


@pytest.fixture(scope="session")
def files_of():
    """The files of a store, without the one that is locked."""
    return lambda store: sorted(path for path in store.rglob("*") if path.is_file() and path.name != LOCK)


class Killed(BaseException):
    """The process is no more."""


class TornFile:
    """An open file, of which only half of what is written arrives."""

    def __init__(self, file):
        self._file = file

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._file.close()

    def write(self, content):
        self._file.write(content[: len(content) // 2])
        raise Killed


@pytest.fixture
def dies_after():
    """Lets every change to the disk after so many fail, the first of them midway, as if the process were no more.

    It takes a MonkeyPatch, returns the counter of changes, and has the error that ends the process as `.error`.
    """

    def patch(monkeypatch, operations):
        done = count()

        def dying(original):
            def call(*arguments, **options):
                if next(done) >= operations:
                    raise Killed
                return original(*arguments, **options)

            return call

        def dying_open(path, mode):
            i = next(done)
            if i > operations:
                raise Killed
            return TornFile(open(path, mode)) if i == operations else open(path, mode)

        monkeypatch.setattr(writer, "open", dying_open, raising=False)
        monkeypatch.setattr(Path, "replace", dying(Path.replace))
        monkeypatch.setattr(Path, "unlink", dying(Path.unlink))
        return done

    patch.error = Killed
    return patch


@pytest.fixture
def killed_midway(run, dies_after):
    """Begins the usual audit and kills it once some of its shards are stored."""

    def begin(**options):
        with pytest.MonkeyPatch.context() as patch:
            dies_after(patch, 32)
            with pytest.raises(Killed):
                run(**options)

    return begin


@pytest.fixture
def after_shard():
    """Does something behind the store's back once this shard is written."""

    def patch(monkeypatch, number, act):
        write = StoreWriter.write

        def call(self, shard, arrays, made):
            write(self, shard, arrays, made)
            if shard.number == number:
                act()

        monkeypatch.setattr(StoreWriter, "write", call)

    return patch


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
