"""Further repeats by studies/beyond_membership/more_repeats.py are those that an audit with repeats would have made."""

import json

import numpy as np
import pytest

import dpsub
from dpsub import audits, crafters, data, models
from studies.beyond_membership import more_repeats, shorter_features

TASK = data.digits(n_train=30, seed=0)
OPTIONS = {"runs": 6, "observe_every": 2, "seed": 0, "device": "cpu", "progress": False}


@pytest.fixture
def parameters(tmp_path):
    """Writes a preset's file that names the records of a folder's audits."""

    def write(n_train):
        path = tmp_path / "paper.yaml"
        given = {"features": None, "name": "digits", "n_train": n_train, "n_aux": 500}
        path.write_text(json.dumps({"figure": given}))
        return path

    return write


def audited(scenario, **options):
    model, spec = models.linear(TASK), dpsub.DPSGD(3.0, 2.0, 0.5, 4, 0.1)
    pair = crafters.BY_SCENARIO[scenario](TASK, model, spec, seed=0)
    return dpsub.audit(TASK, model, pair, spec, **OPTIONS, **options)


@pytest.mark.parametrize(("scenario", "there"), [("S2", 1), ("S4", 2), ("S5", 1)])
def test_further_repeats_are_those_of_an_audit_with_repeats(tmp_path, parameters, scenario, there):
    audited(scenario, repeats=there, store=tmp_path / "figure/a.db")
    more_repeats.main(tmp_path / "figure", "3", parameters(n_train=30))
    whole = audited(scenario, repeats=3)
    (joined,) = more_repeats.with_repeats(tmp_path / "figure", "{scenario}").values()
    assert joined.score.dims == whole.score.dims
    for name in ("score", "bit"):
        np.testing.assert_array_equal(joined[name], whole[name])


def test_a_preset_of_other_records_is_refused(tmp_path, parameters):
    audited("S4", store=tmp_path / "figure/a.db")
    with pytest.raises(ValueError, match=r"PARAMETERS must name the records of .*a\.db, got .*paper\.yaml"):
        more_repeats.main(tmp_path / "figure", "2", parameters(n_train=31))
    assert not (tmp_path / "figure/repeat=1").exists()


def test_with_shorter_features_the_same_natural_sample_has_a_shorter_gradient(tmp_path, parameters, monkeypatch):
    whole = audited("S5", store=tmp_path / "figure/C=2-S5.db")
    monkeypatch.setattr(shorter_features, "BOUNDS", (2,))
    shorter_features.main(tmp_path / "figure", parameters(n_train=30))
    norms = [whole.canary_norm]
    for part in sorted(shorter_features.PARTS, reverse=True):
        again = audits.load(tmp_path / f"figure/norm={part:g}/C=2-S5.db")
        assert again.sizes["repeat"] == shorter_features.REPEATS
        assert (again.noise_multiplier, again.n) == (whole.noise_multiplier, whole.n)
        norms.append(again.canary_norm)
    assert norms == sorted(norms, reverse=True)


def test_repeats_that_only_some_audits_have_are_joined_to_these(tmp_path, parameters):
    audited("S4", store=tmp_path / "figure/a.db")
    more_repeats.main(tmp_path / "figure", "2", parameters(n_train=30))
    audited("S5", store=tmp_path / "figure/b.db")
    joined = more_repeats.with_repeats(tmp_path / "figure", "{scenario}")
    assert {s: one.sizes["repeat"] for (_, s), one in joined.items()} == {"S4": 2, "S5": 1}
