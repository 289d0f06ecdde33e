"""The models that adversaries train for themselves: the reference, its gradients, and pretrained starts."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import cosine_similarity, cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from dpsub import audit, crafters, data, models
from dpsub._core.random_streams import torch_seed
from dpsub.crafters.descent import moments
from dpsub.crafters.reference_model import compare_gradients

INPUTS = [crafters.crafted_input, crafters.mislabeled, crafters.natural]
SHORT = {crafters.crafted_input: {"steps": 50, "learning_rate": 0.1}}


def test_target_is_the_record_that_a_model_without_privacy_is_least_sure_of(task, spec):
    x = torch.cat([torch.tensor(task.x_train), torch.ones(80, 1)], dim=1)
    labels = torch.nn.functional.one_hot(torch.tensor(task.y_train), 10)
    theta, confidence = torch.zeros(x.shape[1], 10), torch.zeros(80)
    for _ in range(15):
        theta = theta - 0.05 * x.T @ (torch.softmax(x @ theta, dim=1) - labels) / 80
        confidence += (torch.softmax(x @ theta, dim=1) * labels).sum(dim=1) / 15
    pair = crafters.mislabeled(task, models.linear(task), spec(), seed=0)
    np.testing.assert_allclose(pair.trace["confidence"], confidence, atol=1e-6)
    assert pair.slot == int(confidence.argmin())
    np.testing.assert_array_equal(pair.z.x, task.x_train[pair.slot])
    assert pair.z.y == task.y_train[pair.slot]
    assert pair.details["confidence"] == pytest.approx(float(confidence.min()), abs=1e-6)


@pytest.mark.parametrize("craft", INPUTS)
def test_whoever_chooses_records_knows_neither_clipping_nor_noise(task, craft, spec):
    model = models.linear(task)
    settings = spec(), spec(max_grad_norm=0.1, noise_multiplier=1.0)
    one, other = (craft(task, model, setting, seed=0, **SHORT.get(craft, {})) for setting in settings)
    assert one.fingerprint == other.fingerprint


@pytest.mark.parametrize("craft", INPUTS)
def test_bad_targets_and_trainings_are_named(task, craft, spec):
    model = models.linear(task)
    with pytest.raises(ValueError, match="target must be >= 0 and <= 79, got 80"):
        craft(task, model, spec(), seed=0, target=80)
    with pytest.raises(ValueError, match="spec must be such that training without clipping and noise does not diverge"):
        craft(task, model, spec(learning_rate=1e38), seed=0)


def test_target_without_a_gradient_is_named(task, spec):
    easy = data.from_arrays(np.eye(2) * 1e4, [0, 1], x_aux=np.eye(2) * 9e3, y_aux=[0, 1], num_classes=2)
    for craft in INPUTS:
        with pytest.raises(ValueError, match="target must have a gradient, got private record 1, whose"):
            craft(easy, models.linear(easy), spec(learning_rate=10.0), seed=0, target=1)


@pytest.mark.parametrize("craft", INPUTS)
def test_the_target_has_a_gradient_where_the_loss_ignores_a_label(task, craft, without_five, spec):
    found = crafters.reference(task, without_five, spec(learning_rate=1.0), seed=0)
    assert task.y_train[found.confidence.argmin()] == 5
    seen = np.where(task.y_train == 5, np.inf, found.confidence)
    assert found.slot == seen.argmin()
    pair = craft(task, without_five, spec(learning_rate=1.0), seed=0, **SHORT.get(craft, {}))
    assert pair.slot == found.slot
    with pytest.raises(ValueError, match="or choose another target, of a label that the loss does not ignore"):
        craft(task, without_five, spec(), seed=0, target=int(found.confidence.argmin()))


def test_no_record_without_a_gradient_is_chosen_for_z_prime_or_a_pair(task, without_five, spec):
    """Even if all other gradients point in the same direction, so that a cosine of 0 is the least."""
    setting = spec(learning_rate=1.0)
    private = task.y_train[crafters.mislabeled_pairs(task, without_five, setting, pairs=30, seed=0).slots]
    assert (len(private), (private == 5).sum()) == (30, 0)
    slots = crafters.attribute_pairs(task, without_five, setting, columns=20, pairs=20, seed=0).slots
    assert (task.y_train[slots] != 5).all()
    few = replace(task, x_train=task.x_train[:30], y_train=task.y_train[:30])
    exposure = crafters.mislabeled(few, without_five, setting, seed=0, target="most_exposed").trace["exposure"]
    np.testing.assert_array_equal(np.isnan(exposure), few.y_train == 5)
    target = crafters.reference(task, without_five, setting, seed=0).slot
    alike = np.flatnonzero(task.y_train == task.y_train[target])
    ignored = np.flatnonzero(task.y_aux == 5)[:1]
    x_aux = np.concatenate([task.x_aux[ignored], 1.01 * task.x_train[alike]])
    y_aux = np.concatenate([task.y_aux[ignored], task.y_train[alike]])
    found = crafters.natural(replace(task, x_aux=x_aux, y_aux=y_aux), without_five, setting, seed=0)
    assert found.trace["cosine"].argmin() == 0
    assert found.z_prime.y == task.y_train[target]


def test_the_reference_is_the_model_that_crafters_look_at(task, spec):
    model = models.mlp(task, (4,))
    found, pair = crafters.reference(task, model, spec(), seed=2), crafters.mislabeled(task, model, spec(), seed=2)
    assert found.slot == pair.slot
    np.testing.assert_array_equal(found.confidence, pair.trace["confidence"])
    assert float(found.gradient().norm()) == pair.details["norm"]
    assert crafters.reference(task, model, spec(), seed=2, target=7).slot == 7
    with torch.no_grad():
        assert found.module(torch.tensor(task.x_train).double()).shape == (80, 10)


@pytest.mark.parametrize("steps", [1, 7, 100, 101, 150, 199, 5000])
def test_moments_are_the_start_and_a_hundred_that_end_at_the_end(steps):
    found = moments(steps)
    assert len(found) == min(steps, 100) + 1
    assert (found[0], found[-1]) == (0, steps)
    assert np.diff(found).min() >= 1
    assert np.ptp(np.diff(found)) <= 1, "evenly spaced"


@pytest.mark.parametrize("name", ["linear", "mlp", "convnet"])
def test_geometry_is_that_of_the_gradients_one_by_one(attacked, name, spec, gradient_by_hand):
    task, model = attacked[name]
    found = crafters.reference(task, model, spec(sample_rate=0.5), seed=1)
    target = gradient_by_hand(found.module, *found.z)
    some = task.x_aux[:20], task.y_aux[:20]
    gradients = [gradient_by_hand(found.module, x, int(y)) for x, y in zip(*some, strict=True)]
    cosine, ratio, norm = compare_gradients(found, *some)
    assert norm == pytest.approx(float(target.norm()))
    np.testing.assert_allclose(cosine, [float(cosine_similarity(target, g, dim=0)) for g in gradients], atol=1e-9)
    np.testing.assert_allclose(ratio, [float(g.norm() / target.norm()) for g in gradients], rtol=1e-9)


NAMES = ["linear", "mlp", "convnet", "module"]


def by_hand(task, model, *, seed, epochs, batch_size, learning_rate):
    """Plain SGD by a data loader, from the model's start, in the same order. Returns the module."""
    generator = torch.Generator().manual_seed(torch_seed(seed, "crafter", 2))
    module = model.module(model.flat(model.initial_parameters(1, generator))[0])
    trained = [one for one in module.parameters() if one.requires_grad]
    for _ in range(epochs):
        order = torch.randperm(len(task.y_aux), generator=generator).tolist()
        records = TensorDataset(torch.tensor(task.x_aux), torch.tensor(task.y_aux))
        for x, y in DataLoader(records, batch_size, sampler=order):
            gradients = torch.autograd.grad(cross_entropy(module(x), y), trained)
            with torch.no_grad():
                for one, gradient in zip(trained, gradients, strict=True):
                    one -= learning_rate * gradient
    return module


@pytest.mark.parametrize("name", NAMES)
def test_the_start_is_that_of_a_plain_training_loop(targets, name):
    task, model = targets[name]
    options = {"seed": 3, "epochs": 2, "batch_size": 10, "learning_rate": 0.1}
    start = crafters.pretrained_start(task, model, **options)
    assert start.shape == (model.parameters,)
    assert start.dtype == np.float32
    expected = by_hand(task, model, **options)
    found = model.starting_from(start).module(start)
    for one, other in zip(found.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_every_model_of_a_bank_starts_there(targets, name):
    task, model = targets[name]
    started = model.starting_from(crafters.pretrained_start(task, model, seed=0, epochs=1))
    theta = started.initial_parameters(3, torch.Generator())
    x = torch.tensor(task.x_train[:5])
    expected = started.module(started.flat(theta)[1])(x)
    for run in range(3):
        torch.testing.assert_close(started.logits(theta, started.inputs(x))[..., run], expected)
    assert repr(started) != repr(model)


def test_private_gradients_shrink_and_the_canarys_stays_long(task, spec):
    model = models.mlp(task)
    blank = crafters.blank(task, model, spec(), seed=0)
    start = crafters.pretrained_start(task, model, seed=0, epochs=30, learning_rate=0.3)
    theta = torch.stack([model.initial_parameters(1, torch.Generator().manual_seed(0))[0], torch.tensor(start)])

    def norms(x, y):
        return model.gradient_norms(theta, model.inputs(torch.tensor(x)), torch.tensor(y)).mean(dim=0)

    untrained, pretrained = norms(task.x_train, task.y_train)
    assert pretrained < untrained / 3
    of_canary = norms(blank.z.x[None], [blank.z.y])
    assert of_canary[1] > 2 * pretrained
    assert of_canary[1] > of_canary[0] / 2


def test_an_audit_keeps_the_start(task, spec):
    model = models.linear(task)
    started = model.starting_from(crafters.pretrained_start(task, model, seed=0, epochs=1))
    pair = crafters.blank(task, started, spec(), seed=0).against_nothing(adjacency="add_remove")
    still = spec(learning_rate=1e-30, steps=1)
    result = audit(task, started, pair, still, runs=4, metrics=["weights"], device="cpu", progress=False)
    np.testing.assert_allclose(result.weights, np.tile(started.theta_0, (4, 1)), rtol=1e-6)
    assert result.attrs["model"] == repr(started)
    assert started.initial in repr(started)


def test_the_start_does_not_depend_on_the_number_of_threads(targets):
    task, model = targets["convnet"]
    threads, starts = torch.get_num_threads(), []
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            starts.append(crafters.pretrained_start(task, model, seed=0, epochs=3))
            assert torch.get_num_threads() == count
    finally:
        torch.set_num_threads(threads)
    np.testing.assert_array_equal(*starts)
