import numpy as np
import pytest

from dpsub import DPSGD, accounting, audit_steps, crafters, data, findings, models
from dpsub.estimators import epsilon_lower_bound, step_to_training

DELTA = 1e-5


@pytest.fixture(scope="module")
def audited():
    task = data.digits(n_train=100)
    model, spec = models.linear(task), DPSGD(1.0, 1.0, 0.05, 1_500, 0.1)
    pair = crafters.gradient(task, model, spec, seed=0).against_nothing(adjacency="add_remove")
    return audit_steps(task, model, pair, spec, device="cpu", progress=False)


def test_every_estimator_has_a_row_and_gaussian_claims_find_most(audited):
    table = findings.step_bounds(audited, delta=DELTA)
    assert list(table.index[table.valid]) == ["GDP, bets"]
    assert len(table) == 7
    step = epsilon_lower_bound(audited.score, audited.bit, delta=DELTA)
    training = step_to_training(step, sample_rate=0.05, steps=1_500, delta=DELTA, adjacency="add_remove")
    assert table.step["GDP, bets"] == step.epsilon
    assert table.training["GDP, bets"] == training.epsilon
    truth = accounting.epsilon(noise_multiplier=1.0, sample_rate=0.05, steps=1_500, delta=DELTA, adjacency="add_remove")
    assert 0.6 * truth < table.training["GDP, bets"] < truth
    assert table.step["(ε, δ), Clopper–Pearson"] < 0.8 * table.step["GDP, Clopper–Pearson"]
    assert (table.training >= table.step).all()


def test_a_bound_of_epsilon_and_delta_is_converted_by_its_gaussian(audited):
    table = findings.step_bounds(audited, delta=DELTA)
    name = "(ε, δ), Clopper–Pearson"
    sigma = 1 / accounting.gdp_mu(table.step[name], DELTA)
    expected = accounting.epsilon(
        noise_multiplier=sigma, sample_rate=0.05, steps=1_500, delta=DELTA, adjacency="add_remove"
    )
    assert table.training[name] == pytest.approx(expected, rel=2e-3)


def test_two_trainings_are_not_bet_on(audited):
    table = findings.step_bounds(audited.assign_attrs(protocol="two_trainings"), delta=DELTA)
    assert "GDP, bets" not in table.index
    assert "GDP, ranks" in table.index


def test_what_is_no_audit_of_steps_is_named(audited):
    with pytest.raises(ValueError, match=r"result must have a canary rate of 1, got 0\.5"):
        findings.step_bounds(audited.assign_attrs(q_c=0.5), delta=DELTA)
    with pytest.raises(ValueError, match=r"result must be an audit by audit_steps, got one with the variables .*'run'"):
        findings.step_bounds(audited.rename(observation="run"), delta=DELTA)
    with pytest.raises(ValueError, match="delta must be"):
        findings.step_bounds(audited, delta=np.nan)
