import numpy as np
import pytest
import xarray as xr
from matplotlib.colors import to_rgba

from dpsub import DPSGD, crafters, data, figures, models
from studies.beyond_membership import pictures


@pytest.fixture(scope="module")
def canaries():
    task = data.digits(n_train=60)
    spec = DPSGD(noise_multiplier=9.0, max_grad_norm=2.0, sample_rate=1.0, steps=20, learning_rate=0.05)
    model = models.linear(task)
    return [craft(task, model, spec, seed=0) for craft in (crafters.mislabeled, crafters.natural)]


def test_label_and_natural_sample_are_marked_where_their_cosines_are(axes, canaries):
    label, sample = canaries
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
