import pytest

from dpsub import DPSGD, accounting, audit_steps, crafters, data, models
from dpsub.estimators import epsilon_lower_bound, step_to_training
from studies.tight_auditing import step_tables

pytestmark = pytest.mark.slow

DELTA = 1e-5
LAW = {"noise_multiplier": 1.0, "sample_rate": 0.1, "steps": 500, "delta": DELTA}


@pytest.fixture(scope="module")
def audited():
    task = data.digits(n_train=60)
    model, spec = models.linear(task), DPSGD(1.0, 0.5, 0.1, 500, 0.1)
    found = {}
    for kind in ("dirac", "random"):
        pair = crafters.gradient_each_step(task, model, spec, kind=kind, seed=0)
        alone = pair.against_nothing(adjacency="add_remove")
        for one in (alone, pair):
            found[one.adjacency, kind] = audit_steps(task, model, one, spec, device="cpu", progress=False)
    return found


@pytest.fixture(scope="module")
def table(audited):
    return step_tables.canary_steps(audited, delta=DELTA)


def test_rows_measure_the_canary_and_bound_the_training(audited, table):
    assert list(table.index) == list(audited)
    assert (table.noise == 1).all()
    for (adjacency, _), row in table.iterrows():
        assert row.adjacency == adjacency
        distance = 2 if adjacency == "substitute" else 1
        assert row.apart == pytest.approx(distance, abs=0.35)
        assert row.accountant == accounting.epsilon(adjacency=adjacency, **LAW)
        assert 0 <= row.others < 0.6
        assert 0.2 * row.accountant < row.training < row.accountant
    one = audited["substitute", "dirac"]
    step = epsilon_lower_bound(one.score, one.bit, delta=DELTA)
    assert table.step["substitute", "dirac"] == step.epsilon
    training = step_to_training(step, sample_rate=0.1, steps=500, delta=DELTA, adjacency="substitute")
    assert table.training["substitute", "dirac"] == training.epsilon


def test_others_are_what_is_left_without_the_noise(audited):
    one = audited["add_remove", "random"].copy(deep=True)
    quiet = one.assign(score=one.score * 0 + (one.bit == 0)).assign_attrs(noise_multiplier=0.1)
    assert step_tables.canary_steps({"quiet": quiet}, delta=DELTA).others["quiet"] == 0
    beside = (one.bit == 1) * one.bit.cumsum() % 2 * 6.0  # 0 and 6 in turn where z' is in
    loud = one.assign(score=beside + 0.0 * one.score).assign_attrs(noise_multiplier=1.0)
    assert step_tables.canary_steps({"loud": loud}, delta=DELTA).others["loud"] == pytest.approx(8**0.5, abs=0.01)


def test_two_trainings_are_ranked(audited):
    one = audited["add_remove", "dirac"]
    of_two = step_tables.canary_steps({"a": one.assign_attrs(protocol="two_trainings")}, delta=DELTA)
    step = epsilon_lower_bound(one.score, one.bit, delta=DELTA, rule="ranks")
    assert of_two.step["a"] == step.epsilon


@pytest.fixture(scope="module")
def one_canary():
    task = data.digits(n_train=100)
    model, spec = models.linear(task), DPSGD(1.0, 1.0, 0.05, 1_500, 0.1)
    pair = crafters.gradient(task, model, spec, seed=0).against_nothing(adjacency="add_remove")
    return audit_steps(task, model, pair, spec, device="cpu", progress=False)


def test_every_estimator_has_a_row_and_gaussian_claims_find_most(one_canary):
    table = step_tables.step_bounds(one_canary, delta=DELTA)
    assert list(table.index[table.valid]) == ["GDP, bets"]
    assert len(table) == 7
    step = epsilon_lower_bound(one_canary.score, one_canary.bit, delta=DELTA)
    training = step_to_training(step, sample_rate=0.05, steps=1_500, delta=DELTA, adjacency="add_remove")
    assert table.step["GDP, bets"] == step.epsilon
    assert table.training["GDP, bets"] == training.epsilon
    truth = accounting.epsilon(noise_multiplier=1.0, sample_rate=0.05, steps=1_500, delta=DELTA, adjacency="add_remove")
    assert 0.6 * truth < table.training["GDP, bets"] < truth
    assert table.step["(ε, δ), Clopper–Pearson"] < 0.8 * table.step["GDP, Clopper–Pearson"]
    assert (table.training >= table.step).all()


def test_a_bound_of_epsilon_and_delta_is_converted_by_its_gaussian(one_canary):
    table = step_tables.step_bounds(one_canary, delta=DELTA)
    name = "(ε, δ), Clopper–Pearson"
    sigma = 1 / accounting.gdp_mu(table.step[name], DELTA)
    expected = accounting.epsilon(
        noise_multiplier=sigma, sample_rate=0.05, steps=1_500, delta=DELTA, adjacency="add_remove"
    )
    assert table.training[name] == pytest.approx(expected, rel=2e-3)


def test_two_trainings_are_not_bet_on(one_canary):
    table = step_tables.step_bounds(one_canary.assign_attrs(protocol="two_trainings"), delta=DELTA)
    assert "GDP, bets" not in table.index
    assert "GDP, ranks" in table.index
