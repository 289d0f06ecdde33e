import numpy as np

from dpsub import figures, game


def test_validity_is_drawn_against_what_is_allowed(axes):
    wrong, tight = axes(2)
    measured = {"ranks": ([0.04, 0.03], [0.7, 0.9], True), "best": ([0.1, 0.2], [0.9, 1.0], False)}
    artists = figures.validity(wrong, tight, [256, 1_000], measured, alpha=0.05)
    assert [artists[name].get_label() for name in measured] == ["ranks", "best (not valid)"]
    assert artists["best"].get_markerfacecolor() == "white" != artists["ranks"].get_markerfacecolor()
    np.testing.assert_allclose(artists["best"].get_xydata(), [[256, 10], [1_000, 20]])
    np.testing.assert_allclose(artists["alpha"].get_ydata(), 5)
    np.testing.assert_allclose(tight.lines[0].get_ydata(), [0.7, 0.9])


def test_the_game_is_drawn_with_its_rates_and_bounds(axes):
    left, right = axes(2)
    audit = game.play(runs=1_250, mu=1.0, seed=3)
    artists = figures.game(left, right, audit, 0.5)
    fpr, fnr = audit.rates(0.5)
    assert left.get_xlabel() == f"score; FPR {fpr:.3f}, FNR {fnr:.3f}"
    widths = [bar.get_width() for bar in artists["bars"]]
    assert widths == [audit.bound(rule).epsilon for rule in (0.5, "best", "ranks")]
    assert artists["truth"].get_xdata()[0] == audit.truth
    centres = (artists["z"][1][1:] + artists["z"][1][:-1]) / 2
    means = [np.average(centres, weights=artists[world][0]) for world in ("z", "z_prime")]
    np.testing.assert_allclose(means, [1, 0], atol=0.1)
