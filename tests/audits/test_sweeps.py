import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest

from dpsub import audit, audits, crafters

OPTIONS = {"runs": 5, "device": "cpu", "progress": False}
SPECS = {"q = 0.5": 0.5, "q = 1": 1.0}


@pytest.fixture(scope="module")
def specs(spec):
    return {label: replace(spec, sample_rate=q) for label, q in SPECS.items()}


@pytest.fixture(scope="module")
def scenarios():
    return {"S2": crafters.gradient, "S4": crafters.mislabeled}


def test_a_sweep_is_every_scenario_under_every_spec(task, model, specs, scenarios):
    found = audits.sweep(task, model, specs, scenarios=scenarios, seed=2, **OPTIONS)
    assert list(found) == [("q = 0.5", "S2"), ("q = 0.5", "S4"), ("q = 1", "S2"), ("q = 1", "S4")]
    for (label, scenario), one in found.items():
        pair = scenarios[scenario](task, model, specs[label], seed=2)
        assert one.identical(audit(task, model, pair, specs[label], seed=2, **OPTIONS))
    other = audits.sweep(task, model, specs, scenarios=scenarios, seed=3, **OPTIONS)
    assert not any(other[key].score.equals(found[key].score) for key in found)


def test_scenarios_are_the_papers_unless_told_otherwise(task, model, canary, spec, monkeypatch):
    names = ["S2", "S3", "S4", "S5"]
    assert list(crafters.BY_SCENARIO) == names
    for name in names:
        monkeypatch.setitem(crafters.BY_SCENARIO, name, lambda *_, seed, of=name: replace(canary, scenario=of))
    found = audits.sweep(task, model, {"one": spec}, **OPTIONS)
    assert {key: one.attrs["scenario"] for key, one in found.items()} == {("one", name): name for name in names}


def test_a_sweep_that_is_stored_is_read_and_loaded_whole(task, model, specs, scenarios, tmp_path, forbid_training):
    arguments = {"scenarios": scenarios, "results": tmp_path / "results", **OPTIONS}
    made = audits.sweep(task, model, specs, **arguments)
    stores = sorted(path.name for path in (tmp_path / "results").iterdir())
    assert stores == ["q=0.5-S2.db", "q=0.5-S4.db", "q=1-S2.db", "q=1-S4.db"]
    (tmp_path / "results/q=0.5-S4.db-rescued").write_text("left behind")
    (tmp_path / "results/notes.txt").write_text("no store")
    loaded = audits.load_all(tmp_path / "results")
    assert loaded.keys() == made.keys()
    pairs = {
        scenario: {spec: craft(task, model, spec, seed=0) for spec in specs.values()}
        for scenario, craft in scenarios.items()
    }
    again = {scenario: lambda *of, seed, pairs=of: pairs[of[2]] for scenario, of in pairs.items()}
    forbid_training()
    read = audits.sweep(task, model, specs, **{**arguments, "scenarios": again})
    for key in made:
        assert loaded[key].identical(made[key])
        assert read[key].identical(made[key])
        assert loaded[key].attrs["scenario"] == key[1]
        assert loaded[key].attrs["sample_rate"] == SPECS[key[0]]


def test_labels_must_tell_audits_apart(task, model, spec, scenarios, tmp_path):
    specs = {f"η = {rate}": replace(spec, learning_rate=rate) for rate in (0.01, 0.1)}
    made = audits.sweep(task, model, specs, scenarios={"S2": scenarios["S2"]}, results=tmp_path, **OPTIONS)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["eta=0.01-S2.db", "eta=0.1-S2.db"]
    with pytest.raises(ValueError, match=r"label must tell the audits in .* apart, got \('q = 1', 'S2'\) for two"):
        audits.load_all(tmp_path)
    loaded = audits.load_all(tmp_path, label="η = {learning_rate:g}")
    assert loaded.keys() == made.keys()
    assert all(loaded[key].identical(made[key]) for key in made)


def test_labels_that_are_no_file_names_are_refused_before_they_are_stored(task, model, spec, scenarios, tmp_path):
    for label in ("../q", "q/1", "", "naïve"):
        with pytest.raises(ValueError, match="specs must have labels of letters, digits and"):
            audits.sweep(task, model, {label: spec}, scenarios=scenarios, results=tmp_path / "results", **OPTIONS)
    assert not list(tmp_path.iterdir())


def test_names_are_checked_before_the_first_audit(task, model, spec, scenarios, tmp_path, forbid_training):
    forbid_training()
    sweep = {"task": task, "model": model, "results": tmp_path / "results", **OPTIONS}
    with pytest.raises(ValueError, match="specs must have labels of letters"):
        audits.sweep(**sweep, specs={"q = 1": spec, "../q": spec}, scenarios=scenarios)
    with pytest.raises(ValueError, match="scenarios must have labels of letters"):
        audits.sweep(**sweep, specs={"q = 1": spec}, scenarios={**scenarios, "../S2": scenarios["S2"]})
    assert not list(tmp_path.iterdir())


def test_a_label_that_does_not_fit_the_attributes_is_refused(task, model, spec, scenarios, tmp_path):
    audits.sweep(task, model, {"a": spec}, scenarios={"S4": scenarios["S4"]}, results=tmp_path, **OPTIONS)
    with pytest.raises(KeyError, match="nothing"):
        audits.load_all(tmp_path, label="q = {nothing}")


def test_folders_without_audits_or_with_damaged_ones_are_named(task, model, spec, scenarios, tmp_path):
    with pytest.raises(FileNotFoundError, match=f"folder must hold audits, .* got {tmp_path} without any"):
        audits.load_all(tmp_path)
    audits.sweep(task, model, {"q = 1": spec}, scenarios=scenarios, results=tmp_path, **OPTIONS)
    with closing(sqlite3.connect(tmp_path / "q=1-S4.db")) as store, store:
        store.execute("UPDATE shards SET data = zeroblob(9)")
    with pytest.raises(ValueError, match=r"(?s)store is damaged, .*q=1-S4\.db.*shards 0 are not what was written"):
        audits.load_all(tmp_path)
