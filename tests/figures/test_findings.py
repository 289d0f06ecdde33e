import numpy as np
import pytest
import xarray as xr

from dpsub import DPSGD, CanaryPair, accounting, audit, audit_worst_case, data, estimators, findings, models


@pytest.mark.parametrize("repeats", [1, 3])
def test_bounds_are_the_estimators_for_each_repeat_and_step(audited, repeats):
    result = audited(repeats)
    found = findings.bounds(result, delta=1e-5)
    assert [len(repeat) for repeat in found] == [2] * repeats
    one = result if repeats == 1 else result.isel(repeat=2)
    alone = estimators.epsilon_lower_bound(one.score[:, 1], one.bit, delta=1e-5)
    assert found[-1][1] == alone
    papers = findings.bounds(result, delta=1e-5, threshold="best")
    assert not papers[0][0].valid


def test_bounds_of_the_first_runs_are_those_of_a_smaller_audit(audited):
    result = audited(3)
    few = findings.bounds(result, delta=1e-5, runs=100)
    assert few == findings.bounds(result.isel(run=slice(100)), delta=1e-5)
    for runs in (1, 301):
        with pytest.raises(ValueError, match=f"runs must be >= 2 and <= 300, got {runs}"):
            findings.bounds(result, delta=1e-5, runs=runs)


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
        ({"noise_multiplier": 20.001}, "noise_multiplier 20.001 beside 20.0"),
        ({"max_grad_norm": 3.0}, "max_grad_norm 3.0 beside 1.0"),
        ({"task_fingerprint": "another"}, "task_fingerprint 'another' beside None"),
        ({"adjacency": "zero_out"}, "adjacency 'zero_out' beside None"),
        ({"runs": 200}, "same runs, repeats and steps, got S3 with {'run': 200"),
        ({"repeats": 3}, "same runs, repeats and steps"),
        ({"steps": (50, 400)}, "same runs, repeats and steps"),
    ],
)
def test_panel_of_several_trainings_is_refused(audited, other, expected):
    with pytest.raises(ValueError, match=expected):
        findings.panel({"S2": audited(), "S3": audited(**other)}, delta=1e-5)


def test_noise_multipliers_that_stores_take_for_the_same_are_of_one_training(audited):
    panel = findings.panel({"S2": audited(), "S3": audited(noise_multiplier=20.0 * (1 + 1e-9))}, delta=1e-5)
    assert panel["audited"]["S2"] == panel["audited"]["S3"]


def test_panels_are_those_of_each_label(audited):
    audits = {(label, scenario): audited(noise_multiplier=sigma, scenario=scenario)
              for label, sigma in (("b", 20.0), ("a", 10.0)) for scenario in ("S3", "S2")}  # fmt: skip
    found = findings.panels(audits, delta=1e-5)
    assert list(found) == ["b", "a"]
    for label, panel in found.items():
        alone = findings.panel({s: audits[label, s] for s in ("S2", "S3")}, delta=1e-5)
        assert list(panel["audited"]) == ["S2", "S3"]
        assert panel["audited"] == alone["audited"]
        np.testing.assert_array_equal(panel["substitute"], alone["substitute"])
    assert (found["a"]["substitute"] > found["b"]["substitute"]).all()


def test_ceiling_is_that_of_the_runs_and_the_rule_in_use(audited):
    result, rule = audited(), {"threshold": "split", "alpha": 0.1}
    expected = estimators.max_certifiable_epsilon(100, delta=1e-5, **rule)
    assert findings.panel({"S2": result}, delta=1e-5, runs=100, **rule)["ceiling"] == expected
    assert findings.panel({"S2": result.isel(run=slice(100))}, delta=1e-5, **rule)["ceiling"] == expected
    assert findings.source(result.isel(run=slice(100))) == "a task; 100 models an audit"


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"alpha": 0.01, "threshold": "best"},
        {"method": "dp", "threshold": "split"},
        {"method": "bayes_gdp", "threshold": 0.5},
        {"runs": 100},
    ],
)
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
    panel = findings.panel({"S2": result}, delta=1e-5, method="pld", **told)
    assert panel["audited"]["S2"] == findings.bounds(result, delta=1e-5, method="pld", **told)
    expected = [
        estimators.max_certifiable_epsilon(60, delta=1e-5, method="pld", **(told | {"steps": at})) for at in (1, 2)
    ]
    assert list(panel["ceiling"]) == expected
    assert expected[0] != expected[1]
    assert findings.bounds(result, delta=1e-5, method="pld") == panel["audited"]["S2"], "the audit says it all"


def test_nothing_to_draw_or_to_name_is_an_error():
    with pytest.raises(ValueError, match="audited must be one audit or more, by scenario, got none"):
        findings.panel({}, delta=1e-5)
    with pytest.raises(ValueError, match="audited must be a sequence of audits, got ndarray"):
        findings.last_step(np.array(1.0), delta=1e-5)
    with pytest.raises(ValueError, match="audited must be one audit or more, got none"):
        findings.source()


def test_simulated_and_single_steps_can_be_tabled(audited, mechanism):
    simulated = audit_worst_case(**mechanism, runs=400, adjacency="substitute")
    single = audited().isel(step=-1)
    table = findings.last_step([simulated, single], delta=1e-5)
    assert list(table.scenario) == ["S1", "S2"]
    assert table.bound[1] == findings.bounds(audited(), delta=1e-5)[0][-1].epsilon


def test_last_step_is_a_table_of_the_final_models(audited):
    several, single = audited(3), audited(scenario="S4")
    table = findings.last_step([several, single], delta=1e-5)
    assert list(table.scenario) == ["S2", "S4"]
    last = [repeat[-1] for repeat in findings.bounds(several, delta=1e-5)]
    mean, error, _ = estimators.over_repeats(last)
    assert table.bound[0] == mean
    assert table.error[0] == error
    assert np.isnan(table.error[1])
    assert table.papers_rule[1] == findings.bounds(single, delta=1e-5, threshold="best")[0][-1].epsilon
    for adjacency, promised in findings.promises(several, delta=1e-5).items():
        assert table[adjacency][0] == pytest.approx(promised[-1], abs=1e-3)


def test_source_names_data_and_models(audited):
    assert findings.source(audited(), audited(scenario="S3")) == "a task; 300 models an audit"
    several = audited(3).assign_attrs(repeats=3)
    mixed = findings.source(several, audited(task="b", runs=100))
    assert mixed == "a task, b; 3 × 300 models and 100 models an audit"


@pytest.mark.parametrize("repeats", [1, 3])
def test_accuracies_are_parted_by_world(audited, repeats):
    result = audited(repeats)
    shape = (repeats, 8, 2) if repeats > 1 else (8, 2)
    dimensions = ("repeat", "measured", "step")[-len(shape) :]
    values = np.arange(np.prod(shape)).reshape(shape) / 100
    result = result.assign(accuracy=(dimensions, values)).assign_coords(measured=np.arange(8))
    np.testing.assert_array_equal(findings.accuracy(result), values.reshape(-1, 2))
    bits = result.bit.values.reshape(repeats, -1)[:, :8].ravel()
    for bit in (0, 1):
        np.testing.assert_array_equal(findings.accuracy(result, bit=bit), values.reshape(-1, 2)[bits == bit])
    with pytest.raises(ValueError, match="got an audit without accuracies"):
        findings.accuracy(audited())


def twins(runs=12, mu=(0.5, 2.0), seed=0, noise=0.02, **attrs):
    """Two audits of models that were trained twice: the same spread, mu of it apart, but for a little noise."""
    rng = np.random.default_rng(seed)
    bit = rng.integers(2, size=runs).astype(np.int8)
    speaks = np.where(bit == 0, 1, -1)[:, None]
    shared = 3 * rng.normal(size=(runs, len(mu)))
    scores = [shared + sign * speaks * 1.5 * np.array(mu) + noise * rng.normal(size=shared.shape) for sign in (1, -1)]
    return [
        xr.Dataset(
            {"score": (("run", "step"), score * sign), "bit": ("run", bit)},
            coords={"step": [10, 20][: len(mu)]},
            attrs={"seed": 0, "canary_fingerprint": name, "commit": name} | attrs,
        )
        for score, sign, name in ((scores[0], 1, "a"), (scores[1], -1, "b"))
    ]


def test_separation_is_the_gap_of_twins_over_the_spread_of_a_world():
    found = findings.separation(*twins(runs=1500), delta=1e-5)
    assert found.index.tolist() == [10, 20]
    assert found.gap.tolist() == pytest.approx([1.5, 6.0], abs=0.01)
    assert found.spread.tolist() == pytest.approx([3, 3], rel=0.05)
    assert found.mu.tolist() == pytest.approx([0.5, 2.0], rel=0.05)
    for column, sign in (("epsilon", 0), ("epsilon_low", -1), ("epsilon_high", 1)):
        at = found.mu + sign * found.error
        assert found[column].tolist() == [accounting.gdp_epsilon(mu, 1e-5) for mu in at]


def test_separation_is_computed_from_all_twins():
    one, other = twins(runs=5, noise=1.0)
    found = findings.separation(one, other, delta=1e-5)
    saw_z = one.bit.values[:, None] == 0
    z = np.where(saw_z, one.score, -other.score)
    z_prime = np.where(saw_z, -other.score, one.score)
    assert found.gap.tolist() == pytest.approx((z - z_prime).mean(axis=0).tolist())
    spread = np.sqrt((z.var(axis=0, ddof=1) + z_prime.var(axis=0, ddof=1)) / 2)
    assert found.spread.tolist() == pytest.approx(spread.tolist())
    assert found.mu.tolist() == pytest.approx((found.gap / found.spread * (1 - 3 / 15)).tolist())


@pytest.mark.parametrize("runs", [6, 12])
def test_a_few_twins_tell_the_separation_without_bias_and_to_the_error_that_is_stated(runs):
    found = [findings.separation(*twins(runs, (1.5,), seed), delta=1e-5).iloc[0] for seed in range(400)]
    mu = np.array([one.mu for one in found])
    assert abs(mu.mean() - 1.5) < 4 * mu.std() / 20, "not divided by a spread that is too small on average"
    # What twelve pairs find lies within two standard errors of the truth about as often as of a Gaussian.
    assert np.mean([abs(one.mu - 1.5) < one.error for one in found]) > 0.87
    # Without twins the means of two worlds of six models each would differ by chance alone by 0.6 of their spread.
    assert np.std([one.gap / 3 for one in found]) < 0.01


@pytest.mark.parametrize("name", ["linear", "mlp"])
def test_twins_of_an_audit_are_alike_but_for_their_canary(name):
    task = data.digits(n_train=60)
    model = getattr(models, name)(task)
    x, y = task.x_train[3], int(task.y_train[3])
    pair = CanaryPair((x, y), (x, (y + 1) % 10), 3, "S4")
    spec = DPSGD(3.0, 1.0, sample_rate=0.5, steps=20, learning_rate=0.3)
    one, other = (
        audit(task, model, canary, spec, runs=60, metrics=("accuracy",), observe_every=20, device="cpu", progress=False)
        for canary in (pair, pair.exchanged())
    )
    for bit in (0, 1):
        here = one.bit == bit
        assert np.corrcoef(one.score[here, 0], -other.score[here, 0])[0, 1] > 0.8
    last = findings.separation(one, other, delta=1e-5).iloc[-1]
    # The same gap as two worlds of strangers have, but for the error of those.
    scores, bits = one.score.values[:, 0], one.bit.values
    strangers = scores[bits == 0].mean() - scores[bits == 1].mean()
    assert abs(last.gap - strangers) < 4 * last.spread * 2 / np.sqrt(60)
    assert last.mu > 0.5


def test_worlds_that_do_not_differ_have_an_epsilon_of_zero_within_their_error():
    found = findings.separation(*twins(mu=(0.0,), noise=1.0), delta=1e-5)
    assert found.epsilon_low.item() == 0
    assert found.mu.item() == pytest.approx(0, abs=2 * found.error.item())


def test_audits_that_are_no_twins_are_named():
    one, other = twins()
    with pytest.raises(ValueError, match="got an audit of the same canary as result"):
        findings.separation(one, one, delta=1e-5)
    with pytest.raises(ValueError, match="exchanged must be of dpsub.audit, with its attributes"):
        findings.separation(one, other.drop_attrs(), delta=1e-5)
    for name in ("seed", "slot", "learning_rate", "device"):
        with pytest.raises(ValueError, match=f"got one with {name} 1 beside None"):
            findings.separation(
                one.drop_attrs().assign_attrs(canary_fingerprint="a"),
                other.assign_attrs({"seed": None, name: 1}),
                delta=1e-5,
            )
    with pytest.raises(ValueError, match="exchanged must have the bits and steps of result"):
        findings.separation(one, other.assign(bit=1 - other.bit), delta=1e-5)
    few, other_few = one.isel(run=slice(3)), other.isel(run=slice(3))
    with pytest.raises(ValueError, match="result must have the dimensions run, of 4 or more, and step, got .*'run': 3"):
        findings.separation(few, other_few, delta=1e-5)
    with pytest.raises(ValueError, match="exchanged must have the dimensions run, of 4 or more, and step, got .*12}"):
        findings.separation(one, other.isel(step=-1), delta=1e-5)
    with pytest.raises(ValueError, match="must be whole, got scores that are not finite"):
        findings.separation(one, other.assign(score=other.score.where(other.step > 10)), delta=1e-5)
    still = [audit.assign(score=audit.score * (audit.run == 3)) for audit in (one, other)]
    with pytest.raises(ValueError, match="got all, or all but one, alike at a step"):
        findings.separation(*still, delta=1e-5)


def test_twins_are_matched_by_the_numbers_of_their_runs():
    one, other = (audit.assign_coords(run=np.arange(12)) for audit in twins())
    expected = findings.separation(one, other, delta=1e-5)
    mixed = other.isel(run=np.random.default_rng(0).permutation(12))
    assert findings.separation(one, mixed, delta=1e-5).equals(expected)
    some = findings.separation(one.isel(run=[1, 4, 5, 8, 9]), mixed.sel(run=[9, 1, 8, 4, 5]), delta=1e-5)
    assert some.equals(findings.separation(*(audit.isel(run=[1, 4, 5, 8, 9]) for audit in (one, other)), delta=1e-5))
    with pytest.raises(ValueError, match="exchanged must hold the runs of result, got other numbers"):
        findings.separation(one.isel(run=slice(6)), other.isel(run=slice(6, 12)), delta=1e-5)


def test_a_selection_of_twins_without_numbers_is_refused():
    one, other = (audit.assign_attrs(runs=12) for audit in twins())
    with pytest.raises(ValueError, match="result must say which runs it holds, got 6 of 12 without the coordinate run"):
        findings.separation(one.isel(run=slice(6)), other.isel(run=slice(6)), delta=1e-5)
    with pytest.raises(ValueError, match="exchanged must have the coordinate step"):
        findings.separation(one, other.drop_vars("step"), delta=1e-5)
    with pytest.raises(ValueError, match="exchanged must be the dataset of an audit, got NoneType"):
        findings.separation(one, None, delta=1e-5)


def test_twins_of_a_linear_head_in_the_coordinates_of_its_records_are_refused():
    one, other = twins(trained_coordinates="span", optimizer="sgd", model="Linear(64 → 10)")
    with pytest.raises(ValueError, match="coordinates='all', got 'span'"):
        findings.separation(one, other, delta=1e-5)
    network = twins(trained_coordinates="span", optimizer="sgd", model="Network(64 → 10)")
    assert findings.separation(*network, delta=1e-5).equals(findings.separation(*twins(), delta=1e-5))


def test_twins_may_differ_in_when_and_how_exactly_they_were_made():
    one, other = twins(noise_multiplier=3.0)
    other = other.assign_attrs(noise_multiplier=3.0 + 1e-9, files={"a": "b"}, version_scipy="2", commit="c")
    plain = findings.separation(*twins(), delta=1e-5)
    assert findings.separation(one, other.transpose(), delta=1e-5).equals(plain)


def test_scores_and_noise_that_are_no_numbers_of_twins_are_refused():
    one, other = twins(noise_multiplier=1.0)
    with pytest.raises(ValueError, match="result must have scores that are real numbers, got dtype complex"):
        findings.separation(one.assign(score=one.score.astype(complex)), other, delta=1e-5)
    with pytest.raises(ValueError, match="exchanged must be the same audit .* noise_multiplier"):
        findings.separation(one, other.assign_attrs(noise_multiplier=10**400), delta=1e-5)
