"""What figures and tables are given.

Names are drawn as they are, and what cannot be drawn is named. A selection, another order of the dimensions, or an
incomplete store never changes a number in silence.
"""

from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pytest
import xarray as xr

from dpsub import estimators, figures, findings, pictures
from dpsub.estimators import epsilon_lower_bound

NAMES = (r"$\frac$", "_mine <ε>", r"$5 or \$6 %_^", "x" * 300)
LINES = {"substitute": [1, 2], "add_remove": [0.5, 1]}


def drawn(figure):
    """All texts as matplotlib draws them, without the line breaks of long names, and without a crash."""
    figure.draw_without_rendering()
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
    (figures.beside_claims, 1, {"bounds": {"a": ONE}, "claimed": 1.0}),
    (figures.tradeoffs, 1, {"fpr": [0, 1], "fnr": {"a": [1, 0]}}),
    (figures.tag, 1, {"name": "a"}),
    (pictures.travel, 2, {"trace": TRACE}),
    (pictures.confidence, 1, {"trace": TRACE, "slot": 1}),
    (pictures.descent, 2, {"trace": TRACE}),
    (pictures.label_cosines, 1, {"trace": TRACE, "own": 0, "chosen": 1}),
    (pictures.cosine_histogram, 1, {"trace": TRACE, "chosen": 1}),
    (pictures.accuracies, 1, {"steps": [1, 2], "accuracy": {"a": [[0, 1]]}}),
    (figures.epsilon_panels, 0, {"panels": {"a": {"steps": [1, 2], **LINES, "audited": BOUNDS}}, "source": "b"}),
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


@pytest.mark.parametrize("name", ["a\0b", "\ud800"])
def test_names_that_no_font_draws_are_refused(ax, name):
    with pytest.raises(ValueError, match="name must be a text without NUL and halves of characters"):
        figures.tag(ax, name)


def test_any_name_has_a_look():
    for name in ([None], np.ones(2), 0.5):
        assert figures.looks(name)["label"]


ORDERS = (("step", "repeat", "run"), ("run", "step", "repeat"), ("step", "run", "repeat"))


def with_accuracy(result, models=8):
    """The audit with accuracies that tell the model by their hundreds, and the step by their units."""
    lead = ("repeat",) if "repeat" in result.dims else ()
    sizes = {name: result.sizes[name] for name in lead} | {"measured": models, "step": result.sizes["step"]}
    values = np.arange(np.prod(list(sizes.values()))).reshape(tuple(sizes.values())) / 100
    return result.assign(accuracy=(tuple(sizes), values)).assign_coords(measured=np.arange(models))


@pytest.mark.parametrize("order", ORDERS)
def test_a_transposed_audit_has_the_same_findings(audited, order):
    result = with_accuracy(audited(3))
    turned = result.transpose(*order, "measured")
    assert findings.bounds(turned, delta=1e-5) == findings.bounds(result, delta=1e-5)
    assert (
        findings.panel({"S2": turned}, delta=1e-5)["audited"] == findings.panel({"S2": result}, delta=1e-5)["audited"]
    )
    assert findings.last_step([turned], delta=1e-5).equals(findings.last_step([result], delta=1e-5))
    assert findings.source(turned) == findings.source(result)
    for bit in (None, 0, 1):
        np.testing.assert_array_equal(findings.accuracy(turned, bit=bit), findings.accuracy(result, bit=bit))


def test_as_many_steps_as_runs_are_not_taken_for_runs(audited):
    square = audited(steps=range(10, 210, 5), runs=40)
    found = findings.bounds(square, delta=1e-5)
    assert len(set(found[0])) > 1
    assert findings.bounds(square.transpose(), delta=1e-5) == found
    bounds = epsilon_lower_bound(square.score, square.bit, delta=1e-5)
    assert [bounds] == found
    assert epsilon_lower_bound(square.score.T, square.bit, delta=1e-5) == bounds
    assert epsilon_lower_bound(square.score.T, square.bit.values, delta=1e-5) == bounds


def test_a_selection_has_the_findings_of_its_part(audited):
    result = with_accuracy(audited(3))
    whole = findings.bounds(result, delta=1e-5)
    assert findings.bounds(result.sel(repeat=1), delta=1e-5) == whole[1:2]
    assert findings.bounds(result.isel(repeat=[2, 0]), delta=1e-5) == [whole[2], whole[0]]
    for last in (result.isel(step=-1), result.isel(step=[-1]), result.isel(step=-1, drop=True)):
        assert findings.bounds(last, delta=1e-5) == [repeat[-1:] for repeat in whole]
    assert findings.bounds(result.isel(step=[1, 0]), delta=1e-5) == [repeat[::-1] for repeat in whole]
    some = result.isel(run=slice(0, 300, 3))
    expected = epsilon_lower_bound(result.score[1, ::3], result.bit[1, ::3], delta=1e-5)
    assert findings.bounds(some, delta=1e-5)[1] == expected
    assert findings.panel({"S2": some}, delta=1e-5)["ceiling"] == estimators.max_certifiable_epsilon(100, delta=1e-5)
    accuracies = findings.accuracy(result)
    np.testing.assert_array_equal(findings.accuracy(result.isel(step=-1)), accuracies[:, -1:])
    np.testing.assert_array_equal(findings.accuracy(result.isel(measured=2)), accuracies[2::8])


def test_the_last_step_is_the_latest_whatever_its_place(audited):
    table = findings.last_step([audited()], delta=1e-5)
    assert findings.last_step([audited().isel(step=[1, 0])], delta=1e-5).equals(table)
    early = findings.last_step([audited().isel(step=[0])], delta=1e-5)
    assert (early.steps[0], table.steps[0]) == (100, 400)
    assert early.substitute[0] == pytest.approx(findings.promises(audited(), delta=1e-5)["substitute"][0], abs=1e-3)


def test_accuracies_follow_the_numbers_of_their_runs(audited):
    result = with_accuracy(audited(3))
    expected = {bit: findings.accuracy(result, bit=bit) for bit in (0, 1)}
    order = np.random.default_rng(0).permutation(300)
    numbered = result.assign_coords(run=np.arange(300)).isel(run=order)
    for bit in (0, 1):
        np.testing.assert_array_equal(findings.accuracy(numbered, bit=bit), expected[bit])
    with pytest.raises(ValueError, match="result must say which runs it holds, got 150 of 300 without the coordinate"):
        findings.accuracy(result.isel(run=slice(150, 300)), bit=0)
    with pytest.raises(ValueError, match="result must hold the runs whose accuracy was measured, .* the number"):
        findings.accuracy(numbered.isel(run=slice(10)), bit=0)
    with pytest.raises(ValueError, match="result must hold each run once"):
        findings.accuracy(numbered.isel(run=[0] * 300), bit=0)
    for bit in (2, -1, "0", True):
        with pytest.raises(ValueError, match="bit must be"):
            findings.accuracy(result, bit=bit)
    with pytest.raises(ValueError, match="result must have the coordinate measured"):
        findings.accuracy(result.drop_vars("measured"), bit=0)
    with pytest.raises(ValueError, match="result must have bits of 0 or 1 for the measured runs"):
        findings.accuracy(result.assign(bit=result.bit * 0 - 1), bit=0)
    with pytest.raises(ValueError, match="result must be whole, got 12 of 48 accuracies missing"):
        findings.accuracy(result.assign(accuracy=result.accuracy.where(result.measured > 1)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda _: None, "result must be the dataset of an audit, got NoneType"),
        (lambda one: [one], "result must be the dataset of an audit, got list"),
        (lambda one: one.score, "result must be the dataset of an audit, got DataArray"),
        (lambda one: one.drop_vars("bit"), "result must be .* with score and bit, got one without bit"),
        (lambda one: one.drop_vars("score"), "result must be .* with score and bit, got one without score"),
        (lambda one: one.isel(run=0), r"result must have a score for each run, .* got score with .*\('step',\)"),
        (lambda one: one.rename(run="model"), "result must have a score for each run, .* got score with .*'model'"),
        (lambda one: one.expand_dims(x=2), "result must have a score for each run, .* got score with .*'x'"),
        (lambda one: one.assign(bit=one.bit.expand_dims(repeat=1)), "result must have .* got bit with"),
        (lambda one: one.isel(run=[]), "result must hold runs, steps and repeats, got score with"),
        (lambda one: one.isel(step=[]), "result must hold runs, steps and repeats, got score with"),
        (lambda one: one.assign(score=one.score.where(one.step > 100)), "result must be whole, got 300 of 600 scores"),
        (lambda one: one.assign(bit=one.bit * 0 - 1), r"result must have bits of 0 .* got \[-1\]"),
    ],
)
def test_what_is_no_whole_audit_is_refused(audited, change, message):
    with pytest.raises(ValueError, match=message):
        findings.bounds(change(audited()), delta=1e-5)


@pytest.mark.parametrize("steps", [["a", "b"], [0, 1], [np.nan, 1.0]])
def test_steps_that_are_none_are_refused(audited, steps):
    with pytest.raises(ValueError, match="must have steps >= 1, one or more, got the coordinate step"):
        findings.last_step([audited().assign_coords(step=steps)], delta=1e-5)


def test_an_incomplete_store_is_refused_but_for_its_complete_runs(audited):
    result = audited()
    there = xr.DataArray(np.arange(300) < 100, dims="run")
    store = result.assign(score=result.score.where(there), bit=result.bit.where(there, -1).astype(np.int8))
    for finding in (findings.bounds, lambda one, delta: findings.source(one)):
        with pytest.raises(ValueError, match="must be whole, got 400 of 600 scores NaN: its store is not complete"):
            finding(store, delta=1e-5)
    assert findings.bounds(store, delta=1e-5, runs=100) == findings.bounds(result, delta=1e-5, runs=100)


def test_what_an_audit_does_not_say_is_named(audited):
    with pytest.raises(ValueError, match="result must have the coordinate step"):
        findings.promises(audited().isel(step=-1, drop=True), delta=1e-5)
    with pytest.raises(
        ValueError, match="must have the attributes of an audit, got one without noise_mult.*parameters="
    ):
        findings.promises(audited().drop_attrs(), delta=1e-5)
    with pytest.raises(ValueError, match="must have the coordinate step"):
        findings.panel({"S2": audited().drop_vars("step")}, delta=1e-5)


@pytest.mark.parametrize("given", [None, [1], "audit", {"S2": None}, {"S2": [1]}, 3.0])
@pytest.mark.parametrize("finding", [findings.panel, findings.panels, findings.last_step])
def test_what_are_no_audits_is_named(given, finding):
    with pytest.raises(ValueError, match="audited"):
        finding(given, delta=1e-5)


def test_no_audits_are_refused():
    for finding, given in ((findings.panels, {}), (findings.last_step, [])):
        with pytest.raises(ValueError, match="audited must"):
            finding(given, delta=1e-5)


def test_scores_and_bits_with_named_dimensions_belong_together(audited):
    result = audited().assign_coords(run=np.arange(300))
    with pytest.raises(ValueError, match="scores and bits must be of the same runs in the same order"):
        epsilon_lower_bound(result.score, result.bit.isel(run=slice(None, None, -1)), delta=1e-5)
    with pytest.raises(ValueError, match="scores must have the dimension 'model' of bits"):
        epsilon_lower_bound(result.score, result.bit.rename(run="model"), delta=1e-5)
    several = audited(300)
    with pytest.raises(ValueError, match="scores must be of one repeat"):
        epsilon_lower_bound(several.score.isel(step=0), several.bit[0], delta=1e-5)
    with pytest.raises(ValueError, match="scores must be an array of numbers, got Dataset"):
        epsilon_lower_bound(result, result.bit, delta=1e-5)


def test_repeats_are_read_by_name():
    by_repeat = xr.DataArray([[1.0, 2.0, 3.0], [3.0, 4.0, 8.0]], dims=("repeat", "step"))
    expected = estimators.over_repeats(by_repeat.values)
    turned = estimators.over_repeats(by_repeat.T)
    assert turned.repeats == expected.repeats == 2
    np.testing.assert_array_equal([turned.mean, turned.error], [expected.mean, expected.error])
    with pytest.raises(ValueError, match='bounds must be .* the dimension "repeat", got'):
        estimators.over_repeats(by_repeat.rename(repeat="seed"))
