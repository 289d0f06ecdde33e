import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest

from dpsub import audit, audits, crafters

OPTIONS = {"runs": 5, "device": "cpu", "progress": False}
SCENARIOS = {"S2": crafters.gradient, "S4": crafters.mislabeled}


@pytest.fixture
def stored(task, model, spec, tmp_path):
    """Stores an audit of each scenario for each name of a training, whose changes of the spec are given."""

    def audits_of(**trainings):
        found = {}
        for name, changes in trainings.items():
            changed = replace(spec, **changes)
            for scenario, craft in SCENARIOS.items():
                pair, store = craft(task, model, changed, seed=0), tmp_path / f"{name}-{scenario}.db"
                found[name, scenario] = audit(task, model, pair, changed, store=store, **OPTIONS)
        return found

    return audits_of


def test_all_audits_of_a_folder_are_loaded_by_label_and_scenario(stored, tmp_path):
    made = stored(half={"sample_rate": 0.5}, all={"sample_rate": 1.0})
    (tmp_path / "half-S4.db-rescued").write_text("left behind")
    (tmp_path / "notes.txt").write_text("no store")
    loaded, names = audits.load_all(tmp_path), {"half": "q = 0.5", "all": "q = 1"}
    assert len(loaded) == len(made) == 4
    for (name, scenario), one in made.items():
        assert loaded[names[name], scenario].identical(one)


def test_labels_must_tell_audits_apart(stored, tmp_path):
    made = stored(slow={"learning_rate": 0.01}, fast={"learning_rate": 0.1})
    with pytest.raises(ValueError, match=r"label must tell the audits in .* apart, got \('q = .*', 'S2'\) for two"):
        audits.load_all(tmp_path)
    loaded = audits.load_all(tmp_path, label="η = {learning_rate:g}")
    assert len(loaded) == 4
    assert loaded["η = 0.01", "S4"].identical(made["slow", "S4"])


def test_a_label_that_does_not_fit_the_attributes_is_refused(stored, tmp_path):
    stored(a={})
    with pytest.raises(KeyError, match="nothing"):
        audits.load_all(tmp_path, label="q = {nothing}")


def test_folders_without_audits_or_with_damaged_ones_are_named(stored, tmp_path):
    with pytest.raises(FileNotFoundError, match=f"folder must hold audits, .* got {tmp_path} without any"):
        audits.load_all(tmp_path)
    stored(one={})
    with closing(sqlite3.connect(tmp_path / "one-S4.db")) as store, store:
        store.execute("UPDATE shards SET data = zeroblob(9)")
    with pytest.raises(ValueError, match=r"(?s)store is damaged, .*one-S4\.db.*shards 0 are not what was written"):
        audits.load_all(tmp_path)
