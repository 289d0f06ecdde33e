"""Finished audits in one file each: read like their folders, and never read when they are not what was packed."""

import os
import re
import shutil
import zipfile
from contextlib import suppress
from io import BytesIO
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
import zarr

from dpsub import DPSGD, CanaryPair, audit, audits, data, models
from dpsub.audits.storage import archive, locks


@pytest.fixture
def packed(run, tmp_path):
    """An audit of two repeats, its packed file, and the options that it was made with."""
    options = {"repeats": 2, "metrics": ("accuracy", "weights")}
    made = run(**options)
    return made, audits.pack(tmp_path / "audit.zarr"), options


def test_a_packed_audit_is_read_like_its_folder(run, tmp_path, packed, forbid_training):
    made, path, options = packed
    assert path == tmp_path / "audit.zarr.zip"
    assert os.listdir(tmp_path) == ["audit.zarr.zip"]
    forbid_training()
    for name in (tmp_path / "audit.zarr", path, str(path), f"{tmp_path}/audit.zarr/"):
        assert audits.load(name).identical(made)
        assert run(store=name, **options).identical(made)
        assert run(store=name, repair=True, device="auto", **options).identical(made)
        status = audits.status(name)
        assert status.complete
        assert not status.being_written
        assert (status.store, status.models, status.stored, status.damaged) == (path, 600, 600, {})
        assert (status.device, status.commit) == ("cpu", made.attrs["commit"])
    assert os.listdir(tmp_path) == ["audit.zarr.zip"], "reading writes nothing"


def test_a_packed_audit_says_what_its_folder_said(run, tmp_path):
    run()
    before = audits.status(tmp_path / "audit.zarr")
    assert audits.status(audits.pack(tmp_path / "audit.zarr")) == before._replace(store=tmp_path / "audit.zarr.zip")


def test_xarray_opens_a_packed_audit(packed):
    made, path, _ = packed
    with zarr.storage.ZipStore(path, mode="r") as store, xr.open_zarr(store) as opened:
        assert opened.equals(made)
        # xarray takes an attribute of this name for the CF conventions' and drops it.
        assert opened.attrs.items() >= made.attrs.items()


def test_packing_keeps_every_file(run, tmp_path, files_of):
    store = tmp_path / "audit.zarr"
    run()
    there = {path.relative_to(store).as_posix(): path.read_bytes() for path in files_of(store)}
    with zipfile.ZipFile(audits.pack(store)) as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == there
        assert {info.compress_type for info in archive.infolist()} == {zipfile.ZIP_STORED}


def test_packing_the_same_again_gives_the_same_bytes(run, tmp_path):
    run()
    shutil.copytree(tmp_path / "audit.zarr", tmp_path / "copy.zarr")
    (tmp_path / "copy.zarr/score/c/0/0").touch()
    one, other = audits.pack(tmp_path / "audit.zarr"), audits.pack(tmp_path / "copy.zarr")
    content = one.read_bytes()
    assert other.read_bytes() == content
    for name in (one, tmp_path / "audit.zarr"):
        assert audits.pack(name) == one
        assert one.read_bytes() == content


def test_another_audit_than_the_packed_one_is_refused(run, tmp_path, packed):
    _, path, options = packed
    content = path.read_bytes()
    for change, told in (({"seed": 4}, "seed: stored 3, asked for 4"), ({"runs": 301}, "runs: stored 300")):
        for repair in (False, True):
            with pytest.raises(ValueError, match=rf"(?s)store holds another audit, .*audit\.zarr\.zip:.*{told}"):
                run(repair=repair, **{**options, **change})
    assert path.read_bytes() == content
    assert os.listdir(tmp_path) == ["audit.zarr.zip"]


def test_what_is_not_whole_is_not_packed(run, tmp_path, flip, killed_midway):
    store = tmp_path / "audit.zarr"
    with pytest.raises(ValueError, match="store must be an audit's folder, got .*, where there is none"):
        audits.pack(store)
    killed_midway()
    with pytest.raises(ValueError, match="store must be complete, got .* of 300 models"):
        audits.pack(store)
    made = run()
    flip(store / "score/c/1/0", 50)
    with pytest.raises(ValueError, match=r"(?s)store is damaged, .*score/c/1/0 is not what was written"):
        audits.pack(store)
    assert run(repair=True).equals(made)
    assert sorted(os.listdir(tmp_path)) == ["audit.zarr"]


@pytest.mark.skipif(locks.fcntl is None, reason="needs locks")
def test_a_store_that_is_being_written_is_not_packed(run, tmp_path):
    store = tmp_path / "audit.zarr"
    run()
    with open(store / ".dpsub-lock", "ab") as lock:
        locks.take(lock, store)
        with pytest.raises(ValueError, match="store must not be written while it is packed, got .*audit.zarr"):
            audits.pack(store)
    assert audits.pack(store).exists()


@pytest.mark.parametrize(
    ("foreign", "named"),
    [
        ("notes.txt", "notes.txt"),
        ("score/c/7/0", "score/c/7"),
        ("shards/1/notes.txt", "shards/1/notes.txt"),
        ("zarr.json.partial", "zarr.json.partial"),
    ],
)
def test_a_folder_with_something_elses_file_is_not_packed(run, tmp_path, files_of, foreign, named):
    store = tmp_path / "audit.zarr"
    run()
    (store / foreign).parent.mkdir(exist_ok=True)
    (store / foreign).write_text("mine")
    before = files_of(store)
    with pytest.raises(ValueError, match=f"store must hold only its audit to be packed, got .* with '{named}'"):
        audits.pack(store)
    assert files_of(store) == before
    assert os.listdir(tmp_path) == ["audit.zarr"]
    (store / foreign).unlink()
    if named != foreign and named.startswith("score"):
        (store / named).rmdir()
    assert audits.load(audits.pack(store)).equals(run())


def test_a_folder_and_a_packed_file_of_one_name_are_not_guessed_between(run, tmp_path, packed):
    made, path, options = packed
    run(store=tmp_path / "other.zarr", seed=4)
    (tmp_path / "other.zarr").rename(tmp_path / "audit.zarr")
    for read in (audits.load, audits.status, audits.pack, lambda store: run(store=store, **options)):
        with pytest.raises(
            ValueError, match=r"store must be one audit, got .*audit\.zarr and, packed, .*\.zip: remove"
        ):
            read(tmp_path / "audit.zarr")
    assert audits.load(path).identical(made)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """An audit of few bytes: its folder, and the call that made it."""
    place = tmp_path_factory.mktemp("small") / "audit.zarr"
    task = data.from_arrays(np.eye(3), [0, 1, 0])
    pair, spec = CanaryPair(([1, 2, 3], 0), ([1, 2, 3], 1), 0, "S4"), DPSGD(1.0, 1.0, 1.0, 1, 0.1)

    def call(store):
        return audit(task, models.linear(task), pair, spec, runs=1, store=store, device="cpu", progress=False)

    call(place)
    return place, call


@pytest.fixture(scope="module")
def small_packed(small, tmp_path_factory):
    """The same, packed: its bytes, and the call."""
    folder, call = small
    path = audits.pack(shutil.copytree(folder, tmp_path_factory.mktemp("packed") / "audit.zarr"))
    assert call(path).identical(call(folder))
    return path.read_bytes(), call


class Killed(BaseException):
    """The process is no more."""


def dies_after(monkeypatch, operations):
    """Every change to the disk after so many fails, as if the process were no more; a file is written half."""
    done = count()

    def dying(original, torn=False):
        def call(*arguments, **options):
            i = next(done)
            if i == operations and torn:
                path, content = arguments
                original(path, content[: len(content) // 2])
            if i >= operations:
                raise Killed
            return original(*arguments, **options)

        return call

    monkeypatch.setattr(zipfile.ZipFile, "writestr", dying(zipfile.ZipFile.writestr))
    monkeypatch.setattr(Path, "write_bytes", dying(Path.write_bytes, torn=True))
    for name in ("replace", "unlink", "rmdir"):
        monkeypatch.setattr(Path, name, dying(getattr(Path, name)))
    return done


def test_packing_that_is_killed_at_any_moment_leaves_the_folder_or_the_file(small, tmp_path, monkeypatch):
    whole, call = small
    made, store = call(whole), shutil.copytree(whole, tmp_path / "audit.zarr")
    with monkeypatch.context() as patch:
        operations = dies_after(patch, 10**6)
        content = audits.pack(store).read_bytes()
        needed = next(operations)
    assert needed > 30
    left = {"folder": 0, "file": 0}
    for n in range(needed):
        place = tmp_path / str(n)
        shutil.copytree(whole, place / "audit.zarr")
        with monkeypatch.context() as patch:
            dies_after(patch, n)
            with pytest.raises(Killed):
                audits.pack(place / "audit.zarr")
        if not (place / "audit.zarr.zip").exists():
            left["folder"] += 1
            assert audits.load(place / "audit.zarr").identical(made)
            assert audits.pack(place / "audit.zarr").read_bytes() == content
            assert os.listdir(place) == ["audit.zarr.zip"]
        else:
            left["file"] += 1
            assert (place / "audit.zarr.zip").read_bytes() == content
            with pytest.raises(ValueError, match="store must be one audit"):
                audits.load(place / "audit.zarr")
            shutil.rmtree(place / "audit.zarr")
            assert audits.load(place / "audit.zarr").identical(made)
    assert min(left.values()) > 10


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="descriptors have names where Linux keeps them")
def test_the_packed_file_is_on_the_disk_before_the_folder_goes(small, tmp_path, monkeypatch):
    whole, _ = small
    store, done, unlink = shutil.copytree(whole, tmp_path / "audit.zarr"), [], Path.unlink

    def synced(descriptor):
        done.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)

    def removed(path, **options):
        done.append("removed")
        unlink(path, **options)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "unlink", removed)
    audits.pack(store)
    assert "audit.zarr.zip.partial" in done[: done.index("removed")]


def test_a_disk_that_is_full_leaves_the_folder(run, tmp_path, monkeypatch):
    made = run()

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(zipfile.ZipFile, "writestr", full)
        with pytest.raises(OSError, match="No space left on device"):
            audits.pack(tmp_path / "audit.zarr")
    assert audits.load(tmp_path / "audit.zarr").identical(made)
    assert audits.load(audits.pack(tmp_path / "audit.zarr")).identical(made)


@pytest.mark.parametrize("share", [0.3, 0.97])
def test_what_does_not_read_back_is_not_packed(run, tmp_path, monkeypatch, share):
    """A disk that lies: what was written is not what is read."""
    made, write = run(), archive.write_archive

    def lies(path, files):
        write(path, files)
        content = path.read_bytes()
        at = int(share * len(content))
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])

    with monkeypatch.context() as patch:
        patch.setattr(archive, "write_archive", lies)
        with pytest.raises((OSError, ValueError), match=r"audit\.zarr\.zip\.partial"):
            audits.pack(tmp_path / "audit.zarr")
    assert audits.load(tmp_path / "audit.zarr").identical(made)


def never_read(path, call, told):
    """Whether no way to read a file gives a number, and all name its path."""
    for read in (audits.load, call):
        with pytest.raises(ValueError, match=f"store (is|must) .*{re.escape(str(path))}"):
            read(path)
    with suppress(ValueError):
        status = audits.status(path)
        assert not status.complete, told
        assert path.name in status.damaged, told
        return
    with pytest.raises(ValueError, match=re.escape(str(path))):
        audits.status(path)


def changes(content, places):
    """The content with one byte changed: a single bit, all bits, or to a zero."""
    for at in places:
        for value in (content[at] ^ 1 << at % 8, content[at] ^ 0xFF, 0):
            if value != content[at]:
                yield at, content[:at] + bytes([value]) + content[at + 1 :]


def test_a_changed_byte_is_noticed_and_nothing_is_read(small_packed, tmp_path):
    """In the first file's header, the last one's place in the directory, the directory's own place, and anywhere."""
    (content, call), copy = small_packed, tmp_path / "audit.zarr.zip"
    last, end = content.rindex(b"PK\x01\x02"), content.rindex(b"PK\x05\x06")
    sample = np.random.default_rng(0).choice(len(content), 60, replace=False).tolist()
    places = {*range(30), *range(last, last + 46), *range(end, end + 40), *range(len(content) - 10, len(content))}
    for at, changed in changes(content, sorted(places.union(sample))):
        copy.write_bytes(changed)
        never_read(copy, call, at)


@pytest.mark.slow
def test_any_changed_byte_is_noticed_and_nothing_is_read(small_packed, tmp_path):
    (content, call), copy = small_packed, tmp_path / "audit.zarr.zip"
    for at in range(len(content)):
        _, changed = next(changes(content, [at]))
        copy.write_bytes(changed)
        never_read(copy, call, at)


def test_a_file_that_was_cut_short_anywhere_is_not_read(small_packed, tmp_path):
    (content, call), copy = small_packed, tmp_path / "audit.zarr.zip"
    ends = {*range(0, len(content), 97), *range(len(content) - 110, len(content))}
    for end in sorted(ends):
        copy.write_bytes(content[:end])
        never_read(copy, call, end)
    for longer in (content + b"x", b"x" + content, content + content):
        copy.write_bytes(longer)
        never_read(copy, call, len(longer))


def test_a_file_that_was_packed_by_others_is_not_read(small_packed, tmp_path):
    packed, call = small_packed
    with zipfile.ZipFile(BytesIO(packed)) as archive:
        files, comment = {name: archive.read(name) for name in archive.namelist()}, archive.comment
    for compression in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        for kept in (files, {"letter.txt": b"Dear Anna"}, {}):
            copy = tmp_path / f"{compression}-{len(kept)}.zarr.zip"
            with zipfile.ZipFile(copy, "w", compression) as archive:
                for name, content in kept.items():
                    archive.writestr(name, content)
                archive.comment = comment
            never_read(copy, call, (compression, list(kept)))


def test_a_packed_file_is_not_repaired_but_to_be_copied_again(run, packed):
    _, path, options = packed
    content = path.read_bytes()
    damaged = content[:5_000] + b"?" + content[5_001:]
    path.write_bytes(damaged)
    for repair in (False, True):
        with pytest.raises(ValueError, match="(?s)store is damaged, .*copy it again from an undamaged original, or"):
            run(repair=repair, **options)
    assert path.read_bytes() == damaged
