import numpy as np
import pytest
import xarray as xr

from dpsub import accounting, audit_worst_case, estimators, findings

MECHANISM = {"noise_multiplier": 20.0, "sample_rate": 1.0, "steps": 400}


def audited(repeats=1, steps=(100, 400), scenario="S2", runs=300, **attrs):
    """Scores of two worlds that drift apart, as an audit's dataset."""
    rng = np.random.default_rng(repeats)
    bit = rng.integers(2, size=(repeats, runs)).astype(np.int8)
    mu = np.sqrt(np.array(steps)) / 10
    score = np.where(bit[..., None] == 0, mu, -mu) / 2 + rng.normal(size=(repeats, runs, len(steps)))
    result = xr.Dataset(
        {"score": (("repeat", "run", "step"), score), "bit": (("repeat", "run"), bit)},
        coords={"repeat": np.arange(repeats), "step": list(steps)},
        attrs={"scenario": scenario, "task": "a task", "runs": runs, "max_grad_norm": 1.0, "learning_rate": 0.1}
        | MECHANISM
        | attrs,
    )
    return result if repeats > 1 else result.isel(repeat=0, drop=True)


@pytest.mark.parametrize("repeats", [1, 3])
def test_bounds_are_the_estimators_for_each_repeat_and_step(repeats):
    result = audited(repeats)
    found = findings.bounds(result, delta=1e-5)
    assert [len(repeat) for repeat in found] == [2] * repeats
    one = result if repeats == 1 else result.isel(repeat=2)
    alone = estimators.epsilon_lower_bound(one.score.values[:, 1], one.bit.values, delta=1e-5)
    assert found[-1][1] == alone
    papers = findings.bounds(result, delta=1e-5, threshold="best")
    assert not papers[0][0].valid


def test_bounds_of_the_first_runs_are_those_of_a_smaller_audit():
    result = audited(3)
    few = findings.bounds(result, delta=1e-5, runs=100)
    assert few == findings.bounds(result.isel(run=slice(100)), delta=1e-5)
    for runs in (1, 301):
        with pytest.raises(ValueError, match=f"runs must be from 2 to the 300 of the audit, got {runs}"):
            findings.bounds(result, delta=1e-5, runs=runs)


def test_promises_are_the_accountants_at_the_steps_observed():
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


def test_worst_case_audits_are_read_too():
    result = audit_worst_case(**MECHANISM, runs=400, adjacency="substitute")
    ((bound,),) = findings.bounds(result, delta=1e-5)
    assert bound.epsilon < findings.promises(result, delta=1e-5)["substitute"][0]


def test_panel_holds_what_a_figure_draws():
    panel = findings.panel({"S2": audited(3), "S5": audited(3, scenario="S5")}, delta=1e-5)
    assert list(panel["steps"]) == [100, 400]
    assert set(panel["audited"]) == {"S2", "S5"}
    assert len(panel["audited"]["S5"]) == 3
    assert panel["ceiling"] == estimators.max_certifiable_epsilon(300, delta=1e-5)


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (audited(noise_multiplier=3.0), "noise_multiplier 3.0 beside 20.0"),
        (audited(task="another"), "task 'another' beside 'a task'"),
        (audited(runs=200), "runs 200 beside 300"),
        (audited(steps=(50, 400)), "same steps, got S3"),
    ],
)
def test_panel_of_several_trainings_is_refused(other, expected):
    with pytest.raises(ValueError, match=expected):
        findings.panel({"S2": audited(), "S3": other}, delta=1e-5)


def test_last_step_is_a_table_of_the_final_models():
    several, single = audited(3), audited(scenario="S4")
    table = findings.last_step([several, single], delta=1e-5)
    assert list(table.scenario) == ["S2", "S4"]
    last = [repeat[-1] for repeat in findings.bounds(several, delta=1e-5)]
    mean, error, _ = estimators.over_repeats(last)
    assert table.bound[0] == mean
    assert table.error[0] == error
    assert np.isnan(table.error[1])
    assert table.papers_rule[1] == findings.bounds(single, delta=1e-5, threshold="best")[0][-1].epsilon
    assert table.substitute[0] > table.add_remove[0]


def test_source_names_data_and_models():
    assert findings.source(audited(), audited(scenario="S3")) == "a task; 300 models an audit"
    several = audited(3).assign_attrs(repeats=3)
    mixed = findings.source(several, audited(task="b", runs=100))
    assert mixed == "a task, b; 3 × 300 models and 100 models an audit"


def test_kept_audits_are_found_from_the_root_and_from_the_notebooks(tmp_path, monkeypatch):
    (tmp_path / "results/paper/fig").mkdir(parents=True)
    (tmp_path / "notebooks").mkdir()
    for place in (tmp_path, tmp_path / "notebooks"):
        monkeypatch.chdir(place)
        assert findings.kept("fig").resolve() == tmp_path / "results/paper/fig"
    with pytest.raises(FileNotFoundError, match="make rerun PRESET=laptop ONLY=fig"):
        findings.kept("fig", "laptop")
