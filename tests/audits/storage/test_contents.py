"""Damage: what is not what was written is noticed, named and mended."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

from dpsub import audits
from dpsub.audits import many_runs
from dpsub.audits.storage.files import LOCK


def test_a_flipped_byte_anywhere_is_noticed_named_and_mended(run, tmp_path, expected, flip, files_of):
    store = tmp_path / "audit.zarr"
    run()
    for at, path in enumerate(files_of(store)):
        name, whole = path.relative_to(store).as_posix(), path.read_bytes()
        flip(path, 37 * at + len(path.read_bytes()) // 2)
        if list(audits.status(store).damaged) != [name]:  # white space, of which no number depends
            assert path.name == "zarr.json"
            assert json.loads(path.read_bytes()) == json.loads(whole)
        else:
            with pytest.raises(ValueError, match=f"(?s)store is damaged.*{name} is .*repair=True"):
                run()
        assert run(repair=True).equals(expected)
        assert audits.status(store).complete


def test_damage_is_told_by_runs_and_only_what_is_lost_is_trained_again(run, tmp_path, expected, monkeypatch, flip):
    store = tmp_path / "audit.zarr"
    run()
    flip(store / "score/c/1/0", 50)
    (store / "bit/c/2").unlink()
    trained = []
    original = many_runs.train_shard
    monkeypatch.setattr(
        many_runs, "train_shard", lambda plan, shard, *a: trained.append(shard.number) or original(plan, shard, *a)
    )
    with pytest.raises(ValueError, match=r"bit/c/2 is missing \(runs 256 to 299 of repeat 0\)"):
        run()
    assert audits.status(store).stored == 128
    assert run(repair=True).equals(expected)
    assert sorted(trained) == [1, 2]


def test_a_store_that_lost_what_it_says_of_itself_keeps_its_shards(run, tmp_path, expected, forbid_training):
    store = tmp_path / "audit.zarr"
    run()
    (store / "zarr.json").unlink()
    (store / LOCK).unlink()
    with pytest.raises(ValueError, match=r"(?s)store is damaged.*zarr\.json is missing.*repair=True"):
        run()
    forbid_training()
    assert run(repair=True).equals(expected)


def test_what_a_damaged_store_says_of_itself_is_not_replaced_by_another_audit(run, tmp_path, expected, flip):
    run()
    flip(tmp_path / "audit.zarr/zarr.json", 200)
    with pytest.raises(ValueError, match="store holds shards of another audit than the one asked for"):
        run(seed=4, repair=True)
    assert run(repair=True).equals(expected)


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
    with pytest.raises(ValueError, match="store must hold only its audit to be written, got .* with 'shards/7', a fol"):
        run(repair=True)
    shutil.rmtree(store / "shards/7")
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
    shutil.rmtree(store / "shards/1 (copy)")
    for name in ("zarr.json", "shards/1/zarr.json"):
        (store / name).write_bytes(content)
        with pytest.raises(ValueError, match=f"(?s)store is damaged.*{name} is"):
            run()
        assert not audits.status(store).complete
        assert run(repair=True).equals(expected)
        assert run().equals(expected)


@pytest.mark.parametrize("name", ["zarr.json", "score/zarr.json", "step/c/0", "shards/1/zarr.json", "score/c/1/0"])
def test_a_folder_in_the_place_of_a_file_is_damage_and_to_be_moved_away(run, tmp_path, expected, name):
    store = tmp_path / "audit.zarr"
    run()
    (store / name).unlink()
    (store / name).mkdir()
    (store / name / "mine").write_text("x")
    with pytest.raises(ValueError, match=rf"(?s)store is damaged.*{name} cannot be read: it is a folder"):
        run()
    assert audits.status(store).damaged.keys() == {name}
    with pytest.raises(ValueError, match=rf"store must hold only .* with '{name}', a folder that .*: move that away"):
        run(repair=True)
    (store / name).rename(tmp_path / "moved")
    assert run(repair=True).equals(expected)
    assert (tmp_path / "moved/mine").read_text() == "x"


def test_a_damaged_root_can_be_mended_where_numbers_differ_by_rounding(run, tmp_path, canary, expected, flip, spec):
    run()
    flip(tmp_path / "audit.zarr/step/c/0", 3)
    nearly = replace(canary, z=canary.z * np.float32(1 + 1e-6))
    assert run(canary=nearly, spec=replace(spec, noise_multiplier=10.0 * (1 + 1e-9)), repair=True).equals(expected)
