import matplotlib.pyplot as plt
import numpy as np
import pytest

from dpsub import DPSGD, crafters, data, figures, findings, models, pictures
from tests.test_findings import audited


@pytest.fixture(autouse=True)
def _style():
    with plt.style.context(figures.STYLE):
        yield
    plt.close("all")


@pytest.fixture(scope="module")
def task():
    return data.digits(n_train=60)


@pytest.fixture(scope="module")
def canaries(task):
    spec = DPSGD(noise_multiplier=9.0, max_grad_norm=2.0, sample_rate=1.0, steps=20, learning_rate=0.05)
    model = models.linear(task)
    options = {"S3": {"steps": 150, "learning_rate": 0.1}}
    return {s: craft(task, model, spec, seed=0, **options.get(s, {})) for s, craft in crafters.BY_SCENARIO.items()}


def axes(count):
    return plt.subplots(1, count, squeeze=False)[1][0]


def test_travel_marks_the_least_travelled(canaries):
    artists = pictures.travel(*axes(2), canaries["S2"].trace)
    assert artists["chosen"].get_ydata()[0] == canaries["S2"].trace["travel"].min()
    np.testing.assert_array_equal(artists["most"].get_ydata(), canaries["S2"].trace["path"][:, 2])


def test_parameter_that_never_moves_can_be_drawn(canaries):
    trace = dict(canaries["S2"].trace)
    trace["travel"] = np.r_[0.0, trace["travel"][1:]]
    pictures.travel(*axes(2), trace)
    plt.gcf().canvas.draw()


def test_target_lies_lowest_unless_it_was_chosen_otherwise(canaries):
    pair = canaries["S4"]
    artists = pictures.confidence(*axes(1), pair.trace, pair.slot)
    assert artists["target"].get_xydata().tolist() == [[1, pair.trace["confidence"].min()]]


def test_descent_shows_cosine_and_norm(canaries):
    artists = pictures.descent(*axes(2), canaries["S3"].trace)
    assert len(artists["cosine"].get_ydata()) == 151
    assert artists["norm_ratio"].get_ydata()[-1] == canaries["S3"].details["norm_ratio"]


def test_label_and_natural_sample_are_marked_where_their_cosines_are(canaries):
    label, sample = canaries["S4"], canaries["S5"]
    (ax,) = axes(1)
    bar = pictures.label_cosines(ax, label.trace, own=label.z.y, chosen=label.z_prime.y)["bars"]
    assert bar.get_height() == label.details["cosine"]
    (ax,) = axes(1)
    mark = pictures.cosine_histogram(ax, sample.trace, sample.details["auxiliary"])["chosen"]
    assert mark.get_xdata()[0] == sample.details["cosine"] == sample.trace["cosine"].min()


def test_digits_are_put_back_where_their_pixels_were(task):
    shown = task.pictures(task.x_test)
    assert shown.shape == (len(task.y_test), 8, 8)
    np.testing.assert_array_equal(shown[:, task.pixels], task.x_test)
    assert (shown[:, ~task.pixels] == 0).all()
    artists = pictures.row_of_images(axes(3), shown[:3], ["a", "b", "c"])
    np.testing.assert_array_equal(artists[2].get_array(), shown[2])


def test_images_are_pictures_and_other_records_are_none(task):
    colour = data.from_arrays(np.zeros((2, 3, 5, 4)), [0, 1])
    assert colour.pictures(colour.x_train).shape == (2, 5, 4, 3)
    grey = data.from_arrays(np.zeros((2, 1, 5, 4)), [0, 1])
    assert grey.pictures(grey.x_train).shape == (2, 5, 4)
    flat = data.from_arrays(np.zeros((2, 3)), [0, 1])
    for x, of in ((flat.x_train, flat), (np.zeros((2, 3)), task)):
        with pytest.raises(ValueError, match=r"x must be records of a task of pictures, got \(2, 3\)"):
            of.pictures(x)


def test_accuracies_are_drawn_in_percent_with_their_mean():
    (ax,) = axes(1)
    artists = pictures.accuracies(ax, [1, 2], {"with": [[0.5, 0.7], [0.7, 0.9]], "without": [[0.1, 0.2]]})
    np.testing.assert_allclose(artists["with"].get_ydata(), [60, 80])
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["with", "without"]


@pytest.mark.parametrize("order", [1, -1])
def test_panels_share_the_highest_axis_and_one_legend_and_name_their_data(order):
    audits = [audited(3), audited(3, noise_multiplier=8.0), audited(3, noise_multiplier=60.0)][::order]
    panels = {f"σ = {one.noise_multiplier:g}": findings.panel({"S2": one}, delta=1e-5) for one in audits}
    figure = figures.epsilon_panels(panels, source="a task; 3 × 300 models an audit")
    assert figure.get_supxlabel() == "a task; 3 × 300 models an audit"
    (limits,) = {ax.get_ylim() for ax in figure.axes}
    assert limits[0] == 0
    assert limits[1] > max(panel["substitute"][-1] for panel in panels.values())
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert len(labels) == len(set(labels))
    assert all(ax.get_legend() is None for ax in figure.axes)


def test_legend_of_panels_tells_valid_bounds_from_others():
    result = audited(3)
    panels = {rule: findings.panel({"S2": result}, delta=1e-5, threshold=rule) for rule in ("best", "ranks")}
    figure = figures.epsilon_panels(panels, source="a task")
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert sum("not valid" in label for label in labels) == 1
    assert sum("S2" in label for label in labels) == 2


def test_scenarios_of_ones_own_can_be_drawn():
    figures.epsilon_panels({"a": findings.panel({"mine": audited(scenario="mine")}, delta=1e-5)}, source="a task")


def test_bounds_beyond_the_promise_are_on_the_plot():
    bounds = [[findings.bounds(audited(), delta=1e-5)[0][-1]]]
    (ax,) = axes(1)
    figures.against_runs(ax, [300], audited={"S2": bounds}, substitute=0.5, add_remove=0.2, ceiling=[9.0])
    assert ax.get_ylim()[1] > bounds[0][0].epsilon


def test_bounds_against_runs_show_the_ceiling_and_the_truth():
    result = audited(3)
    by_runs = [findings.bounds(result.isel(step=[-1]), delta=1e-5, runs=runs) for runs in (50, 300)]
    repeats = [[found[i][0] for found in by_runs] for i in range(3)]
    (ax,) = axes(1)
    artists = figures.against_runs(
        ax, [50, 300], audited={"S2": repeats}, substitute=10.0, add_remove=4.4, ceiling=[5.0, 9.0]
    )
    mean = artists["S2"].lines[0].get_ydata()
    assert mean[1] == pytest.approx(np.mean([repeat[1].epsilon for repeat in repeats]))
    assert artists["substitute"].get_ydata()[0] == 10.0
    assert ax.get_ylim()[1] > 10
