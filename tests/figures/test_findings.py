import numpy as np
import pytest
import xarray as xr

from dpsub import DPSGD, accounting, audit, audit_worst_case, crafters, data, estimators, findings, models


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


@pytest.mark.parametrize("repeats", [1, 3])
def test_tidy_bounds_are_the_bounds_row_by_row(audited, repeats):
    result = audited(repeats)
    table = findings.tidy_bounds(result, delta=1e-5, runs=100, method="dp")
    expected = [bound for of in findings.bounds(result, delta=1e-5, runs=100, method="dp") for bound in of]
    assert table.epsilon.tolist() == [bound.epsilon for bound in expected]
    assert list(zip(table.repeat, table.step, strict=True)) == [
        (i, step) for i in range(repeats) for step in (100, 400)
    ]
    assert set(table.method) == {"dp"}
    assert table.mu.isna().all()


def test_estimates_are_those_of_each_estimator():
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2, 300)
    scores = rng.normal(size=300) - 2 * bits
    table = findings.estimates(scores, bits, delta=1e-5, sample_rate=1, steps=1, adjacency="substitute")
    assert len(table) == 18
    assert not table.duplicated(["method", "rule"]).any()
    for row in table.itertuples():
        options = {"sample_rate": 1, "steps": 1, "adjacency": "substitute"} if row.method == "pld" else {}
        bound = estimators.epsilon_lower_bound(
            scores, bits, delta=1e-5, method=row.method, threshold=row.rule, **options
        )
        assert (row.epsilon, row.valid, row.assumes) == (bound.epsilon, bound.valid, bound.assumes)
    assert set(findings.estimates(scores, bits, delta=1e-5).method) == set(estimators.METHODS) - {"pld"}
    alternating = findings.estimates(scores, np.arange(300) % 2, delta=1e-5)
    assert alternating.note[np.isnan(alternating.epsilon)].str.contains("split|tossed anew").all()
    for changes, told in (
        ({"scores": scores[:, None]}, r"scores must be \(runs,\)"),
        ({"bits": bits[:9]}, "bits must"),
    ):
        with pytest.raises(ValueError, match=told):
            findings.estimates(**{"scores": scores, "bits": bits, "delta": 1e-5} | changes)


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


def test_audits_with_other_batches_have_no_such_promises(audited):
    shuffled = audited().assign_attrs(sampling="epochs")
    with pytest.raises(ValueError, match="result must be of Poisson batches, got sampling='epochs'"):
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


@pytest.mark.parametrize(
    ("scores", "bits", "message"),
    [
        ([[1.0, 2.0]] * 4, [0, 0, 1, 1], r"scores must have shape \(runs,\), got \(4, 2\): choose a step"),
        ([1.0, 2.0, 3.0], [0, 0, 1], "bits must hold two runs or more of each world, got 2 and 1"),
        ([1.0, np.nan, 3.0, 4.0], [0, 0, 1, 1], "scores must not be NaN"),
        ([1.0, np.inf, 3.0, 4.0], [0, 0, 1, 1], "scores must be finite"),
        ([1.0, 2.0, 3.0], [0, 0, 1, 1], "bits must"),
        ([1.0, 2.0, 3.0, 4.0], [0, 0, 2, 1], "bits must"),
    ],
)
def test_scores_that_do_not_fit_have_no_d_prime(scores, bits, message):
    with pytest.raises(ValueError, match=message):
        findings.d_prime(scores, bits)


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
    with pytest.raises(ValueError, match="got {'run': 8}"):
        findings.every_step_mu(result.isel(step=-1))
    with pytest.raises(ValueError, match="steps must be >= 1 and <= 1000000000"):
        findings.every_step_mu(result.assign_attrs(steps=10**400))
    with pytest.raises(ValueError, match="distances that are finite"):
        findings.every_step_mu(result.assign_attrs(noise_multiplier=1e-300))
    for spoiled in (result.assign(distance=result.distance * np.nan), result.isel(run=[])):
        with pytest.raises(ValueError, match="result must have distances >= 0 .*: is its store complete"):
            findings.every_step_mu(spoiled)
