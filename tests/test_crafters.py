from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import cosine_similarity, cross_entropy, mse_loss

from dpsub import DPSGD, audit, crafters, data, models
from dpsub.crafters.geometry import compare_gradients
from dpsub.crafters.reference import reference, snapshots


@pytest.fixture(scope="module")
def task():
    return data.digits(n_train=80)


def spec(**changes):
    return DPSGD(
        **{"noise_multiplier": 9.0, "max_grad_norm": 2.0, "sample_rate": 1.0, "steps": 15, "learning_rate": 0.05}
        | changes
    )


@pytest.mark.parametrize("q", [1.0, 0.4])
def test_substituted_gradients_are_two_clipping_bounds_apart(task, q):
    pair = crafters.gradient(task, models.linear(task), spec(sample_rate=q), seed=3)
    assert pair.adjacency == "substitute"
    assert pair.scenario == "S2"
    assert np.linalg.norm(pair.z) == np.linalg.norm(pair.z_prime) == 2.0
    assert np.linalg.norm(pair.z - pair.z_prime) == 4.0
    assert np.count_nonzero(pair.z) == 1
    assert 0 <= pair.slot < 80


def test_canary_sits_on_the_parameter_that_travels_least(task):
    model, setting = models.linear(task), spec()
    x = torch.cat([torch.as_tensor(task.x_train), torch.ones(80, 1)], dim=1)
    labels = torch.nn.functional.one_hot(torch.as_tensor(task.y_train), 10)
    theta, travel = torch.zeros(model.shape), torch.zeros(model.shape)
    for _ in range(setting.steps):
        gradients = x[:, :, None] * (torch.softmax(x @ theta, dim=1) - labels)[:, None, :]
        scale = (2.0 / (gradients.flatten(1).norm(dim=1) + 1e-6)).clamp(max=1)
        move = 0.05 * (scale[:, None, None] * gradients).sum(0) / 80
        theta, travel = theta - move, travel + move.abs()
    pair = crafters.gradient(task, model, setting, seed=0)
    assert pair.details["parameter"] == int(travel.argmin()) == int(np.flatnonzero(pair.z)[0])
    assert pair.details["travel"] == pytest.approx(float(travel.min()), rel=1e-3)


def test_same_seed_same_canary(task):
    setting, model = spec(sample_rate=0.4), models.linear(task)
    one, other = (crafters.gradient(task, model, setting, seed=5) for _ in range(2))
    np.testing.assert_array_equal(one.z, other.z)
    assert one.slot == other.slot
    assert one.details == other.details
    assert len({crafters.gradient(task, model, setting, seed=seed).slot for seed in range(5)}) > 1


def test_bad_seed_is_named(task):
    with pytest.raises(ValueError, match="seed must be >= 0, got -1"):
        crafters.gradient(task, models.linear(task), spec(), seed=-1)


def test_path_shows_the_parameters_that_travel_least_middlingly_and_most(task):
    pair = crafters.gradient(task, models.linear(task), spec(steps=250), seed=0)
    travel, path, step = (pair.trace[name] for name in ("travel", "path", "step"))
    assert step[0] == 0
    assert step[-1] == 250
    assert len(step) == len(path) <= 101
    moved = np.abs(np.diff(path, axis=0)).sum(axis=0)
    np.testing.assert_allclose(moved, [travel.min(), np.sort(travel)[(len(travel) - 1) // 2], travel.max()], rtol=0.05)


INPUTS = [crafters.crafted_input, crafters.mislabeled, crafters.natural]
SHORT = {crafters.crafted_input: {"steps": 300, "learning_rate": 0.1}}
NETWORKS = {"linear": models.linear, "mlp": models.mlp, "convnet": models.convnet}


@pytest.fixture(scope="module")
def tasks(task):
    rng = np.random.default_rng(0)
    labels = [rng.integers(3, size=40) for _ in range(2)]
    means = rng.normal(size=(3, 1, 16, 16))
    images = [means[y] + rng.normal(size=(40, 1, 16, 16)) for y in labels]
    small = data.from_arrays(images[0], labels[0], x_aux=images[1], y_aux=labels[1])
    with torch.no_grad():
        assert models.convnet(small).module()(torch.as_tensor(small.x_train)).shape == (40, 3)
    return {"linear": task, "mlp": task, "convnet": small}


def gradient_by_hand(module, x, y):
    module.zero_grad()
    cross_entropy(module(torch.as_tensor(x)[None].double()), torch.tensor([y])).backward()
    return torch.cat([parameter.grad.flatten() for parameter in module.parameters()])


@pytest.mark.parametrize("name", NETWORKS)
def test_geometry_is_that_of_the_gradients_one_by_one(tasks, name):
    task = tasks[name]
    found = reference(task, NETWORKS[name](task), spec(sample_rate=0.5), seed=1, target=None)
    target = gradient_by_hand(found.module, *found.z)
    gradients = [gradient_by_hand(found.module, x, int(y)) for x, y in zip(task.x_aux, task.y_aux, strict=True)]
    cosine, ratio, norm = compare_gradients(found, task.x_aux, task.y_aux)
    assert norm == pytest.approx(float(target.norm()))
    np.testing.assert_allclose(cosine, [float(cosine_similarity(target, g, dim=0)) for g in gradients], atol=1e-9)
    np.testing.assert_allclose(ratio, [float(g.norm() / target.norm()) for g in gradients], rtol=1e-9)


def test_target_is_the_record_that_a_model_without_privacy_is_least_sure_of(task):
    x = torch.cat([torch.as_tensor(task.x_train), torch.ones(80, 1)], dim=1)
    labels = torch.nn.functional.one_hot(torch.as_tensor(task.y_train), 10)
    theta, confidence = torch.zeros(65 - (64 - task.x_train.shape[1]), 10), torch.zeros(80)
    for _ in range(15):
        theta = theta - 0.05 * x.T @ (torch.softmax(x @ theta, dim=1) - labels) / 80
        confidence += (torch.softmax(x @ theta, dim=1) * labels).sum(dim=1) / 15
    pair = crafters.mislabeled(task, models.linear(task), spec(), seed=0)
    np.testing.assert_allclose(pair.trace["confidence"], confidence, atol=1e-6)
    assert pair.slot == int(confidence.argmin())
    np.testing.assert_array_equal(pair.z.x, task.x_train[pair.slot])
    assert pair.z.y == task.y_train[pair.slot]
    assert pair.details["confidence"] == pytest.approx(float(confidence.min()), abs=1e-6)


def test_crafted_input_descends_by_hand_from_zero(task):
    model = models.linear(task)
    pair = crafters.crafted_input(task, model, spec(), seed=0, steps=6, learning_rate=0.5)
    module = reference(task, model, spec(), seed=0, target=None).module
    wanted = gradient_by_hand(module, *pair.z).detach()

    def losses(x):
        got = gradient_by_hand(module, x, pair.z.y)
        return float(cosine_similarity(wanted, got, dim=0)), float(mse_loss(got, wanted))

    x, h = np.zeros_like(pair.z.x, dtype=np.float64), 1e-6
    for step in range(6):
        np.testing.assert_allclose([pair.trace["cosine"][step], pair.trace["mse"][step]], losses(x), rtol=1e-5)
        slope = [(sum(losses(x + h * e)) - sum(losses(x - h * e))) / (2 * h) for e in np.eye(len(x))]
        x -= 0.5 * np.array(slope)
    np.testing.assert_allclose(pair.z_prime.x, x, atol=1e-5)
    assert pair.z_prime.y == pair.z.y
    np.testing.assert_array_equal(pair.trace["x"][0], np.zeros_like(x))
    np.testing.assert_array_equal(pair.trace["x"][-1], pair.z_prime.x)
    assert pair.details["crafting_steps"] == 6
    assert pair.details["crafting_rate"] == 0.5
    assert pair.details["cosine"] == pair.trace["cosine"][-1]


def test_crafted_input_turns_the_gradient_round(task):
    pair = crafters.crafted_input(task, models.linear(task), spec(), seed=0)
    assert pair.trace["cosine"][0] > 0
    assert pair.details["cosine"] < -0.8
    assert 0.5 < pair.details["norm_ratio"] < 2
    assert len(pair.trace["cosine"]) == 5_001
    assert len(pair.trace["step"]) == len(pair.trace["x"]) == 101


def test_label_and_natural_sample_are_those_that_point_farthest_away(task):
    model = models.mlp(task)
    found = reference(task, model, spec(), seed=2, target=7)
    target = gradient_by_hand(found.module, *found.z)

    def cosine(x, y):
        return float(cosine_similarity(target, gradient_by_hand(found.module, x, int(y)), dim=0))

    label = crafters.mislabeled(task, model, spec(), seed=2, target=7)
    others = [y for y in range(10) if y != found.z.y]
    assert label.z_prime.y == min(others, key=lambda y: cosine(found.z.x, y))
    np.testing.assert_array_equal(label.z_prime.x, label.z.x)
    assert label.trace["cosine"][found.z.y] == pytest.approx(1)

    sample = crafters.natural(task, model, spec(), seed=2, target=7)
    chosen = min(range(len(task.y_aux)), key=lambda i: cosine(task.x_aux[i], task.y_aux[i]))
    assert sample.details["auxiliary"] == chosen
    np.testing.assert_array_equal(sample.z_prime.x, task.x_aux[chosen])
    assert sample.z_prime.y == task.y_aux[chosen]
    assert sample.slot == label.slot == 7


@pytest.mark.parametrize("craft", INPUTS)
@pytest.mark.parametrize("name", NETWORKS)
def test_any_model_can_be_attacked_with_records(tasks, name, craft):
    task, setting = tasks[name], spec(noise_multiplier=0.05, steps=8, learning_rate=0.5)
    model = NETWORKS[name](task)
    pair = craft(task, model, setting, seed=0, **SHORT.get(craft, {}))
    assert pair.adjacency == "substitute"
    assert pair.details["cosine"] < 0.5
    result = audit(task, model, pair, setting, runs=64, seed=1, observe_every=8, progress=False)
    score, bit = result.score.values[:, -1], result.bit.values
    assert score[bit == 0].mean() > score[bit == 1].mean()


@pytest.mark.parametrize("craft", INPUTS)
def test_whoever_chooses_records_knows_neither_clipping_nor_noise(task, craft):
    model = models.linear(task)
    settings = spec(), spec(max_grad_norm=0.1, noise_multiplier=1.0)
    one, other = (craft(task, model, setting, seed=0, **SHORT.get(craft, {})) for setting in settings)
    assert one.fingerprint == other.fingerprint


@pytest.mark.parametrize("craft", INPUTS)
def test_same_seed_same_records(task, craft):
    setting, model = spec(sample_rate=0.3), models.mlp(task)
    one, other = (craft(task, model, setting, seed=4, **SHORT.get(craft, {})) for _ in range(2))
    assert one.fingerprint == other.fingerprint
    assert one.details == other.details


@pytest.mark.parametrize("craft", INPUTS)
def test_bad_targets_and_trainings_are_named(task, craft):
    model = models.linear(task)
    with pytest.raises(ValueError, match="target must be >= 0 and <= 79, got 80"):
        craft(task, model, spec(), seed=0, target=80)
    with pytest.raises(ValueError, match="seed must be >= 0, got -1"):
        craft(task, model, spec(), seed=-1)
    with pytest.raises(ValueError, match="spec must be such that training without clipping and noise does not diverge"):
        craft(task, model, spec(learning_rate=1e38), seed=0)


def test_descent_that_diverges_is_named(task):
    model = models.linear(task)
    with pytest.raises(ValueError, match="learning_rate must be small enough that crafting does not diverge, got 1e"):
        crafters.crafted_input(task, model, spec(), seed=0, learning_rate=1e300)
    with pytest.raises(ValueError, match="learning_rate must be > 0, got 0"):
        crafters.crafted_input(task, model, spec(), seed=0, learning_rate=0)
    with pytest.raises(ValueError, match="steps must be >= 1, got 0"):
        crafters.crafted_input(task, model, spec(), seed=0, steps=0)


def test_auxiliary_records_must_be_there_and_be_no_private_ones(task):
    model = models.linear(task)
    nothing = replace(task, x_aux=task.x_aux[:0], y_aux=task.y_aux[:0])
    with pytest.raises(ValueError, match="task must have auxiliary records to choose from"):
        crafters.natural(nothing, model, spec(), seed=0)
    mixed = replace(task, x_aux=np.concatenate([task.x_aux, task.x_train[:3]]), y_aux=np.append(task.y_aux, [0, 1, 2]))
    with pytest.raises(ValueError, match="got 3 of 503 with the features of a private record"):
        crafters.natural(mixed, model, spec(), seed=0)


def test_target_without_a_gradient_is_named(task):
    easy = data.from_arrays(np.eye(2) * 1e4, [0, 1], x_aux=np.eye(2) * 9e3, y_aux=[0, 1], num_classes=2)
    for craft in INPUTS:
        with pytest.raises(ValueError, match="target must have a gradient, got private record 1, of which"):
            craft(easy, models.linear(easy), spec(learning_rate=10.0), seed=0, target=1)


def test_target_without_features_cannot_be_turned_away_from(task):
    x = task.x_train.copy()
    x[3] = 0
    with pytest.raises(ValueError, match="it cannot leave a target whose features are all 0, where it starts"):
        crafters.crafted_input(replace(task, x_train=x), models.linear(task), spec(), seed=0, target=3, steps=100)


def test_parameters_that_nothing_moves_are_counted(task):
    x = np.hstack([task.x_train, np.zeros((80, 2), np.float32)])
    pair = crafters.gradient(
        data.from_arrays(x, task.y_train), models.linear(data.from_arrays(x, task.y_train)), spec(), seed=0
    )
    assert pair.details["unmoved"] == 20
    assert pair.details["travel"] == 0


@pytest.mark.parametrize("craft", [crafters.gradient, *INPUTS])
def test_crafting_takes_whole_seeds_leaves_torch_alone_and_wants_a_spec(task, craft):
    model, options = models.mlp(task), SHORT.get(craft, {})
    before = torch.get_rng_state()
    assert (
        craft(task, model, spec(), seed=3.0, **options).fingerprint
        == craft(task, model, spec(), seed=3, **options).fingerprint
    )
    assert torch.equal(before, torch.get_rng_state())
    with pytest.raises(ValueError, match="spec must be a dpsub.DPSGD, got a dict"):
        craft(task, model, {}, seed=3, **options)


@pytest.mark.parametrize("steps", [1, 7, 100, 101, 150, 199, 5000])
def test_snapshots_are_a_hundred_and_end_at_the_end(steps):
    moments = snapshots(steps)
    assert len(moments) == min(steps, 100)
    assert max(moments) == steps
    assert min(moments) >= 1
