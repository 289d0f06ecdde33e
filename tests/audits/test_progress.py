import pytest

from dpsub import audit


def test_progress_counts_models_and_repeats_and_begins_where_the_store_is(run, capsys, monkeypatch, dies_after):
    with monkeypatch.context() as patch:
        dies_after(patch, 44)
        with pytest.raises(dies_after.error):
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


def test_progress_is_shown_only_when_wanted(task, model, canary, capsys, spec):
    audit(task, model, canary, spec, runs=2, observe_every=4, device="cpu", progress=False)
    assert capsys.readouterr().err == ""
    audit(task, model, canary, spec, runs=2, observe_every=4, device="cpu", progress=True)
    assert "S2 on digits" in capsys.readouterr().err
