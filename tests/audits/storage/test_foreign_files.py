"""What is not of an audit: links out of its folder, pipes, files of the user. None is opened, written or removed."""

import json
import os
import shutil
import socket
from hashlib import sha256

import pytest

from dpsub import audits
from dpsub.audits.storage.contents import Contents, vouched
from dpsub.audits.storage.files import LOCK

OWN = [
    "zarr.json.partial", ".dpsub-lock", "zarr.json", "score/zarr.json", "score/c/1/0", "score/c/1/0.partial", "bit/c/1",
    "shards/1/zarr.json", "shards/1/zarr.json.partial", "shards/1", "shards", "score/c/1", "score/c", "score",
    "canary/z",
]  # fmt: skip


def everything(folder):
    return {path: path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


@pytest.fixture
def unfinished(run, tmp_path):
    """A store that lacks one of its three shards."""
    store = tmp_path / "audit.zarr"
    run()
    for name in ("score/c/1", "bit/c/1", "shards/1"):
        shutil.rmtree(store / name) if (store / name).is_dir() else (store / name).unlink()
    return store


@pytest.mark.parametrize("name", OWN)
def test_a_link_below_a_store_is_neither_followed_nor_written_through(run, unfinished, tmp_path, name):
    outside, link = tmp_path / "outside", unfinished / name
    outside.mkdir()
    (outside / "file").write_text("mine")
    is_folder = link.is_dir() or name in ("shards/1", "score/c/1")
    if link.is_dir():
        shutil.move(link, outside / "folder")
    else:
        link.unlink(missing_ok=True)
    link.parent.mkdir(parents=True, exist_ok=True)
    (outside / "folder").mkdir(exist_ok=True)
    link.symlink_to(outside / ("folder" if is_folder else "file"))
    before = everything(outside)
    for repair in (False, True):
        with pytest.raises(ValueError, match="store (is damaged|must hold only its audit|holds|must be)") as error:
            run(repair=repair)
        assert "link" in str(error.value) or not repair
    for call in (audits.load, audits.pack):
        with pytest.raises(ValueError, match="store"):
            call(unfinished)
    assert not audits.status(unfinished).complete
    assert everything(outside) == before


@pytest.mark.parametrize("dangling", [".dpsub-lock", "zarr.json.partial"])
def test_a_link_to_nothing_makes_nothing(run, unfinished, tmp_path, dangling):
    (unfinished / dangling).unlink(missing_ok=True)
    (unfinished / dangling).symlink_to(tmp_path / "made")
    with pytest.raises(ValueError, match=f"store must hold only its audit to be written, .* '{dangling}', a link"):
        run()
    assert not (tmp_path / "made").exists()


def test_a_folder_that_is_reached_through_a_link_is_a_store(run, unfinished, tmp_path, expected):
    (tmp_path / "link.zarr").symlink_to(unfinished)
    assert run(store=tmp_path / "link.zarr").equals(expected)
    assert audits.load(tmp_path / "link.zarr").equals(expected)


def test_a_second_name_of_a_users_file_is_removed_and_not_written_to(run, unfinished, tmp_path, expected):
    (tmp_path / "mine.txt").write_text("mine")
    os.link(tmp_path / "mine.txt", unfinished / "zarr.json.partial")
    assert run().equals(expected)
    assert (tmp_path / "mine.txt").read_text() == "mine"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
@pytest.mark.parametrize("name", [name for name in OWN if "." in name or name in ("score/c/1/0", "bit/c/1")])
def test_a_pipe_in_the_place_of_a_file_is_not_opened(run, unfinished, name):
    """Opening it would wait for whoever writes to it."""
    path = unfinished / name
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)
    assert not audits.status(unfinished).complete
    assert not audits.status(unfinished).being_written
    for call in (audits.load, audits.pack, lambda _: run(repair=True)):
        with pytest.raises(ValueError, match="store"):
            call(unfinished)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
def test_a_pipe_in_the_place_of_a_store_is_not_opened(run, tmp_path):
    os.mkfifo(tmp_path / "audit.zarr")
    os.mkfifo(tmp_path / "other.zarr.zip")
    for store in (tmp_path / "audit.zarr", tmp_path / "other.zarr"):
        for call in (audits.load, audits.status, audits.pack, lambda store: run(store=store)):
            with pytest.raises(ValueError, match="store must be an audit's folder, or an audit packed into one file"):
                call(store)


@pytest.mark.parametrize("name", ["/etc/hostname", "../mine.txt", "score/../../mine.txt", "C:\\mine.txt", "", "pipe"])
def test_names_that_lead_out_of_a_store_are_not_read(run, tmp_path, name):
    """In a shard of a store whose root is lost, so that nothing else says which files there are."""
    store = tmp_path / "audit.zarr"
    run()
    (tmp_path / "mine.txt").write_text("mine")
    os.mkfifo(store / "pipe")
    document = json.loads((store / "shards/1/zarr.json").read_bytes())
    document["attributes"]["files"][name] = sha256(b"mine").hexdigest()
    (store / "shards/1/zarr.json").write_bytes(vouched(document))
    (store / "zarr.json").unlink()
    contents = Contents(store)
    assert name in contents.damaged
    assert contents.damaged_shards == {1}
    assert "cannot be read: it" in contents.damaged[name]


def test_a_users_files_are_never_removed_and_a_folder_with_them_is_not_written(run, unfinished, expected):
    (unfinished / "notes").mkdir()
    mine = unfinished / "notes/download.iso.partial"
    mine.write_text("mine")
    told = (
        r"store must hold only its audit to be written, got .*audit\.zarr with 'notes', a folder that does not belong "
    )
    for repair in (False, True):
        with pytest.raises(ValueError, match=told + "there: move that away, then the same call goes on"):
            run(repair=repair)
    assert audits.status(unfinished).stored == 172
    for name in ("keep.partial", "score/c/1/0.txt.partial", "score/c/9/0.partial", "shards/1/notes.partial"):
        shutil.rmtree(unfinished / "notes", ignore_errors=True)
        (unfinished / name).parent.mkdir(parents=True, exist_ok=True)
        (unfinished / name).write_text("mine")
        with pytest.raises(ValueError, match="store must hold only its audit"):
            run()
        assert (unfinished / name).read_text() == "mine"
        (unfinished / name).unlink()
        if name.startswith("score/c/9"):
            (unfinished / "score/c/9").rmdir()
    for name in ("zarr.json.partial", "score/c/1/0.partial", "shards/1/zarr.json.partial", "canary/z/c/0/0.partial"):
        (unfinished / name).parent.mkdir(parents=True, exist_ok=True)
        (unfinished / name).write_text("half")
    assert run().equals(expected)
    assert not list(unfinished.rglob("*.partial"))


def test_a_users_folder_with_a_lock_is_not_taken_for_a_store(run, tmp_path):
    place = tmp_path / "thesis"
    (place / "chapters").mkdir(parents=True)
    (place / "chapters/one.tex.partial").write_text("mine")
    (place / LOCK).write_text("")
    before = everything(place)
    with pytest.raises(ValueError, match="store must hold only its audit to be written, got .*thesis with 'chapters'"):
        run(store=place)
    assert everything(place) == before
    (place / LOCK).unlink()
    with pytest.raises(ValueError, match="store must be a folder of its own, got .*thesis, which holds 'chapters'"):
        run(store=place)


def test_files_that_systems_make_are_left_alone(run, unfinished, tmp_path, expected):
    for name in (".DS_Store", "score/._c", "Thumbs.db", "shards/.nfs0000001"):
        (unfinished / name).write_text("system")
    assert run().equals(expected)
    assert (unfinished / "score/._c").read_text() == "system"
    with pytest.raises(ValueError, match=r"store must hold only its audit to be packed, .* with '\.DS_Store': move"):
        audits.pack(unfinished)
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty/.DS_Store").write_text("system")
    assert run(store=tmp_path / "empty").equals(expected)


def test_a_complete_store_is_read_beside_a_users_files(run, tmp_path, expected, forbid_training):
    store = tmp_path / "audit.zarr"
    run()
    (store / "notes.txt").write_text("mine")
    forbid_training()
    assert run().equals(expected)
    assert audits.load(store).equals(expected)
    assert audits.status(store).complete


def test_packing_writes_through_no_link(run, tmp_path):
    store, mine = tmp_path / "audit.zarr", tmp_path / "mine.txt"
    run()
    mine.write_text("mine")
    (tmp_path / "audit.zarr.zip.partial").symlink_to(mine)
    audits.pack(store)
    assert mine.read_text() == "mine"
    assert sorted(os.listdir(tmp_path)) == ["audit.zarr.zip", "mine.txt"]


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="needs sockets in the file system")
def test_a_socket_in_a_store_is_foreign(run, unfinished, monkeypatch):
    monkeypatch.chdir(unfinished)
    with socket.socket(socket.AF_UNIX) as there:
        there.bind("socket")
        with pytest.raises(ValueError, match="with 'socket', a pipe or device that does not belong there"):
            run()
