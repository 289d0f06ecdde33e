import json

import numpy as np
import pytest
from scipy.stats import binom

from dpsub import game
from dpsub.accounting import gdp_epsilon


def test_an_audit_is_two_gaussians_and_its_truth():
    audit = game.play(runs=12_500, mu=2.0, seed=1)
    assert audit.truth == gdp_epsilon(2.0, 1e-5)
    assert audit.with_z.mean() - audit.with_z_prime.mean() == pytest.approx(2, abs=0.05)
    assert audit.rates(0.5) == pytest.approx((0.3085, 0.0668), abs=0.02)  # Φ(−0.5), Φ(−1.5)
    assert (game.play(runs=12_500, mu=2.0, seed=1).with_z == audit.with_z).all()
    assert (game.play(runs=12_500, mu=2.0, seed=2).with_z != audit.with_z).all()


def test_the_best_threshold_lies_more_often_than_the_rank_test():
    lies = game.count_lies(runs=1_250, mu=1.0, games=200)
    assert lies.games == 200
    assert lies.ranks <= binom.ppf(0.999, 200, 0.05)
    assert lies.best > lies.ranks


def test_delta_changes_the_numbers_but_not_who_lies():
    audits = [game.play(runs=1_250, mu=1.0, seed=3, delta=delta) for delta in (1e-5, 1e-3)]
    assert [audit.truth for audit in audits] == [gdp_epsilon(1.0, 1e-5), gdp_epsilon(1.0, 1e-3)]
    assert audits[0].bound("ranks").mu == pytest.approx(audits[1].bound("ranks").mu)
    assert audits[1].bound("ranks").epsilon < audits[0].bound("ranks").epsilon


def test_the_first_lie_is_the_first():
    seed = game.first_lie(runs=1_250, mu=1.0)
    lies = [
        audit.bound("best").epsilon > audit.truth
        for audit in (game.play(runs=1_250, mu=1.0, seed=s) for s in range(seed + 1))
    ]
    assert lies[-1]
    assert game.play(runs=1_250, mu=1.0, seed=seed).bound("ranks").epsilon < gdp_epsilon(1.0, 1e-5)
    assert not any(lies[:-1]) or seed > lies.index(True)


@pytest.mark.slow
@pytest.mark.parametrize("runs", [125, 1_250])
def test_the_page_says_how_often_the_best_threshold_lies(runs):
    for mu, lies in zip(game.MU, game.LIES[runs], strict=True):
        found = game.count_lies(runs=runs, mu=mu, games=300).best
        assert abs(found - 3 * lies) <= 3 * (3 * lies + 3) ** 0.5 + 1.5


def test_the_page_looks_up_what_the_library_computes():
    tables = game.tables()
    for table, runs in zip(tables["runs"], game.RUNS, strict=True):
        audit = game.play(runs=runs, mu=1.0, seed=5)
        threshold = 0.55
        false_positives = (audit.with_z_prime > threshold).sum()
        false_negatives = (audit.with_z <= threshold).sum()
        mu = -sum(np.interp([false_positives, false_negatives], table["counts"], table["score"]))
        assert gdp_epsilon(mu, 1e-5) == pytest.approx(audit.bound(threshold).epsilon, rel=5e-3)
        cuts = np.sort(audit.with_z_prime)[[-rank for rank in table["ranks"]]]
        counts = [(audit.with_z <= cut).sum() for cut in cuts]
        mu = max(np.interp(count, table["counts"], row) for count, row in zip(counts, table["refuted"], strict=True))
        assert gdp_epsilon(mu, 1e-5) == pytest.approx(audit.bound("ranks").epsilon, rel=5e-3)


def test_the_page_asks_for_nothing_from_elsewhere():
    html = game.page().data
    assert "{{" not in html
    assert "http" not in html
    assert len(html) < 60_000
    data = html.split('<script type="application/json">')[1].split("</script>")[0]
    assert json.loads(data) == json.loads(json.dumps(game.tables()))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"runs": 0, "mu": 1.0}, "runs must be >= 1 and <= 100000000, got 0"),
        ({"runs": 5, "mu": -1.0}, "mu must be >= 0, got -1.0"),
    ],
)
def test_bad_input_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        game.play(**arguments)


def test_a_threshold_that_is_no_number_is_named():
    for ask in (game.play(runs=5, mu=1.0).rates, game.play(runs=5, mu=1.0).bound):
        with pytest.raises(ValueError, match="threshold must be"):
            ask(float("nan"))
