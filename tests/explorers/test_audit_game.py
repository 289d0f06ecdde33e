import matplotlib.pyplot as plt
import numpy as np
import pytest
from scipy.stats import binom

from book.explorers import game
from dpsub.accounting import gdp_epsilon


def test_an_audit_is_two_gaussians_and_its_truth():
    audit = game.play(runs=12_500, mu=2.0, seed=1)
    assert audit.truth == gdp_epsilon(2.0, 1e-5)
    assert audit.with_z.mean() - audit.with_z_prime.mean() == pytest.approx(2, abs=0.05)
    assert audit.rates(0.5) == pytest.approx((0.3085, 0.0668), abs=0.02)  # Φ(−0.5), Φ(−1.5)
    assert (game.play(runs=12_500, mu=2.0, seed=1).with_z == audit.with_z).all()
    assert (game.play(runs=12_500, mu=2.0, seed=2).with_z != audit.with_z).all()


def test_the_best_threshold_lies_more_often_than_the_rank_test():
    lies = game.count_too_high(runs=1_250, mu=1.0, games=100)
    assert lies["ranks"] <= binom.ppf(0.999, 100, 0.05)
    assert lies["best"] > lies["ranks"]


def test_delta_changes_the_numbers_but_not_who_lies():
    audits = [game.play(runs=1_250, mu=1.0, seed=3, delta=delta) for delta in (1e-5, 1e-3)]
    assert [audit.truth for audit in audits] == [gdp_epsilon(1.0, 1e-5), gdp_epsilon(1.0, 1e-3)]
    assert audits[0].bound("ranks").mu == pytest.approx(audits[1].bound("ranks").mu)
    assert audits[1].bound("ranks").epsilon < audits[0].bound("ranks").epsilon


def test_the_first_warning_is_the_first():
    seed = game.first_warning(runs=1_250, mu=1.0)
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
    for mu, lies in zip(game.MUS, game.TOO_HIGH[runs], strict=True):
        found = game.count_too_high(runs=runs, mu=mu, games=300)["best"]
        assert abs(found - 3 * lies) <= 3 * (3 * lies + 3) ** 0.5 + 1.5


def test_the_game_is_drawn_with_its_rates_and_bounds():
    _, (left, right) = plt.subplots(1, 2)
    audit = game.play(runs=1_250, mu=1.0, seed=3)
    artists = game.draw(left, right, audit, 0.5)
    fpr, fnr = audit.rates(0.5)
    assert left.get_xlabel() == f"score; FPR {fpr:.3f}, FNR {fnr:.3f}"
    widths = [bar.get_width() for bar in artists["bars"]]
    assert widths == [audit.bound(rule).epsilon for rule in (0.5, "best", "ranks")]
    assert artists["truth"].get_xdata()[0] == audit.truth
    centres = (artists["z"][1][1:] + artists["z"][1][:-1]) / 2
    means = [np.average(centres, weights=artists[world][0]) for world in ("z", "z_prime")]
    np.testing.assert_allclose(means, [1, 0], atol=0.1)
    plt.close("all")
