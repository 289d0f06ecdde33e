"""Figures 2, 5 and A5."""

import numpy as np
import pytest

from dpsub import figures as common
from dpsub import findings
from studies.beyond_membership import figures


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
    assert points.get_markerfacecolor() == common.LOOKS["S1"]["color"]
    assert artists["rank test"].get_label() == "S1, rank test, assumes the mechanism"
    assert artists["best"].get_label() == "S1, best, assumes GDP; not valid"


def test_what_cannot_be_certified_does_not_break_the_figure(ax, bounds_of):
    figures.worst_case(
        ax, substitute=[1, 2], add_remove=[0.5, 1], group=[1.1, np.inf], audited={"ranks": [bounds_of([0.9, 1.9])]}
    )
    assert 1.9 < ax.get_ylim()[1] < 10


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


def test_a_ceiling_that_leaves_the_plot_says_where_it_goes(ax, bounds_of):
    given = {"audited": {"S2": [bounds_of([1.0, 2.0])]}, "substitute": 4.0, "add_remove": 2.0}
    figures.against_runs(ax, [50, 300], **given, ceiling=[3.0, 25.4])
    assert [text.get_text() for text in ax.texts] == ["ceiling: 3 to 25"]
    ax.clear()
    figures.against_runs(ax, [50, 300], **given, ceiling=[3.0, 4.2])
    assert not ax.texts
