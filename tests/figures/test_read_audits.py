"""A selection, another order of the dimensions, or an incomplete store never changes a number in silence."""

import numpy as np
import pytest
import xarray as xr

from dpsub import estimators, findings
from dpsub.estimators import epsilon_lower_bound

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
    with pytest.raises(ValueError, match="result must have the attributes of an audit, got one without noise_multip"):
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
