"""What figures are given: names are drawn as they are, and what cannot be drawn is named."""

import io
import json
import re
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pytest
import xarray as xr

from dpsub import estimators, explorer, figures, findings, game, pictures, widgets
from dpsub.figures import pages

NAMES = (r"$\frac$", "_mine <ε>", r"$5 or \$6 %_^", "x" * 300)
LINES = {"substitute": [1, 2], "add_remove": [0.5, 1]}


def drawn(figure):
    """All texts as matplotlib draws them, without the line breaks of long names, and without a crash."""
    figure.savefig(io.BytesIO(), dpi=30)
    texts = [*figure.findobj(plt.Text)]
    shown = (text._preprocess_math(text.get_text()) for text in texts if text.get_visible())
    return "\n".join(text.replace("\n", "") for text, math in shown if math is False)


@pytest.mark.parametrize("name", NAMES)
def test_names_are_drawn_as_they_are(ax, bounds_of, name):
    """They are in every legend, on every axis, and below and above every figure."""
    one = {name: [bounds_of([1.0, 2.0])]}
    ways = {
        "step": lambda ax: figures.epsilon_against_step(ax, [1, 2], **LINES, audited=one),
        "runs": lambda ax: figures.against_runs(
            ax, [10, 20], audited=one, substitute=2.0, add_remove=1.0, ceiling=[3, 4]
        ),
        "worst": lambda ax: [figures.worst_case(ax, **LINES, group=[1, 2], audited=one), ax.legend()],
        "tradeoffs": lambda ax: [figures.tradeoffs(ax, [0, 1], {name: [1, 0]}), ax.legend()],
        "bars": lambda ax: figures.epsilon_bars(ax, {name: 1.0}),
        "accuracies": lambda ax: pictures.accuracies(ax, [1, 2], {name: [[0.1, 0.2]]}),
        "images": lambda ax: pictures.row_of_images([ax], np.zeros((1, 2, 2)), [name]),
        "tag": lambda ax: figures.tag(ax, name),
        "source": lambda ax: figures.name_source(ax.figure, name),
        "looks": lambda ax: [ax.plot([1, 2], **figures.looks(name)), ax.legend()],
    }
    for way, draw in ways.items():
        ax.clear()
        draw(ax)
        assert name in drawn(ax.figure), way
    (wrong, tight) = plt.subplots(1, 2, figsize=figures.DOUBLE)[1]
    figures.validity(wrong, tight, [10, 20], {name: ([0.1, 0.2], [0.5, 0.6], True)}, alpha=0.05)
    wrong.legend()
    assert name in drawn(wrong.figure)


def test_the_data_of_a_panel_are_drawn_as_they_are(audited):
    result = audited(scenario=r"$\frac$", task="_made $\\up_ of$ <b>")
    panel = findings.panel({r"$\frac$": result}, delta=1e-5)
    texts = drawn(figures.epsilon_panels({"$q_": panel}, source=findings.source(result)))
    for told in ("$q_", r"$\frac$", "_made $\\up_ of$ <b>; 300 models an audit"):
        assert told in texts


@pytest.mark.parametrize("name", ["", " ", "substitute", "group", "add_remove", "ceiling"])
def test_names_that_cannot_be_told_apart_are_refused(ax, bounds_of, name):
    one = {name: [bounds_of([1.0, 2.0])]}
    with pytest.raises(ValueError, match="audited must have names that are not empty, and not 'substitute'"):
        figures.epsilon_against_step(ax, [1, 2], **LINES, audited=one)
    with pytest.raises(ValueError, match="audited must have names"):
        figures.worst_case(ax, **LINES, group=[1, 2], audited=one)
    with pytest.raises(ValueError, match="audited must have names"):
        figures.against_runs(ax, [1, 2], audited=one, substitute=1.0, add_remove=1.0, ceiling=[1, 2])
    with pytest.raises(ValueError, match="fnr must have names that are not empty, and not 'guessing'"):
        figures.tradeoffs(ax, [0, 1], {"guessing": [1, 0]})


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


def test_steps_in_another_order_are_all_on_the_plot(ax, bounds_of):
    figures.epsilon_against_step(ax, [200, 100], **LINES, audited={"S2": [bounds_of([2.0, 1.0])]})
    assert ax.get_xlim()[1] > 200


def test_accuracies_with_named_dimensions_are_read_by_name(ax):
    found = xr.DataArray([[0.5, 0.6], [0.7, 0.9]], dims=("measured", "step"))
    for given in (found, found.T):
        ax.clear()
        np.testing.assert_allclose(
            pictures.accuracies(ax, [1, 2], {"with": given})["with"].get_ydata(), 100 * found.mean("measured")
        )


TRACE = {"step": [0, 1], "path": np.ones((2, 3)), "travel": [1.0, 2.0], "confidence": [0.1, 0.2], "cosine": [0.1, 0.2],
         "norm_ratio": [1, 2]}  # fmt: skip
ONE = estimators.LowerBound(1.0, "gdp", "gdp", True)
BOUNDS = {"S2": [[ONE, ONE]]}
# The arguments that each draws from, beside its axes.
CALLS = [
    (figures.epsilon_against_step, 1, {"steps": [1, 2], **LINES, "audited": BOUNDS}),
    (figures.against_runs, 1,
     {"runs": [1, 2], "audited": BOUNDS, "substitute": 1.0, "add_remove": 1.0, "ceiling": [1, 2]}),
    (figures.worst_case, 1, {**LINES, "group": [1, 2], "audited": BOUNDS}),
    (figures.against_noise, 1, {"noise_multipliers": {0.5: [1, 2]}, "values": {0.5: [1, 2]}, "reference": 1.0}),
    (figures.tradeoffs, 1, {"fpr": [0, 1], "fnr": {"a": [1, 0]}}),
    (figures.epsilon_bars, 1, {"values": {"group": 1.0}}),
    (figures.game, 2, {"audit": game.play(runs=125, mu=1.0), "threshold": 0.5}),
    (figures.validity, 2, {"runs": [1, 2], "measured": {"a": ([0, 0], [1, 1], True)}, "alpha": 0.05}),
    (figures.tag, 1, {"name": "a"}),
    (pictures.travel, 2, {"trace": TRACE}),
    (pictures.confidence, 1, {"trace": TRACE, "slot": 1}),
    (pictures.descent, 2, {"trace": TRACE}),
    (pictures.label_cosines, 1, {"trace": TRACE, "own": 0, "chosen": 1}),
    (pictures.cosine_histogram, 1, {"trace": TRACE, "chosen": 1}),
    (pictures.accuracies, 1, {"steps": [1, 2], "accuracy": {"a": [[0, 1]]}}),
    (figures.epsilon_panels, 0, {"panels": {"a": {"steps": [1, 2], **LINES, "audited": BOUNDS}}, "source": "b"}),
    (explorer.numbers, 0, {"noise_multiplier": 1.0, "sample_rate": 1.0, "steps": 1, "delta": 1e-5}),
    (widgets.epsilon_explorer, 0, {"noise_multiplier": 1.0, "sample_rate": 1.0, "steps": 1, "log10_delta": -5}),
    (widgets.audit_game, 0, {"runs": 125, "mu": 1.0, "delta": 1e-5}),
    (game.count_lies, 0, {"runs": 5, "mu": 1.0, "games": 1, "seed": 0}),
]  # fmt: skip


@pytest.mark.parametrize(("call", "count", "given"), CALLS, ids=lambda value: getattr(value, "__name__", ""))
def test_what_cannot_be_drawn_is_named(axes, call, count, given):
    places = axes(count) if count else []
    for argument in given:
        for wrong in (None, [], {}, [1.0, None], {"a": None}, float("nan"), np.zeros((2, 2, 2)), object()):
            with pytest.raises(ValueError, match=argument):
                call(*places, **{**given, argument: wrong})
    for place in range(count):
        with pytest.raises(ValueError, match="must be matplotlib axes"):
            call(*[None if other == place else ax for other, ax in enumerate(places)], **given)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": [1]}, r"audited\['S2'\] must have 1 bounds in each repeat"),
        ({"substitute": [1, 2, 3]}, r"substitute must have shape \(2,\), one for each point, got \(3,\)"),
        ({"add_remove": [1, np.nan]}, "add_remove must be no NaN"),
        ({"audited": {"S2": []}}, r"audited\['S2'\] must be a list of repeats"),
        ({"audited": {"S2": [[1.0, 2.0]]}}, r"audited\['S2'\] must hold lists of bounds"),
        ({"ceiling": [1, 2, 3]}, r"ceiling must have shape \(2,\)"),
        ({"steps": np.ma.array([1, 2], mask=[1, 0])}, "steps must not be masked"),
        ({"steps": ["1", "2"]}, "steps must be numbers, got"),
        ({"legend": "no"}, "legend must be True or False, got 'no'"),
        ({"audited": {"\ud800": [[ONE, ONE]]}}, "audited must have names"),
        ({"audited": {"S2": [[ONE, replace(ONE, epsilon="a")]]}}, r"audited\['S2'\] must be numbers, got 'a'"),
        ({"audited": {"S2": [[ONE, replace(ONE, assumes="luck")]]}}, r"audited\['S2'\]: assumes must be one of"),
        ({"audited": {"S2": [[ONE, replace(ONE, epsilon=-1.0)]]}}, r"audited\['S2'\] must hold bounds with an epsilon"),
        ({"audited": {"S2": [[ONE, replace(ONE, epsilon=np.inf)]]}}, r"audited\['S2'\] must be finite"),
    ],
)
def test_numbers_that_do_not_fit_are_named(ax, change, message):
    with pytest.raises(ValueError, match=message):
        figures.epsilon_against_step(ax, **{"steps": [1, 2], **LINES, "audited": BOUNDS, **change})


def test_bars_without_a_number_are_not_drawn_as_if_they_were_not_certified(ax):
    for wrong in (float("nan"), -1.0, float("-inf")):
        with pytest.raises(ValueError, match=r"values\['group'\] must be"):
            figures.epsilon_bars(ax, {"group": wrong})


def test_images_that_do_not_fit_are_named(axes):
    places = axes(2)
    for images, names, message in (
        (np.zeros((2, 4)), ["a", "b"], "images must have shape"),
        ([["a"]], ["a", "b"], "images must be numbers"),
        (np.full((2, 2, 2), np.nan), ["a", "b"], "images must be finite"),
        (np.zeros((2, 2, 2)), "ab", "names must be a list"),
        (np.zeros((2, 2, 2)), np.array(1.0), "names must be a list"),
        (np.zeros((2, 2, 2)), ["a"], "axes and names must be one for each of 2 images, got 2 and 1"),
        (np.zeros((2, 2, 2)), ["a", None], "names must be a text"),
    ):
        with pytest.raises(ValueError, match=message):
            pictures.row_of_images(places, images, names)


def test_sliders_start_where_they_are_told_or_say_why_not():
    for argument, wrong in (
        ("noise_multiplier", 1000.0),
        ("sample_rate", 1e-4),
        ("steps", 10_000),
        ("log10_delta", -20),
    ):
        with pytest.raises(ValueError, match=f"{argument} must be"):
            widgets.epsilon_explorer(**{argument: wrong})
    with pytest.raises(ValueError, match="runs must be one of 125, 1250, 12500, got 7"):
        widgets.audit_game(runs=7)
    for wrong in (-1, 0.5, "a", float("nan")):
        with pytest.raises(ValueError, match="seed must be"):
            widgets.audit_game(seed=wrong)


def test_a_value_in_a_page_cannot_end_its_script_or_ask_for_another():
    given = {"text": "</script><script>alert(1)</script><!-- {{tables}} {{style}}"}
    told = {"checked": 1, "within": 2}
    html = pages.filled("explorer.html", starts=given, **told).data
    plain = pages.filled("explorer.html", starts={}, **told).data
    assert html.count("<script") == plain.count("<script")
    assert html.count("</script") == plain.count("</script")
    data = re.search(r"const starts = (.*);", html)[1]
    assert json.loads(data) == given
    with pytest.raises(ValueError, match="not JSON compliant"):
        pages.filled("explorer.html", starts=float("nan"), **told)


@pytest.mark.parametrize("name", ["a\0b", "\ud800"])
def test_names_that_no_font_draws_are_refused(ax, name):
    with pytest.raises(ValueError, match="name must be a text without NUL and halves of characters"):
        figures.tag(ax, name)


def test_any_name_has_a_look():
    for name in ([None], np.ones(2), 0.5):
        assert figures.looks(name)["label"]
