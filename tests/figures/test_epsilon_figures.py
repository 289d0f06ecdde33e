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


def test_assumptions_are_told_where_they_differ_and_validity_always(ax, bounds_of, audited):
    plain, free = bounds_of([1.0]), bounds_of([1.0], assumes="none")
    given = {"substitute": [4], "add_remove": [2]}
    alike = {"S2": [plain], "S3": [bounds_of([1.0], valid=False)]}
    artists = figures.epsilon_against_step(ax, [25], audited=alike, **given)
    assert [artists[s].get_label() for s in alike] == ["crafted gradient (S2)", "crafted input (S3), not valid"]
    ax.clear()
    artists = figures.epsilon_against_step(ax, [25], audited={"S2": [plain], "S3": [free]}, **given)
    assert artists["S3"].get_label() == "crafted input (S3), assumes nothing"
    panels = {claim: findings.panel({"S2": audited(3)}, delta=1e-5, claim=claim) for claim in ("gdp", "dp")}
    labels = [text.get_text() for text in figures.epsilon_panels(panels, source="a task").legends[0].get_texts()]
    assert {"crafted gradient (S2), assumes GDP", "crafted gradient (S2), assumes nothing"} <= set(labels)


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
    with pytest.raises(KeyError, match="half the noise"):
        figures.beside_claims(ax, bounds, claimed={"Laplace": 1.0})


def test_the_accountants_lines_are_drawn_alone_and_in_epochs(ax):
    artists = figures.epsilon_against_step(ax, [25, 50], substitute=[2, 4], steps_per_epoch=10)
    assert list(artists) == ["substitute"]
    np.testing.assert_array_equal(artists["substitute"].get_xydata(), [[2.5, 2], [5, 4]])
    assert ax.get_xlabel() == "epoch"
    assert ax.get_xlim() == (0, pytest.approx(5.1))
    with pytest.raises(ValueError, match="steps_per_epoch must be > 0"):
        figures.epsilon_against_step(ax, [25, 50], substitute=[2, 4], steps_per_epoch=0)


def test_epsilon_is_drawn_at_each_delta(ax):
    artists = figures.epsilon_against_delta(ax, [1e-6, 1e-4], substitute=[4, 3], add_remove=[2, 1])
    np.testing.assert_array_equal(artists["substitute"].get_xydata(), [[1e-6, 4], [1e-4, 3]])
    assert artists["add_remove"].get_label() == figures.LOOKS["add_remove"]["label"]
    assert ax.get_xscale() == "log"


LINES = {"substitute": [1, 2], "add_remove": [0.5, 1]}


def test_names_are_drawn_as_they_are(ax, bounds_of, drawn):
    """They are in every legend, on every axis, and below and above every figure."""
    name, bounds = r"_$5 or \$6 %^ $\frac$ <ε>", bounds_of([1.0, 2.0])
    ways = {
        "step": lambda ax: figures.epsilon_against_step(ax, [1, 2], **LINES, audited={name: [bounds]}),
        "claims": lambda ax: figures.beside_claims(ax, {name: bounds[0]}, claimed=1.0),
        "tradeoffs": lambda ax: [figures.tradeoffs(ax, [0, 1], {name: [1, 0]}), ax.legend()],
        "tag": lambda ax: figures.tag(ax, name),
        "source": lambda ax: figures.name_source(ax.figure, name),
        "looks": lambda ax: [ax.plot([1, 2], **figures.looks(name)), ax.legend()],
    }
    for way, draw in ways.items():
        ax.clear()
        draw(ax)
        assert name in drawn(ax.figure), way


def test_a_ceiling_that_depends_on_the_step_is_a_line_of_its_own(ax, bounds_of):
    one = {"S2": [bounds_of([1.0, 2.0])]}
    given = {**LINES, "audited": one}
    line = figures.epsilon_against_step(ax, [1, 2], **given, ceiling=[2.5, 3.0])["ceiling"]
    np.testing.assert_array_equal(line.get_xydata(), [[1, 2.5], [2, 3.0]])
    assert ax.get_ylim()[1] > 3.0
    ax.clear()
    note = figures.epsilon_against_step(ax, [1, 2], **given, ceiling=[30.0, 75.0])["ceiling"]
    assert note.get_text() == "ceiling: 30 to 75"
    ax.clear()
    flat = figures.epsilon_against_step(ax, [1, 2], **given, ceiling=[2.5, 2.5])["ceiling"]
    np.testing.assert_array_equal(flat.get_ydata(), [2.5, 2.5])


def test_numbers_that_would_be_missing_from_a_figure_are_named(ax, bounds_of):
    lines = {"substitute": [1, 2], "add_remove": [1, np.nan]}
    with pytest.raises(ValueError, match="add_remove must be numbers without NaN"):
        figures.epsilon_against_step(ax, [1, 2], **lines, audited={"S2": [bounds_of([1.0, 2.0])]})
