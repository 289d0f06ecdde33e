import matplotlib.pyplot as plt
import numpy as np
import pytest

from dpsub import figures, findings


@pytest.mark.parametrize("repeats", [1, 3])
def test_epsilon_against_step_draws_what_it_is_given(ax, bounds_of, repeats):
    audited = [bounds_of(np.array([1.0, 2.0]) + i) for i in range(repeats)]
    artists = figures.epsilon_against_step(
        ax, [25, 50], substitute=[2, 4], add_remove=[1, 2], audited={"S2": audited}, ceiling=5.0
    )
    assert set(artists) == {"substitute", "add_remove", "S2", "ceiling"}
    for name, values in (("substitute", [2, 4]), ("add_remove", [1, 2])):
        np.testing.assert_array_equal(artists[name].get_xydata().T, [[25, 50], values])
    np.testing.assert_array_equal(artists["S2"].lines[0].get_ydata(), np.array([1.0, 2.0]) + (repeats - 1) / 2)
    assert len(ax.lines) == 4 + (repeats + 2 if repeats > 1 else 0)  # single repeats, and caps of the error bars
    assert artists["S2"].get_label() == "crafted gradient (S2)"
    assert artists["ceiling"].get_ydata()[0] == 5.0
    assert ax.get_ylim()[1] > 5.0


def test_repeats_have_two_standard_errors(ax, bounds_of):
    audited = {"S2": [bounds_of([value]) for value in (1.0, 2.0, 3.0)]}
    artists = figures.epsilon_against_step(ax, [25], substitute=[4], add_remove=[2], audited=audited)
    ((segment,),) = (bars.get_segments() for bars in artists["S2"].lines[2])
    np.testing.assert_allclose(segment[:, 1], [2 - 2 / np.sqrt(3), 2 + 2 / np.sqrt(3)])


@pytest.mark.parametrize(("repeats", "alone"), [(9, 9), (10, 0)])
def test_fewer_than_ten_repeats_are_drawn_one_by_one(ax, bounds_of, repeats, alone):
    audited = {"S2": [bounds_of([value, 2.0]) for value in np.linspace(1, 2, repeats)]}
    figures.epsilon_against_step(ax, [25, 50], substitute=[4, 5], add_remove=[2, 3], audited=audited)
    assert sum(line.get_alpha() is not None for line in ax.lines) == alone


def test_a_ceiling_far_above_is_a_note(ax, bounds_of):
    artists = figures.epsilon_against_step(
        ax, [25, 50], substitute=[2, 4], add_remove=[1, 2], audited={"S2": [bounds_of([1, 2])]}, ceiling=60.0
    )
    assert artists["ceiling"].get_text() == "ceiling: 60"
    assert ax.get_ylim()[1] < 10


def test_group_privacy_is_drawn_when_given(ax, bounds_of):
    artists = figures.epsilon_against_step(
        ax, [25, 50], substitute=[2, 4], add_remove=[1, 2], group=[3, 5], audited={"S2": [bounds_of([1, 2])]}
    )
    np.testing.assert_array_equal(artists["group"].get_ydata(), [3, 5])


def test_worst_case_draws_means_and_errors_and_marks_the_papers_rule_hollow(ax, bounds_of):
    artists = figures.worst_case(
        ax, substitute=[1, 2], add_remove=[0.5, 1], group=[1.1, 2.2],
        audited={
            "rank test": [bounds_of([0.9, 1.9], assumes="mechanism"), bounds_of([1.1, 2.1], assumes="mechanism")],
            "best": [bounds_of([1.0, 2.0], valid=False)] * 2,
        },
    )  # fmt: skip
    for name, values in (("substitute", [1, 2]), ("add_remove", [0.5, 1]), ("group", [1.1, 2.2])):
        np.testing.assert_array_equal(artists[name].get_xydata().T, [[1, 2], values])
    points, _, (bars,) = artists["rank test"]
    np.testing.assert_allclose(points.get_ydata(), [1.0, 2.0])
    np.testing.assert_allclose([segment[:, 1] for segment in bars.get_segments()], [[0.8, 1.2], [1.8, 2.2]])
    places = [artists[name][0].get_xdata() for name in ("rank test", "best")]
    assert (places[0] != places[1]).all()
    np.testing.assert_allclose(places, [[1, 2], [1, 2]], atol=0.1)
    assert artists["best"][0].get_markerfacecolor() == "white"
    assert points.get_markerfacecolor() == figures.LOOKS["S1"]["color"]
    assert artists["rank test"].get_label() == "S1, rank test, assumes the mechanism"
    assert artists["best"].get_label() == "S1, best, assumes GDP; not valid"


def test_what_cannot_be_certified_does_not_break_the_figure(ax, bounds_of):
    figures.worst_case(
        ax, substitute=[1, 2], add_remove=[0.5, 1], group=[1.1, np.inf], audited={"ranks": [bounds_of([0.9, 1.9])]}
    )
    assert 1.9 < ax.get_ylim()[1] < 10


@pytest.mark.parametrize("order", [1, -1])
def test_panels_share_the_highest_axis_and_one_legend_and_name_their_data(audited, order):
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
    tags = [text.get_text() for ax in figure.axes for text in ax.texts]
    assert [tag for tag in tags if tag in panels] == list(panels)


def test_legend_of_panels_tells_valid_bounds_from_others(audited):
    result = audited(3)
    panels = {rule: findings.panel({"S2": result}, delta=1e-5, threshold=rule) for rule in ("best", "ranks")}
    figure = figures.epsilon_panels(panels, source="a task")
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert sum("not valid" in label for label in labels) == 1
    assert sum("S2" in label for label in labels) == 2


def test_the_legend_of_panels_fits_the_figure(audited):
    result = audited(3)
    panels = {rule: findings.panel({"S2": result}, delta=1e-5, threshold=rule) for rule in ("best", "ranks")}
    figure = figures.epsilon_panels(panels, source="a task")
    figure.draw_without_rendering()
    legend = figure.legends[0].get_window_extent()
    assert 0 <= legend.x0 < legend.x1 <= figure.bbox.width


def test_scenarios_of_ones_own_are_drawn_under_their_name(audited):
    mine = findings.panel({"mine": audited(scenario="mine")}, delta=1e-5)
    figure = figures.epsilon_panels({"a": mine}, source="a task")
    assert "mine" in [text.get_text() for text in figure.legends[0].get_texts()]


def test_scenarios_of_ones_own_differ_in_a_figure_and_keep_their_looks(bounds_of):
    figure, row = plt.subplots(1, 2)
    drawn = []
    for ax, names in zip(row, (("a", "b", "S2"), ("b", "c")), strict=True):
        audited = {name: [bounds_of([1.0, 2.0])] for name in names}
        found = figures.epsilon_against_step(ax, [1, 2], substitute=[4, 5], add_remove=[2, 3], audited=audited)
        drawn.append({name: (found[name][0].get_color(), found[name][0].get_marker()) for name in names})
    assert drawn[0]["b"] == drawn[1]["b"]
    alone = [*drawn[0].values(), drawn[1]["c"]]
    assert len({color for color, _ in alone}) == len({marker for _, marker in alone}) == 4
    assert drawn[0]["S2"] == (figures.LOOKS["S2"]["color"], figures.LOOKS["S2"]["marker"])
    plt.close(figure)


def test_bounds_beyond_the_promise_are_on_the_plot(ax, audited):
    bounds = [[findings.bounds(audited(), delta=1e-5)[0][-1]]]
    assert bounds[0][0].epsilon > 2
    figures.against_runs(ax, [300], audited={"S2": bounds}, substitute=0.5, add_remove=0.2, ceiling=[9.0])
    assert ax.get_ylim()[1] > bounds[0][0].epsilon


def test_bounds_against_runs_show_the_ceiling_and_the_truth(ax, audited):
    result = audited(3)
    by_runs = [findings.bounds(result.isel(step=[-1]), delta=1e-5, runs=runs) for runs in (50, 300)]
    repeats = [[found[i][0] for found in by_runs] for i in range(3)]
    artists = figures.against_runs(
        ax, [50, 300], audited={"S2": repeats}, substitute=10.0, add_remove=4.4, ceiling=[5.0, 9.0]
    )
    for place, mean in enumerate(artists["S2"].lines[0].get_ydata()):
        assert mean == pytest.approx(np.mean([repeat[place].epsilon for repeat in repeats]))
    assert artists["substitute"].get_ydata()[0] == 10.0
    assert artists["add_remove"].get_ydata()[0] == 4.4
    np.testing.assert_array_equal(artists["ceiling"].get_xydata(), [[50, 5.0], [300, 9.0]])
    assert ax.get_ylim()[1] > 10


def test_assumptions_are_told_where_they_differ_and_validity_always(ax, bounds_of, audited):
    plain, free = bounds_of([1.0]), bounds_of([1.0], assumes="none")
    given = {"substitute": [4], "add_remove": [2]}
    alike = {"S2": [plain], "S3": [bounds_of([1.0], valid=False)]}
    artists = figures.epsilon_against_step(ax, [25], audited=alike, **given)
    assert [artists[s].get_label() for s in alike] == ["crafted gradient (S2)", "crafted input (S3), not valid"]
    ax.clear()
    artists = figures.epsilon_against_step(ax, [25], audited={"S2": [plain], "S3": [free]}, **given)
    assert artists["S3"].get_label() == "crafted input (S3), assumes nothing"
    panels = {method: findings.panel({"S2": audited(3)}, delta=1e-5, method=method) for method in ("gdp", "dp")}
    labels = [text.get_text() for text in figures.epsilon_panels(panels, source="a task").legends[0].get_texts()]
    assert {"crafted gradient (S2), assumes GDP", "crafted gradient (S2), assumes nothing"} <= set(labels)


def test_a_ceiling_that_leaves_the_plot_says_where_it_goes(ax, bounds_of):
    given = {"audited": {"S2": [bounds_of([1.0, 2.0])]}, "substitute": 4.0, "add_remove": 2.0}
    figures.against_runs(ax, [50, 300], **given, ceiling=[3.0, 25.4])
    assert [text.get_text() for text in ax.texts] == ["ceiling: 3 to 25"]
    ax.clear()
    figures.against_runs(ax, [50, 300], **given, ceiling=[3.0, 4.2])
    assert not ax.texts


def test_notes_of_the_ceiling_lie_outside_of_the_data(ax, bounds_of):
    given = {"substitute": [2, 4], "add_remove": [1, 2], "audited": {"S2": [bounds_of([1, 2])]}}
    note = figures.epsilon_against_step(ax, [25, 50], **given, ceiling=60.0)["ceiling"]
    ax.figure.draw_without_rendering()
    assert note.get_window_extent().y0 >= ax.get_window_extent().y1


def test_bounds_of_any_mechanism_stand_beside_their_claims(ax, bounds_of):
    [[right], [wrong], [learned]] = (bounds_of([e], valid=e != 3) for e in (0.5, 2.0, 3.0))
    bounds = {"Laplace": right, "half the noise": wrong, "learned": learned}
    claims = {"half the noise": 1.0, "learned": 4.0, "Laplace": 0.7}
    artists = figures.beside_claims(ax, bounds, claimed=claims, ceiling=5)
    assert [artists[name].get_xydata().tolist() for name in bounds] == [[[0.5, 0]], [[2, 1]], [[3, 2]]]
    at = {name: [segment[:, 0].tolist() for segment in artists[name].get_segments()] for name in ("claimed", "ceiling")}
    assert at == {"claimed": [[0.7] * 2, [1.0] * 2, [4.0] * 2], "ceiling": [[5, 5]] * 3}
    assert [artists[name].get_markerfacecolor() == "white" for name in bounds] == [False, False, True]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["Laplace", "half the noise", "learned, not valid"]
    assert ax.yaxis_inverted()
    figures.beside_claims(ax, bounds, claimed=1.0)
    with pytest.raises(ValueError, match=r"claimed must be for the names of bounds, .* got \['Laplace'\]"):
        figures.beside_claims(ax, bounds, claimed={"Laplace": 1.0})
    with pytest.raises(ValueError, match=r"bounds\['a'\] must be one LowerBound, got a list: give one step's"):
        figures.beside_claims(ax, {"a": [right]}, claimed=1.0)


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
