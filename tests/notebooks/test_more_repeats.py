"""Further repeats by notebooks/own_code/more_repeats.py are those that an audit with repeats would have made."""

import numpy as np
import pytest
from own_code import more_repeats

import dpsub
from dpsub import audits, crafters, data, models


@pytest.mark.parametrize("scenario", ["S2", "S4", "S5"])
def test_another_repeat_is_that_of_an_audit_with_repeats(tmp_path, scenario):
    task = data.digits(n_train=30, seed=0)
    model, spec = models.linear(task), dpsub.DPSGD(3.0, 2.0, 0.5, 4, 0.1)
    pair = crafters.BY_SCENARIO[scenario](task, model, spec, seed=0)
    options = {"runs": 6, "observe_every": 2, "seed": 0, "device": "cpu", "progress": False}
    folder = tmp_path / "figure"
    dpsub.audit(task, model, pair, spec, store=folder / "a.db", **options)
    one = audits.load(folder / "a.db")
    _, seed = audits.repeat_seeds(0, 2)
    more_repeats.repeated(one, task, seed, folder / "repeat=1/a.db")
    whole = dpsub.audit(task, model, pair, spec, repeats=2, **options)
    (joined,) = more_repeats.with_repeats(folder, "{scenario}").values()
    assert joined.score.dims == whole.score.dims
    for name in ("score", "bit"):
        np.testing.assert_array_equal(joined[name], whole[name])
