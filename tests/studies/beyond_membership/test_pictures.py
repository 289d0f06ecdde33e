import numpy as np
import pytest
import xarray as xr
from matplotlib.colors import to_rgba

from dpsub import DPSGD, crafters, data, figures, models
from studies.beyond_membership import pictures


@pytest.fixture(scope="module")
def task():
    return data.digits(n_train=60)


@pytest.fixture(scope="module")
def canaries(task):
    spec = DPSGD(noise_multiplier=9.0, max_grad_norm=2.0, sample_rate=1.0, steps=20, learning_rate=0.05)
    model = models.linear(task)
    options = {"S3": {"steps": 150, "learning_rate": 0.1}}
    return {s: craft(task, model, spec, seed=0, **options.get(s, {})) for s, craft in crafters.BY_SCENARIO.items()}


def test_travel_marks_the_least_travelled(axes, canaries):
    artists = pictures.travel(*axes(2), canaries["S2"].trace)
    assert artists["chosen"].get_ydata()[0] == canaries["S2"].trace["travel"].min()
    np.testing.assert_array_equal(artists["most"].get_ydata(), canaries["S2"].trace["path"][:, 2])


def test_parameter_that_never_moves_can_be_drawn(axes, canaries):
    trace = dict(canaries["S2"].trace)
    trace["travel"] = np.r_[0.0, trace["travel"][1:]]
    chosen = pictures.travel(*axes(2), trace)["chosen"]
    assert chosen.get_ydata()[0] == 0.0
    chosen.figure.canvas.draw()


def test_target_lies_lowest_unless_it_was_chosen_otherwise(axes, canaries):
    pair = canaries["S4"]
    artists = pictures.confidence(*axes(1), pair.trace, pair.slot)
    assert artists["target"].get_xydata().tolist() == [[1, pair.trace["confidence"].min()]]


def test_descent_shows_cosine_and_norm(axes, canaries):
    artists = pictures.descent(*axes(2), canaries["S3"].trace)
    np.testing.assert_array_equal(artists["cosine"].get_ydata(), canaries["S3"].trace["cosine"])
    assert len(artists["cosine"].get_ydata()) == 151
    assert artists["norm_ratio"].get_ydata()[-1] == canaries["S3"].details["norm_ratio"]


def test_label_and_natural_sample_are_marked_where_their_cosines_are(axes, canaries):
    label, sample = canaries["S4"], canaries["S5"]
    (ax,) = axes(1)
    bar = pictures.label_cosines(ax, label.trace, own=label.z.y, chosen=label.z_prime.y)["bars"]
    assert bar.get_height() == label.details["cosine"]
    assert bar.get_facecolor() == to_rgba(figures.LOOKS["S4"]["color"])
    heights = [patch.get_height() for patch in ax.patches]
    assert heights == sorted(heights, reverse=True) == sorted(label.trace["cosine"], reverse=True)
    assert bar.get_height() == heights[-1]
    own = [text.get_text() for text in ax.get_xticklabels()].index(str(label.z.y))
    assert ax.patches[own].get_facecolor() == to_rgba("black")
    (ax,) = axes(1)
    mark = pictures.cosine_histogram(ax, sample.trace, sample.details["auxiliary"])["chosen"]
    assert mark.get_xdata()[0] == sample.details["cosine"] == sample.trace["cosine"].min()


def test_images_are_drawn_as_they_are_in_one_scale_of_grey(axes):
    images = np.stack([np.full((4, 4), 2.0), np.eye(4)])
    artists = pictures.row_of_images(axes(2), images, ["a", "b"])
    for artist, image in zip(artists, images, strict=True):
        np.testing.assert_array_equal(artist.get_array(), image)
        assert artist.get_clim() == (0.0, 2.0)
    assert [artist.axes.get_xlabel() for artist in artists] == ["a", "b"]


def test_accuracies_are_drawn_in_percent_with_their_mean(ax):
    artists = pictures.accuracies(ax, [1, 2], {"with": [[0.5, 0.7], [0.7, 0.9]], "without": [[0.1, 0.2]]})
    np.testing.assert_allclose(artists["with"].get_ydata(), [60, 80])
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["with", "without"]


def test_many_models_are_drawn_as_a_band_of_one_standard_deviation(ax):
    accuracy = np.random.default_rng(0).random((10, 2))
    pictures.accuracies(ax, [1, 2], {"with": accuracy})
    (band,) = ax.collections
    drawn = band.get_paths()[0].vertices
    mean, spread = 100 * accuracy.mean(axis=0), 100 * accuracy.std(axis=0, ddof=1)
    for step in (0, 1):
        heights = drawn[drawn[:, 0] == step + 1, 1]
        ends = (mean[step] - spread[step], mean[step] + spread[step])
        assert (heights.min(), heights.max()) == pytest.approx(ends)
    assert len(ax.lines) == 1


def test_accuracies_with_named_dimensions_are_read_by_name(ax):
    found = xr.DataArray([[0.5, 0.6], [0.7, 0.9]], dims=("measured", "step"))
    for given in (found, found.T):
        ax.clear()
        line = pictures.accuracies(ax, [1, 2], {"with": given})["with"]
        np.testing.assert_allclose(line.get_ydata(), 100 * found.mean("measured"))


@pytest.mark.parametrize("name", [r"$\frac$", "_mine <ε>", r"$5 or \$6 %_^", "x" * 300])
def test_names_in_pictures_are_drawn_as_they_are(ax, drawn, name):
    pictures.accuracies(ax, [1, 2], {name: [[0.1, 0.2]]})
    assert name in drawn(ax.figure)
    ax.clear()
    pictures.row_of_images([ax], np.zeros((1, 2, 2)), [name])
    assert name in drawn(ax.figure)
