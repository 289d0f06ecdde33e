import numpy as np
import pytest
import xarray as xr

from dpsub import DPSGD, accounting, audit, audit_worst_case, crafters, data, estimators, findings, models
from dpsub.estimators import epsilon_lower_bound
from studies.beyond_membership.pictures import of_world


@pytest.mark.parametrize("repeats", [1, 3])
def test_bounds_are_the_estimators_for_each_repeat_and_step(audited, repeats):
    result = audited(repeats)
    found = findings.bounds(result, delta=1e-5)
    assert [len(repeat) for repeat in found] == [2] * repeats
    one = result if repeats == 1 else result.isel(repeat=2)
    alone = epsilon_lower_bound(one.score[:, 1], one.bit, delta=1e-5)
    assert found[-1][1] == alone
    papers = findings.bounds(result, delta=1e-5, rule="best")
    assert not papers[0][0].valid


def test_bounds_of_the_first_runs_are_those_of_a_smaller_audit(audited):
    result = audited(3)
    few = findings.bounds(result, delta=1e-5, runs=100)
    assert few == findings.bounds(result.isel(run=slice(100)), delta=1e-5)
    with pytest.raises(ValueError, match="runs must be >= 2 and <= 300, got 301"):
        findings.bounds(result, delta=1e-5, runs=301)


def test_promises_are_the_accountants_at_the_steps_observed(audited):
    promised = findings.promises(audited(), delta=1e-5)
    for adjacency, values in promised.items():
        assert list(values) == pytest.approx(
            [
                accounting.epsilon(noise_multiplier=20.0, sample_rate=1.0, steps=steps, delta=1e-5, adjacency=adjacency)
                for steps in (100, 400)
            ],
            abs=1e-3,
        )
    assert set(promised) == {"substitute", "add_remove"}


def test_audits_with_other_batches_have_no_such_promises(audited):
    shuffled = audited().assign_attrs(sampling="epochs")
    with pytest.raises(ValueError, match="result must have an ε under add/remove, got sampling='epochs'"):
        findings.promises(shuffled, delta=1e-5)
    with pytest.raises(ValueError, match="audited must be of one training, got B with sampling 'epochs' beside None"):
        findings.panel({"A": audited(), "B": shuffled}, delta=1e-5)


def test_worst_case_audits_are_read_too(mechanism):
    result = audit_worst_case(**mechanism, runs=400, adjacency="substitute")
    ((bound,),) = findings.bounds(result, delta=1e-5)
    promised = findings.promises(result, delta=1e-5)
    assert promised["add_remove"][0] < bound.epsilon < promised["substitute"][0]


def test_panel_holds_what_a_figure_draws(audited):
    panel = findings.panel({"S2": audited(3), "S5": audited(3, scenario="S5")}, delta=1e-5)
    assert list(panel["steps"]) == [100, 400]
    assert set(panel["audited"]) == {"S2", "S5"}
    assert len(panel["audited"]["S5"]) == 3
    assert panel["ceiling"] == estimators.max_certifiable_epsilon(300, delta=1e-5)


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        ({"noise_multiplier": 3.0}, "noise_multiplier 3.0 beside 20.0"),
        ({"adjacency": "zero_out"}, "adjacency 'zero_out' beside None"),
        ({"runs": 200}, "same runs, repeats and steps, got S3 with {'step': 2, 'run': 200"),
    ],
)
def test_panel_of_several_trainings_is_refused(audited, other, expected):
    with pytest.raises(ValueError, match=expected):
        findings.panel({"S2": audited(), "S3": audited(**other)}, delta=1e-5)


@pytest.mark.parametrize("options", [{}, {"alpha": 0.01, "rule": "best"}, {"runs": 100}])
def test_the_ceiling_of_simultaneous_bounds_is_that_of_their_share_of_alpha(audited, options):
    result = audited()
    panel = findings.panel({"S2": result}, delta=1e-5, simultaneous=True, **options)
    half = xr.DataArray(np.arange(result.sizes["run"]) // 2 % 2, dims="run")
    perfect = result.assign(bit=half, score=result.score * 0 + 1 - half)
    found = findings.bounds(perfect, delta=1e-5, simultaneous=True, **options)
    assert [bound.epsilon for bound in found[0]] == pytest.approx([panel["ceiling"]] * 2, rel=1e-9)
    alone = findings.panel({"S2": result}, delta=1e-5, **options)["ceiling"]
    assert panel["ceiling"] < alone


def test_a_panel_by_the_mechanism_has_its_bounds_and_its_ceiling_at_each_step(audited):
    result = audited(sample_rate=0.9, adjacency="substitute", steps=(1, 2), runs=60)
    told = {"sample_rate": 0.9, "steps": [1, 2], "adjacency": "substitute"}
    panel = findings.panel({"S2": result}, delta=1e-5, claim="pld", **told)
    assert panel["audited"]["S2"] == findings.bounds(result, delta=1e-5, claim="pld", **told)
    expected = [
        estimators.max_certifiable_epsilon(60, delta=1e-5, claim="pld", **(told | {"steps": at})) for at in (1, 2)
    ]
    assert list(panel["ceiling"]) == expected
    assert expected[0] != expected[1]
    assert findings.bounds(result, delta=1e-5, claim="pld") == panel["audited"]["S2"], "the audit says it all"


def test_last_step_is_a_table_of_the_final_models(audited):
    several, single = audited(3), audited(scenario="S4")
    table = findings.last_step([several, single], delta=1e-5)
    assert list(table.scenario) == ["S2", "S4"]
    last = [repeat[-1] for repeat in findings.bounds(several, delta=1e-5)]
    mean, error, _ = estimators.over_repeats(last)
    assert table.bound[0] == mean
    assert table.error[0] == error
    assert np.isnan(table.error[1])
    assert table.papers_rule[1] == findings.bounds(single, delta=1e-5, rule="best")[0][-1].epsilon
    for adjacency, promised in findings.promises(several, delta=1e-5).items():
        assert table[adjacency][0] == pytest.approx(promised[-1], abs=1e-3)


@pytest.mark.parametrize("repeats", [1, 3])
def test_accuracies_are_of_all_repeats(audited, repeats):
    result = audited(repeats)
    shape = (repeats, 8, 2) if repeats > 1 else (8, 2)
    dimensions = ("repeat", "measured", "step")[-len(shape) :]
    values = np.arange(np.prod(shape)).reshape(shape) / 100
    result = result.assign(accuracy=(dimensions, values)).assign_coords(measured=np.arange(8))
    np.testing.assert_array_equal(findings.accuracy(result), values.reshape(-1, 2))
    bits = result.bit.values.reshape(repeats, -1)[:, :8].ravel()
    for bit in (0, 1):
        np.testing.assert_array_equal(of_world(result, bit), values.reshape(-1, 2)[bits == bit])
    with pytest.raises(ValueError, match="got an audit without accuracies"):
        findings.accuracy(audited())


def test_d_prime_is_the_distance_of_means_in_the_deviations_of_a_world():
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2, 40_000)
    scores = 7 + 3 * (rng.normal(size=40_000) + 1.5 * (bits == 0))
    assert findings.d_prime(scores, bits) == pytest.approx(1.5, abs=0.04)
    assert findings.d_prime(-scores, bits) == -findings.d_prime(scores, bits)
    assert findings.d_prime(xr.DataArray(scores, dims="run"), bits) == findings.d_prime(scores, bits)
    assert findings.d_prime([3.0, 5.0, 1.0, -1.0], [0, 0, 1, 1]) == pytest.approx(4 / np.sqrt(2))


def test_d_prime_of_scores_without_spread_is_zero_or_infinite():
    assert findings.d_prime([1.0, 1.0, 1.0, 1.0], [0, 0, 1, 1]) == 0
    assert findings.d_prime([2.0, 2.0, 1.0, 1.0], [0, 0, 1, 1]) == np.inf
    assert findings.d_prime([1.0, 1.0, 2.0, 2.0], [0, 0, 1, 1]) == -np.inf


@pytest.fixture(scope="module")
def watched():
    """Eight audited models, their canary's gradients observed at every step and at three steps."""
    task = data.digits(n_train=30)
    model, steps = models.linear(task), 9
    sigma = accounting.noise_multiplier(
        target_epsilon=6.0, sample_rate=1.0, steps=steps, delta=1e-5, adjacency="substitute"
    )
    spec = DPSGD(sigma, 1.0, 1.0, steps, 0.1)
    pair = crafters.gradient(task, model, spec, seed=0)
    usual = {"runs": 8, "metrics": ("distance",), "device": "cpu", "progress": False}
    return [audit(task, model, pair, spec, observe_every=every, **usual) for every in (1, 3)]


def test_a_gradient_canary_has_the_accountants_mu_however_many_steps_were_observed(watched):
    for result in watched:
        assert accounting.gdp_epsilon(findings.every_step_mu(result), 1e-5) == pytest.approx(6.0, rel=1e-3)


def test_every_step_mu_is_the_root_of_the_mean_square(watched):
    result = watched[0]
    drawn = np.random.default_rng(0).uniform(0, 1, result.distance.shape)
    squares = ((2 * drawn / result.noise_multiplier) ** 2).sum(axis=1)
    found = findings.every_step_mu(result.assign(distance=(result.distance.dims, drawn)))
    assert found == pytest.approx(np.sqrt(squares.mean()))
    assert findings.every_step_mu(result.assign(distance=0 * result.distance)) == 0


def test_audits_whose_steps_say_too_little_have_no_mu(watched):
    result = watched[0]
    with pytest.raises(ValueError, match=r'result must have distances \(run, step\): .*"distance",.*got none'):
        findings.every_step_mu(result.drop_vars("distance"))
    with pytest.raises(ValueError, match="result must be of sample rate 1, .* got 0.5"):
        findings.every_step_mu(result.assign_attrs(sample_rate=0.5))


def with_accuracy(result, models=8):
    """The audit with accuracies that tell the model by their hundreds, and the step by their units."""
    lead = ("repeat",) if "repeat" in result.dims else ()
    sizes = {name: result.sizes[name] for name in lead} | {"measured": models, "step": result.sizes["step"]}
    values = np.arange(np.prod(list(sizes.values()))).reshape(tuple(sizes.values())) / 100
    return result.assign(accuracy=(tuple(sizes), values)).assign_coords(measured=np.arange(models))


def test_a_transposed_audit_has_the_same_findings(audited):
    result = with_accuracy(audited(3))
    turned = result.transpose("step", "run", "repeat", "measured")
    assert findings.bounds(turned, delta=1e-5) == findings.bounds(result, delta=1e-5)
    assert (
        findings.panel({"S2": turned}, delta=1e-5)["audited"] == findings.panel({"S2": result}, delta=1e-5)["audited"]
    )
    assert findings.last_step([turned], delta=1e-5).equals(findings.last_step([result], delta=1e-5))
    assert findings.source(turned) == findings.source(result)
    np.testing.assert_array_equal(findings.accuracy(turned), findings.accuracy(result))


def test_as_many_steps_as_runs_are_not_taken_for_runs(audited):
    square = audited(steps=range(10, 250, 10), runs=24)
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


def test_an_incomplete_store_is_refused_but_for_its_complete_runs(audited):
    result = audited()
    with pytest.raises(ValueError, match=r"result must have a score for each run, .* got score with .*\('step',\)"):
        findings.bounds(result.isel(run=0), delta=1e-5)
    there = xr.DataArray(np.arange(300) < 100, dims="run")
    store = result.assign(score=result.score.where(there), bit=result.bit.where(there, -1).astype(np.int8))
    with pytest.raises(ValueError, match="200 of 300 runs are not trained yet, .* or drop them"):
        findings.bounds(store, delta=1e-5)
    with pytest.raises(ValueError, match="audited must be whole, got bits of -1"):
        findings.source(store)
    assert findings.bounds(store, delta=1e-5, runs=100) == findings.bounds(result, delta=1e-5, runs=100)


def test_what_an_audit_does_not_say_is_named(audited):
    with pytest.raises(ValueError, match="result must have the coordinate step"):
        findings.promises(audited().isel(step=-1, drop=True), delta=1e-5)
    with pytest.raises(ValueError, match="must have the attributes of an audit, got one without noise_mult"):
        findings.promises(audited().drop_attrs(), delta=1e-5)


def test_scores_and_bits_with_named_dimensions_belong_together(audited):
    result = audited().assign_coords(run=np.arange(300))
    with pytest.raises(ValueError, match="scores and bits must be of the same runs in the same order"):
        epsilon_lower_bound(result.score, result.bit.isel(run=slice(None, None, -1)), delta=1e-5)
    with pytest.raises(ValueError, match="scores must have the dimension 'model' of bits"):
        epsilon_lower_bound(result.score, result.bit.rename(run="model"), delta=1e-5)
    several = audited(300)
    with pytest.raises(ValueError, match="scores must be of one repeat"):
        epsilon_lower_bound(several.score.isel(step=0), several.bit[0], delta=1e-5)


def test_repeats_are_read_by_name():
    by_repeat = xr.DataArray([[1.0, 2.0, 3.0], [3.0, 4.0, 8.0]], dims=("repeat", "step"))
    expected = estimators.over_repeats(by_repeat.values)
    turned = estimators.over_repeats(by_repeat.T)
    assert turned.repeats == expected.repeats == 2
    np.testing.assert_array_equal([turned.mean, turned.error], [expected.mean, expected.error])
    with pytest.raises(ValueError, match="repeat.* do not exist"):
        estimators.over_repeats(by_repeat.rename(repeat="seed"))
