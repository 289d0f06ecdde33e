import itertools
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from cases import slow_but

from dpsub import audit, crafters, data, models
from dpsub._core.random_streams import torch_seed
from dpsub.crafters.reference_model import reference
from dpsub.trainers import assemble


@pytest.fixture(scope="module")
def patients():
    """30 numbers a record; the values of a column are many."""
    return data.breast_cancer(n_train=60)


@pytest.fixture(scope="module")
def grouped():
    """Columns 0 and 4 are numbers; columns 1, 2 and 3 are a one-hot group."""
    rng = np.random.default_rng(1)
    y = np.arange(60) % 2
    x = np.column_stack([rng.normal(size=60), np.eye(3)[rng.integers(3, size=60)], y + rng.normal(size=60)])
    return data.from_arrays(x, y)


def by_module(task):
    return models.from_module(models.mlp(task, (4,)).module(), task)


def seeded(seed):
    """The generator that a crafter's training draws from."""
    return torch.Generator().manual_seed(torch_seed(seed, "crafter"))


def clipped(gradient, bound):
    return gradient * min(1, bound / float(gradient.norm()))


def test_clipped_gradients_of_the_chosen_value_lie_farthest_apart(patients, spec, gradient_by_hand):
    for model in (models.linear(patients), models.mlp(patients, hidden=(4,))):
        for bound in (0.5, 3.0, 1e6):
            setting = spec(max_grad_norm=bound)
            pair = crafters.attribute(patients, model, setting, columns=7, seed=2)
            found = reference(patients, model, setting, seed=2, target=None)
            mine = clipped(gradient_by_hand(found.module, *found.z), bound)
            values = np.unique(np.delete(patients.x_train[:, 7], found.slot))
            apart = []
            for value in values:
                x = found.z.x.copy()
                x[7] = value
                apart.append(
                    float((mine - clipped(gradient_by_hand(found.module, x, found.z.y), bound)).norm()) / bound
                )
            assert pair.details["other"] == values[int(np.argmax(apart))]
            assert pair.details["distance"] == pytest.approx(max(apart))
            np.testing.assert_array_equal(pair.trace["value"], values)
            np.testing.assert_allclose(pair.trace["distance"], apart, rtol=1e-5, atol=1e-8)


def test_worlds_share_all_but_the_column(patients, spec):
    model = models.linear(patients)
    pair = crafters.attribute(patients, model, spec(), columns=3, seed=0)
    label = crafters.mislabeled(patients, model, spec(), seed=0)
    assert (pair.scenario, pair.adjacency, pair.score, pair.slot) == ("S6", "substitute", "logit", label.slot)
    assert pair.task == patients.fingerprint
    np.testing.assert_array_equal(pair.z.x, patients.x_train[pair.slot])
    assert np.flatnonzero(pair.z.x != pair.z_prime.x).tolist() == [3]
    assert pair.z.y == pair.z_prime.y == patients.y_train[pair.slot]
    assert pair.z_prime.x[3] in patients.x_train[:, 3]
    for name in ("confidence", "norm"):
        assert pair.details[name] == label.details[name]
    assert pair.details["columns"] == 3
    assert pair.details["value"] == pair.z.x[3]
    assert pair.details["other"] == pair.z_prime.x[3]
    assert pair.details["seed"] == 0
    assert pair.fingerprint == crafters.attribute(patients, model, spec(), columns=np.int64(3), seed=0).fingerprint


def test_candidates_may_be_given_and_the_record_too(patients, spec):
    model = models.linear(patients)
    pair = crafters.attribute(patients, model, spec(), columns=3, values=[0.25, -0.5, 0.25], target=5, seed=0)
    assert pair.slot == 5
    assert pair.trace["value"].tolist() == [-0.5, 0.25]
    assert pair.details["other"] == pair.trace["value"][pair.trace["distance"].argmax()]
    own = float(patients.x_train[5, 3])
    alone = crafters.attribute(patients, model, spec(), columns=3, values=[0.25, own], target=5, seed=0)
    assert alone.trace["value"].tolist() == [0.25]


def test_only_asks_about_two_values_of_one_person(patients, spec):
    model = models.linear(patients)
    pair = crafters.attribute(patients, model, spec(), columns=3, only=(0.0, 1.0), target=12, seed=0)
    assert (pair.slot, pair.z.x[3], pair.z_prime.x[3]) == (12, 0.0, 1.0)
    for world in (pair.z, pair.z_prime):
        np.testing.assert_array_equal(np.delete(world.x, 3), np.delete(patients.x_train[12], 3))
        assert world.y == patients.y_train[12]
    assert (pair.details["value"], pair.details["other"]) == (0.0, 1.0)
    turned = crafters.attribute(patients, model, spec(), columns=3, only=(1.0, 0.0), target=12, seed=0)
    assert pair.exchanged().fingerprint == turned.fingerprint
    assert turned.details["distance"] == pytest.approx(pair.details["distance"])
    one = crafters.attribute(patients, model, spec(), columns=3, only=1, target=12, seed=0)
    assert (one.z.x[3], one.z_prime.x[3]) == (patients.x_train[12, 3], 1.0)


def test_a_one_hot_group_keeps_exactly_one_1(grouped, spec):
    model, columns = models.linear(grouped), (3, 1, 2)
    pair = crafters.attribute(grouped, model, spec(), columns=columns, seed=0)
    for world in (pair.z, pair.z_prime):
        assert sorted(world.x[1:4]) == [0, 0, 1]
        np.testing.assert_array_equal(world.x[[0, 4]], grouped.x_train[pair.slot, [0, 4]])
    own = int(grouped.x_train[pair.slot][list(columns)].argmax())
    assert pair.details["columns"] == "3 1 2"
    assert pair.details["value"] == own
    assert pair.z_prime.x[columns[pair.details["other"]]] == 1
    assert pair.trace["value"].tolist() == [i for i in range(3) if i != own]
    two = crafters.attribute(grouped, model, spec(), columns=columns, only=(2, 0), target=4, seed=0)
    assert (two.z.x[2], two.z_prime.x[3]) == (1, 1)
    given = crafters.attribute(grouped, model, spec(), columns=columns, values=[(own + 1) % 3], seed=0)
    assert given.details["other"] == (own + 1) % 3


@pytest.mark.parametrize("kind", ["linear", "mlp"])
@pytest.mark.parametrize("about", [{"columns": 7}, {"columns": 1, "only": (-2.0, 2.0)}])
def test_scores_speak_for_z(patients, kind, about, spec):
    model = models.linear(patients) if kind == "linear" else models.mlp(patients, hidden=(4,))
    setting = spec(noise_multiplier=0.05, steps=8, learning_rate=0.5)
    pair = crafters.attribute(patients, model, setting, seed=0, **about)
    result = audit(patients, model, pair, setting, runs=512, seed=1, observe_every=8, device="cpu", progress=False)
    with_z, with_z_prime = (result.score.values[result.bit.values == bit, -1] for bit in (0, 1))
    error = np.sqrt(with_z.var() / len(with_z) + with_z_prime.var() / len(with_z_prime))
    assert with_z.mean() - with_z_prime.mean() > 4 * error
    assert result.attrs["scenario"] == "S6"


@pytest.mark.parametrize(
    ("about", "message"),
    [
        ({"columns": [1, 2, 2]}, "columns must be .* different indices .* of a one-hot group"),
        ({"columns": (1, 2, 3), "values": [3]}, "values .positions within the .* group. must be .* <= 2, got 3"),
        ({"columns": 0, "only": 1.0, "values": [2.0]}, "only and values must not be given together"),
    ],
)
def test_bad_attributes_are_named(grouped, spec, about, message):
    with pytest.raises(ValueError, match=message):
        crafters.attribute(grouped, models.linear(grouped), spec(), seed=0, **about)


def test_what_cannot_be_another_value_is_named(grouped, spec):
    x = grouped.x_train.copy()
    x[:, 0] = 2
    constant = replace(grouped, x_train=x)
    model = models.linear(grouped)
    with pytest.raises(ValueError, match="columns must vary among the private records, got 0 .* give values"):
        crafters.attribute(constant, model, spec(), columns=0, seed=0)
    own = float(grouped.x_train[3, 4])
    for given in ({"values": [own]}, {"only": own}):
        with pytest.raises(ValueError, match="must leave a value that differs .* private record 3 has already"):
            crafters.attribute(grouped, model, spec(), columns=4, target=3, seed=0, **given)


def test_a_standardised_group_is_refused_with_a_hint(grouped, spec):
    x = grouped.x_train.copy()
    x[:, 1:4] = (x[:, 1:4] - x[:, 1:4].mean(axis=0)) / x[:, 1:4].std(axis=0)
    with pytest.raises(ValueError, match="something else in .1, 2, 3.: make the task without scaling"):
        crafters.attribute(replace(grouped, x_train=x), models.linear(grouped), spec(), columns=(1, 2, 3), seed=0)


def test_images_have_no_columns(attacked, spec):
    task, model = attacked["convnet"]
    with pytest.raises(ValueError, match="task must have flat features .n, d. for columns to index, got .*1, 16, 16"):
        crafters.attribute(task, model, spec(), columns=0, seed=0)


@pytest.fixture(scope="module")
def named():
    """A task from a frame: 40 private people."""
    rng = np.random.default_rng(3)
    frame = pd.DataFrame(
        {
            "age": rng.integers(20, 90, 80),
            "hiv": rng.choice(["negative", "positive", "unknown"], 80, p=[0.6, 0.2, 0.2]),
            "smoker": rng.random(80) < 0.3,
            "ill": rng.random(80) < 0.5,
        },
        index=[f"patient {i}" for i in range(80)],
    )
    return data.from_frame(frame, label="ill", sensitive="hiv"), frame


def test_a_column_is_asked_for_by_its_name_and_with_its_own_values(named, spec):
    task, frame = named
    model, about = models.linear(task), {"seed": 0, "target": 5}
    by_place = crafters.attribute(task, model, spec(), columns=[1, 2, 3], **about)
    by_name = crafters.attribute(task, model, spec(), columns="hiv", **about)
    assert by_name.fingerprint == by_place.fingerprint == crafters.attribute(task, model, spec(), **about).fingerprint
    values = ["negative", "positive", "unknown"]
    assert by_name.details["columns"] == "hiv"
    assert by_name.details["value"] == frame.hiv[task.rows[5]] == values[by_place.details["value"]]
    assert by_name.details["other"] == values[by_place.details["other"]]
    asked = crafters.attribute(task, model, spec(), columns="hiv", only=("positive", "unknown"), **about)
    assert (asked.z.x[1:4].tolist(), asked.z_prime.x[1:4].tolist()) == ([0, 1, 0], [0, 0, 1])
    older = crafters.attribute(task, model, spec(), columns="age", only=93, **about)
    assert (older.details["value"], older.details["other"]) == (frame.age[task.rows[5]], 93)
    of_age = task.columns["age"]
    assert older.z_prime.x[0] == np.float32((93 - of_age.centre) / of_age.scale)
    bands = data.from_frame(frame.assign(age=pd.cut(frame.age, [0, 50, 100])), label="ill")
    pair = crafters.attribute(bands, models.linear(bands), spec(), columns="age", **about)
    assert {pair.details["value"], pair.details["other"]} == {"(0, 50]", "(50, 100]"}
    pairs = crafters.attribute_pairs(task, model, spec(), values=["positive"], pairs=9, seed=0)
    assert pairs.details["columns"] == "hiv"
    assert (pairs.z_prime[:, 1:4] == [0, 1, 0]).all()


@pytest.mark.parametrize(
    ("about", "message"),
    [
        ({"columns": "hvi"}, "columns must be one of 'age', 'hiv', 'smoker', got 'hvi': did you mean 'hiv'"),
        ({"columns": "hiv", "only": "maybe"}, "column 'hiv' must hold .* got 'maybe'"),
    ],
)
def test_a_name_or_value_that_is_not_in_the_frame_is_named(named, spec, about, message):
    with pytest.raises(ValueError, match=message):
        crafters.attribute(named[0], models.linear(named[0]), spec(), seed=0, **about)


def test_other_tasks_have_no_names(grouped, spec):
    for columns in (None, "age"):
        with pytest.raises(ValueError, match="columns must be indices where a task is not from data.from_frame, got"):
            crafters.attribute(grouped, models.linear(grouped), spec(), columns=columns, seed=0)


@pytest.mark.parametrize("kind", slow_but(["linear", "mlp", "module"], "linear", "mlp"))
def test_the_most_exposed_target_has_gradients_farthest_apart_in_training(named, kind, spec, gradient_by_hand):
    task, setting = named[0], spec(max_grad_norm=0.7, steps=12, learning_rate=0.5)
    model = {"linear": models.linear, "mlp": models.mlp, "module": by_module}[kind](task)
    pair = crafters.attribute(task, model, setting, target="most_exposed", seed=1)
    bank = assemble(model, task, setting, bits=np.zeros(1, np.int8), generator=seeded(1))
    moments, modules = np.linspace(0, 12, 11).round()[:-1], []
    for step, _ in enumerate(itertools.chain([None], bank.train(noise=False))):
        if step in moments:
            modules.append(model.module(model.flat(bank.theta)[0].clone()).double())
    exposure = pair.trace["exposure"]
    for slot in (0, 17, pair.slot):
        own = crafters.attribute(task, model, setting, target=slot, seed=1)
        apart = [
            clipped(gradient_by_hand(module, *own.z), 0.7) - clipped(gradient_by_hand(module, *own.z_prime), 0.7)
            for module in modules
        ]
        assert exposure[slot] == pytest.approx(np.mean([float(one.norm()) for one in apart]) / 0.7, rel=1e-3)
    assert pair.slot == exposure.argmax()
    assert pair.fingerprint == own.fingerprint


def test_who_has_no_other_value_is_not_exposed(named, spec):
    task = named[0]
    pair = crafters.attribute(task, models.linear(task), spec(), only="positive", target="most_exposed", seed=0)
    positive = task.x_train[:, task.columns["hiv"].places[1]] == 1
    np.testing.assert_array_equal(np.isnan(pair.trace["exposure"]), positive)
    alike = replace(task, x_train=np.where(np.arange(5) == 4, 1, task.x_train))
    with pytest.raises(ValueError, match="must leave a value that differs from the record's own"):
        crafters.attribute(alike, models.linear(alike), spec(), columns="smoker", only=1, target="most_exposed", seed=0)
