import matplotlib.pyplot as plt
import pytest

from dpsub import DPSGD, accounting, audit_steps, crafters, data, figures, findings, models
from dpsub.estimators import epsilon_lower_bound, step_to_training

DELTA = 1e-5
LAW = {"noise_multiplier": 1.0, "sample_rate": 0.1, "steps": 800, "delta": DELTA}


@pytest.fixture(scope="module")
def audited():
    task = data.digits(n_train=60)
    model, spec = models.linear(task), DPSGD(1.0, 0.5, 0.1, 800, 0.1)
    found = {}
    for kind in ("dirac", "random"):
        pair = crafters.gradient_each_step(task, model, spec, kind=kind, seed=0)
        alone = pair.against_nothing(adjacency="add_remove")
        for one in (alone, pair):
            found[one.adjacency, kind] = audit_steps(task, model, one, spec, device="cpu", progress=False)
    return found


@pytest.fixture(scope="module")
def table(audited):
    return findings.canary_steps(audited, delta=DELTA)


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
    training = step_to_training(step, sample_rate=0.1, steps=800, delta=DELTA, adjacency="substitute")
    assert table.training["substitute", "dirac"] == training.epsilon


def test_others_are_what_is_left_without_the_noise(audited):
    one = audited["add_remove", "random"].copy(deep=True)
    quiet = one.assign(score=one.score * 0 + (one.bit == 0)).assign_attrs(noise_multiplier=0.1)
    assert findings.canary_steps({"quiet": quiet}, delta=DELTA).others["quiet"] == 0
    beside = (one.bit == 1) * one.bit.cumsum() % 2 * 6.0  # 0 and 6 in turn where z' is in
    loud = one.assign(score=beside + 0.0 * one.score).assign_attrs(noise_multiplier=1.0)
    assert findings.canary_steps({"loud": loud}, delta=DELTA).others["loud"] == pytest.approx(8**0.5, abs=0.01)


def test_two_trainings_are_ranked(audited):
    one = audited["add_remove", "dirac"]
    of_two = findings.canary_steps({"a": one.assign_attrs(protocol="two_trainings")}, delta=DELTA)
    step = epsilon_lower_bound(one.score, one.bit, delta=DELTA, threshold="ranks")
    assert of_two.step["a"] == step.epsilon


def test_panels_have_a_row_for_each_canary_and_its_accountant(table):
    figure = figures.canary_panels(table, source="digits")
    left, right = figure.axes
    assert [ax.get_legend() for ax in (left, right)] == [None, None]
    assert [text.get_text() for text in left.get_yticklabels()] == ["dirac", "random"]
    for ax, adjacency in ((left, "add_remove"), (right, "substitute")):
        here = table[table.adjacency == adjacency]
        assert list(ax.lines[0].get_xdata()) == list(here.training)
        (bars,) = ax.collections
        assert [bar.vertices[0][0] for bar in bars.get_paths()] == list(here.accountant)
    assert len(figure.legends[0].get_texts()) == 3
    plt.close(figure)


def test_one_adjacency_has_one_panel_and_names_need_be_no_tuples(table):
    alone = table.xs("substitute")
    figure = figures.canary_panels(alone, source="")
    assert len(figure.axes) == 1
    plt.close(figure)


def test_what_is_no_table_of_canaries_is_named(audited, table):
    with pytest.raises(ValueError, match=r"table must be one that findings\.canary_steps makes, got DataFrame"):
        figures.canary_panels(table.drop(columns="accountant"), source="")
    with pytest.raises(ValueError, match="table must be one"):
        figures.canary_panels(table[:0], source="")
    with pytest.raises(ValueError, match="table's adjacency must be"):
        figures.canary_panels(table.assign(adjacency="both"), source="")
    with pytest.raises(ValueError, match=r"audited\['a'\] must be an audit by audit_steps"):
        findings.canary_steps({"a": audited["substitute", "dirac"].rename(observation="run")}, delta=DELTA)
    with pytest.raises(ValueError, match=r"audited\['a'\] must have a canary rate of 1, got 0\.5"):
        findings.canary_steps({"a": audited["substitute", "dirac"].assign_attrs(q_c=0.5)}, delta=DELTA)
    with pytest.raises(ValueError, match="audited must have one entry or more"):
        findings.canary_steps({}, delta=DELTA)
