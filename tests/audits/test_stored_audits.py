import shutil

import pytest
import xarray as xr

from dpsub import audits
from dpsub.audits.storage.writer import StoreWriter
from dpsub.estimators import epsilon_lower_bound


def test_complete_stores_are_read_without_what_they_were_made_on(run, tmp_path):
    made = run(repeats=2)
    xr.testing.assert_identical(audits.load(tmp_path / "audit.zarr"), made)


def test_readers_of_a_store_that_was_killed_see_how_many_models_there_are(run, tmp_path, after_shard):
    path = tmp_path / "audit.zarr"
    with pytest.MonkeyPatch.context() as patch:

        def die():  # without a last word
            patch.setattr(StoreWriter, "put_root", lambda store: None)
            raise KeyboardInterrupt

        after_shard(patch, 1, die)
        with pytest.raises(KeyboardInterrupt):
            run()
    stored = audits.status(path).stored
    with xr.open_zarr(path, chunks=None) as opened:
        assert opened.attrs["models_stored"] == stored == int((opened.bit >= 0).sum()) > 0
        with pytest.raises(
            ValueError, match=f"{300 - stored} of 300 runs are not trained yet.*finish the audit, or drop"
        ):
            epsilon_lower_bound(opened.score, opened.bit, delta=1e-5)
        trained = opened.isel(run=opened.bit.values >= 0)
        assert len(epsilon_lower_bound(trained.score, trained.bit, delta=1e-5)) == opened.sizes["step"]


def test_stores_that_are_absent_partial_or_damaged_are_not_read(run, tmp_path, flip):
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
    path = tmp_path / "audit.zarr"
    put = StoreWriter.put_root

    def put_once(store):
        if not store.missing:
            raise KeyboardInterrupt
        put(store)

    with monkeypatch.context() as killed:
        killed.setattr(StoreWriter, "put_root", put_once)
        with pytest.raises(KeyboardInterrupt):
            run()
    loaded = audits.load(path)
    assert loaded.models_stored == 300
    xr.testing.assert_identical(loaded, run())
