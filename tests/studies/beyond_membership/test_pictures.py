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
    path, ranked = axes(2)
    pictures.travel(path, ranked, canaries["S2"].trace)
    assert ranked.lines[1].get_ydata()[0] == canaries["S2"].trace["travel"].min()
    np.testing.assert_array_equal(path.lines[2].get_ydata(), canaries["S2"].trace["path"][:, 2])


def test_parameter_that_never_moves_can_be_drawn(axes, canaries):
    trace = dict(canaries["S2"].trace)
    trace["travel"] = np.r_[0.0, trace["travel"][1:]]
    path, ranked = axes(2)
    pictures.travel(path, ranked, trace)
    assert ranked.lines[1].get_ydata()[0] == 0.0
    ranked.figure.canvas.draw()


def test_target_lies_lowest_unless_it_was_chosen_otherwise(axes, canaries):
    pair = canaries["S4"]
    (ax,) = axes(1)
    pictures.confidence(ax, pair.trace, pair.slot)
    assert ax.lines[1].get_xydata().tolist() == [[1, pair.trace["confidence"].min()]]


def test_descent_shows_cosine_and_norm(axes, canaries):
    cosine, ratio = axes(2)
    pictures.descent(cosine, ratio, canaries["S3"].trace)
    np.testing.assert_array_equal(cosine.lines[0].get_ydata(), canaries["S3"].trace["cosine"])
    assert len(cosine.lines[0].get_ydata()) == 151
    assert ratio.lines[0].get_ydata()[-1] == canaries["S3"].details["norm_ratio"]


def test_label_and_natural_sample_are_marked_where_their_cosines_are(axes, canaries):
    label, sample = canaries["S4"], canaries["S5"]
    (ax,) = axes(1)
    pictures.label_cosines(ax, label.trace, own=label.z.y, chosen=label.z_prime.y)
    bar = ax.patches[[text.get_text() for text in ax.get_xticklabels()].index(str(label.z_prime.y))]
    assert bar.get_height() == label.details["cosine"]
    assert bar.get_facecolor() == to_rgba(figures.LOOKS["S4"]["color"])
    heights = [patch.get_height() for patch in ax.patches]
    assert heights == sorted(heights, reverse=True) == sorted(label.trace["cosine"], reverse=True)
    assert bar.get_height() == heights[-1]
    own = [text.get_text() for text in ax.get_xticklabels()].index(str(label.z.y))
    assert ax.patches[own].get_facecolor() == to_rgba("black")
    (ax,) = axes(1)
    pictures.cosine_histogram(ax, sample.trace, sample.details["auxiliary"])
    (mark,) = ax.lines
    assert mark.get_xdata()[0] == sample.details["cosine"] == sample.trace["cosine"].min()


def test_images_are_drawn_as_they_are_in_one_scale_of_grey(axes):
    images = np.stack([np.full((4, 4), 2.0), np.eye(4)])
    row = axes(2)
    pictures.row_of_images(row, images, ["a", "b"])
    artists = [ax.images[0] for ax in row]
    for artist, image in zip(artists, images, strict=True):
        np.testing.assert_array_equal(artist.get_array(), image)
        assert artist.get_clim() == (0.0, 2.0)
    assert [artist.axes.get_xlabel() for artist in artists] == ["a", "b"]


def test_accuracies_are_drawn_in_percent_with_their_mean(ax):
    pictures.accuracies(ax, [1, 2], {"with": [[0.5, 0.7], [0.7, 0.9]], "without": [[0.1, 0.2]]})
    [mean] = [line for line in ax.lines if line.get_label() == "with"]
    np.testing.assert_allclose(mean.get_ydata(), [60, 80])
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
        pictures.accuracies(ax, [1, 2], {"with": given})
        np.testing.assert_allclose(ax.lines[-1].get_ydata(), 100 * found.mean("measured"))


@pytest.mark.parametrize("name", [r"$\frac$", "_mine <ε>", r"$5 or \$6 %_^", "x" * 300])
def test_names_in_pictures_are_drawn_as_they_are(ax, drawn, name):
    pictures.accuracies(ax, [1, 2], {name: [[0.1, 0.2]]})
    assert name in drawn(ax.figure)
    ax.clear()
    pictures.row_of_images([ax], np.zeros((1, 2, 2)), [name])
    assert name in drawn(ax.figure)
