import numpy as np

from dpsub import figures


def test_figure_a5_draws_every_sample_rate(ax):
    rates = [1.0, 0.5, 0.25, 0.1, 0.05, 0.02, 0.01]
    artists = figures.against_noise(ax, {q: [1, 2] for q in rates}, {q: [q, 2 * q] for q in rates}, reference=2)
    assert list(artists) == rates
    np.testing.assert_array_equal(artists[0.01].get_xydata(), [[1, 0.01], [2, 0.02]])
    looks = {(line.get_color(), line.get_marker()) for line in artists.values()}
    assert len(looks) == len(rates)
    assert ax.lines[-1].get_ydata()[0] == 2


def test_tradeoffs_are_drawn_over_guessing(ax):
    artists = figures.tradeoffs(ax, [0, 0.5, 1], {"substitute": [1, 0.1, 0], "add_remove": [1, 0.3, 0]})
    assert list(artists) == ["guessing", "substitute", "add_remove"]
    np.testing.assert_array_equal(artists["substitute"].get_xydata().T, [[0, 0.5, 1], [1, 0.1, 0]])
    np.testing.assert_array_equal(artists["add_remove"].get_ydata(), [1, 0.3, 0])
    np.testing.assert_array_equal(artists["guessing"].get_xydata(), [[0, 1], [1, 0]])


def test_tradeoffs_of_other_names_can_be_told_apart(ax):
    names = ["Gaussian", "Laplace", "substitute", "a third", "a fourth"]
    artists = figures.tradeoffs(ax, [0, 1], {name: [1, 0] for name in names})
    lines = [artists[name] for name in names]
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == len(names)
    assert {line.get_marker() for line in lines if line.get_label() != "substitute"} == {""}
    assert artists["substitute"].get_color() == figures.LOOKS["substitute"]["color"]
