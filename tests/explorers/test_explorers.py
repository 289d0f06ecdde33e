"""What the explorers' pages hold, and that the accountant in JavaScript agrees with ours. A browser is not needed."""

import json
import math
import re
import shutil
import subprocess

import numpy as np
import pytest
import xarray as xr
from browsing import SETTINGS
from drifting import audited

from book.explorers import game
from book.explorers import pages as explorers
from dpsub import accounting, findings
from dpsub.estimators import epsilon_lower_bound


def drifting(result, **options):
    return explorers.drifting_scores(result, delta=1e-5, **options)


def frames(page):
    return json.loads(re.search(r'<script type="application/json">(.*?)</script>', page.data, re.DOTALL)[1])


@pytest.mark.parametrize(
    ("page", "most"),
    [
        (explorers.training_page, 30_000),
        (explorers.attacker_page, 30_000),
        (explorers.runs_page, 30_000),
        (lambda: drifting(audited(runs=60, steps=40), bins=80), 60_000),
        pytest.param(game.page, 60_000, marks=pytest.mark.book),  # it computes tables for seconds
    ],
    ids=["training", "attacker", "runs", "drift", "game"],
)
def test_a_page_is_small_and_asks_for_nothing_from_elsewhere(page, most):
    html = page().data
    assert len(html) < most
    for foreign in ("{{", "http", "import("):
        assert foreign not in html


def test_a_page_starts_where_it_is_told_to():
    html = explorers.training_page(noise_multiplier=48.4, sample_rate=1, steps=12_500, delta=1e-6).data
    assert '{"sigma":"48.4","q":"1","steps":"12500","delta":"1e-6"}' in html
    assert '{"epsilon":"3.25","delta":"1e-5"}' in explorers.attacker_page(epsilon=3.25).data
    with pytest.raises(ValueError, match="noise_multiplier must be >= 0.3 and <= 300, got 0.1"):
        explorers.training_page(noise_multiplier=0.1)


ASKS = """
const asked = (training) => ({
  substitute: epsilonOf("substitute", training),
  add_remove: Math.max(epsilonOf("remove", training), epsilonOf("add", training)),
  found: Object.fromEntries(["substitute", "add_remove"].map((one) => [one, foundAt(tradeoff(one, training), 0.05)])),
  right: [0.5, 0.2, 0.9].map((prior) => rightAt(tradeoff("substitute", training), prior)),
});
console.log(JSON.stringify(JSON.parse(process.argv[1]).map(asked)));
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_the_accountant_in_javascript_is_as_exact_as_the_page_says():
    source = (explorers.ASSETS / "guesses.js").read_text()
    script = (explorers.ASSETS / "composition.js").read_text() + source[source.index("function rightAt") :] + ASKS
    done = subprocess.run(["node", "-e", script, json.dumps(SETTINGS)], capture_output=True, text=True, check=True)
    for setting, found in zip(SETTINGS, json.loads(done.stdout), strict=True):
        law = {"noise_multiplier": setting["sigma"], "sample_rate": setting["q"], "steps": setting["steps"]}
        for adjacency in ("substitute", "add_remove"):
            exact = accounting.epsilon(**law, delta=setting["delta"], adjacency=adjacency)
            assert found[adjacency] == pytest.approx(exact, rel=explorers.WITHIN / 100), setting
            missed = accounting.tradeoff(0.05, **law, adjacency=adjacency)
            assert found["found"][adjacency] == pytest.approx(1 - missed, abs=0.003), setting
        for prior, right in zip((0.5, 0.2, 0.9), found["right"], strict=True):
            odds = max(prior, 1 - prior) / min(prior, 1 - prior)
            excess = accounting.delta(**law, epsilon=math.log(odds), adjacency="substitute")
            assert right == pytest.approx(max(prior, 1 - prior) + min(prior, 1 - prior) * excess, abs=0.002), setting


def test_the_animation_holds_the_histograms_and_bounds_of_every_step():
    result = audited()
    shown = frames(drifting(result, bins=30))
    bounds = epsilon_lower_bound(result.score, result.bit, delta=1e-5)
    counts = {name: int((result.bit == bit).sum()) for bit, name in enumerate(("z", "z_prime"))}
    assert [frame["step"] for frame in shown] == result.step.values.tolist()
    assert [frame["bound"] for frame in shown] == pytest.approx([bound.epsilon for bound in bounds], abs=1e-3)
    for name, values in findings.promises(result, delta=1e-5).items():
        assert [frame[name] for frame in shown] == pytest.approx(values, abs=1e-3)
    for frame in shown:
        assert {name: sum(frame[name]) for name in counts} == counts
        assert len(frame["z"]) == len(frame["z_prime"]) == 30


def test_the_histograms_drift_apart():
    shown = frames(drifting(audited()))
    (low, high), (lower, higher) = (
        [np.average(np.arange(40), weights=frame[name]) for name in ("z_prime", "z")] for frame in (shown[0], shown[-1])
    )
    assert lower < low < high < higher


def test_the_units_of_the_scores_do_not_matter():
    result = audited()
    one, other = (frames(drifting(each)) for each in (result, result.assign(score=result.score * 128 + 64)))
    for first, second in zip(one, other, strict=True):
        assert np.abs(np.subtract(first["z"], second["z"])).sum() <= 4  # rounding moves a score to the next bar
        assert first["bound"] == second["bound"]


def test_many_steps_are_thinned_out():
    shown = frames(drifting(audited(runs=60, steps=90)))
    assert len(shown) == 40
    assert (shown[0]["step"], shown[-1]["step"]) == (100, 9_000)


def test_what_cannot_be_animated_is_named():
    with pytest.raises(ValueError, match=r"result must have scores \(run, step\) at two steps or more"):
        drifting(audited().isel(step=[-1]))
    with pytest.raises(ValueError, match="choose a repeat"):
        drifting(xr.concat([audited(), audited()], "repeat"))


def test_an_animation_shows_valid_bounds_only():
    marked = audited(runs=60, steps=4)
    marked = marked.assign_coords(in_sample=("run", np.ones(60, bool)))
    with pytest.raises(ValueError, match="result must have scores that allow a valid bound"):
        drifting(marked)
