import json
import re

import numpy as np
import pytest
import xarray as xr
from drifting import audited

from dpsub import figures
from dpsub.estimators import epsilon_lower_bound
from dpsub.figures import findings


def frames(page):
    return json.loads(re.search(r'<script type="application/json">(.*?)</script>', page.data, re.DOTALL)[1])


def test_the_page_holds_the_histograms_and_bounds_of_every_step():
    result = audited()
    shown = frames(figures.drifting_scores(result, delta=1e-5, bins=30))
    bounds = epsilon_lower_bound(result.score, result.bit, delta=1e-5)
    promised = findings.promises(result, delta=1e-5)
    counts = {name: int((result.bit == bit).sum()) for bit, name in enumerate(("z", "z_prime"))}
    assert [frame["step"] for frame in shown] == result.step.values.tolist()
    assert [frame["bound"] for frame in shown] == pytest.approx([bound.epsilon for bound in bounds], abs=1e-3)
    for name, values in promised.items():
        assert [frame[name] for frame in shown] == pytest.approx(values, abs=1e-3)
    for frame in shown:
        assert {name: sum(frame[name]) for name in counts} == counts
        assert len(frame["z"]) == len(frame["z_prime"]) == 30


def test_the_histograms_drift_apart():
    shown = frames(figures.drifting_scores(audited(), delta=1e-5))
    middles = [
        [np.average(np.arange(40), weights=frame[name]) for name in ("z_prime", "z")] for frame in (shown[0], shown[-1])
    ]
    (low, high), (lower, higher) = middles
    assert lower < low < high < higher


def test_the_units_of_the_scores_do_not_matter():
    result = audited()
    scaled = result.assign(score=result.score * 128 + 64)
    one, other = (frames(figures.drifting_scores(each, delta=1e-5)) for each in (result, scaled))
    for first, second in zip(one, other, strict=True):
        assert np.abs(np.subtract(first["z"], second["z"])).sum() <= 4  # rounding moves a score to the next bar
        assert first["bound"] == second["bound"]


def test_many_steps_are_thinned_out():
    shown = frames(figures.drifting_scores(audited(runs=60, steps=90), delta=1e-5))
    assert len(shown) == 40
    assert (shown[0]["step"], shown[-1]["step"]) == (100, 9_000)


def test_the_page_is_small_and_asks_for_nothing_from_elsewhere():
    html = figures.drifting_scores(audited(runs=60, steps=40), delta=1e-5, bins=80).data
    assert "http" not in html
    assert "{{" not in html
    assert len(html) < 60_000


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (audited().isel(step=[-1]), "result must have scores at two steps or more"),
        (xr.concat([audited(), audited()], "repeat"), "result must have one repeat, got 2"),
        (audited().assign(bit=("run", np.zeros(400, np.int8))), "world|bits"),
        (None, "result must be the dataset of an audit, got NoneType"),
    ],
)
def test_what_cannot_be_shown_is_named(result, message):
    with pytest.raises(ValueError, match=message):
        figures.drifting_scores(result, delta=1e-5)


def test_bins_out_of_range_are_named():
    with pytest.raises(ValueError, match="bins must be >= 8 and <= 80, got 4"):
        figures.drifting_scores(audited(), delta=1e-5, bins=4)
