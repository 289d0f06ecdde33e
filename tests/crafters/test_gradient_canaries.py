"""Canaries that are gradients: trained for, drawn once, or drawn anew at each step."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import kstest

from dpsub import audit_steps, crafters, data, models
from dpsub._core.random_streams import stream
from dpsub.trainers.step_canaries import StepCanary


@pytest.mark.parametrize("q", [1.0, 0.4])
def test_substituted_gradients_are_two_clipping_bounds_apart(task, q, spec):
    pair = crafters.gradient(task, models.linear(task), spec(sample_rate=q), seed=3)
    assert pair.adjacency == "substitute"
    assert pair.scenario == "S2"
    assert np.linalg.norm(pair.z) == np.linalg.norm(pair.z_prime) == 2.0
    assert np.linalg.norm(pair.z - pair.z_prime) == 4.0
    assert np.count_nonzero(pair.z) == 1
    assert pair.z.max() == -pair.z_prime.min() == 2.0
    assert 0 <= pair.slot < 80


def test_canary_sits_on_the_parameter_that_travels_least(task, spec):
    model, setting = models.linear(task), spec()
    x = torch.cat([torch.tensor(task.x_train), torch.ones(80, 1)], dim=1)
    labels = torch.nn.functional.one_hot(torch.tensor(task.y_train), 10)
    theta, travel = torch.zeros(model.shape), torch.zeros(model.shape)
    for _ in range(setting.steps):
        gradients = x[:, :, None] * (torch.softmax(x @ theta, dim=1) - labels)[:, None, :]
        scale = (2.0 / (gradients.flatten(1).norm(dim=1) + 1e-6)).clamp(max=1)
        move = 0.05 * (scale[:, None, None] * gradients).sum(0) / 80
        theta, travel = theta - move, travel + move.abs()
    pair = crafters.gradient(task, model, setting, seed=0)
    assert pair.details["parameter"] == int(travel.argmin()) == int(np.flatnonzero(pair.z)[0])
    assert pair.details["travel"] == pytest.approx(float(travel.min()), rel=1e-3)


def test_path_shows_the_parameters_that_travel_least_middlingly_and_most(task, spec):
    pair = crafters.gradient(task, models.linear(task), spec(steps=250), seed=0)
    travel, path, step = (pair.trace[name] for name in ("travel", "path", "step"))
    assert step[0] == 0
    assert step[-1] == 250
    assert len(step) == len(path) <= 101
    moved = np.abs(np.diff(path, axis=0)).sum(axis=0)
    np.testing.assert_allclose(moved, [travel.min(), np.sort(travel)[(len(travel) - 1) // 2], travel.max()], rtol=0.05)


def test_parameters_that_nothing_moves_are_counted(task, spec):
    x = np.hstack([task.x_train, np.zeros((80, 2), np.float32)])
    pair = crafters.gradient(
        data.from_arrays(x, task.y_train), models.linear(data.from_arrays(x, task.y_train)), spec(), seed=0
    )
    assert pair.details["unmoved"] == 20
    assert pair.details["travel"] == 0


KINDS = ["dirac", "constant", "random"]


@pytest.fixture(scope="module")
def model(task):
    return models.linear(task)


def dense(found, parameters):
    whole = torch.zeros(parameters)
    whole[found.support] = found.z
    return whole


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_have_the_clipping_norm_and_point_opposite_ways(task, model, spec, bank_of, kind):
    canary = crafters.gradient_each_step(task, model, spec(), kind=kind, seed=4)
    assert isinstance(canary, StepCanary)
    bank = bank_of("linear", 2)
    for step in (1, 2, 15):
        found = canary.gradients(bank, step)
        assert float(found.z.norm()) == pytest.approx(2.0, rel=1e-6)
        torch.testing.assert_close(found.z_prime, -found.z)
    fixed = crafters.fixed_gradient(task, model, spec(), kind=kind, seed=4)
    assert np.linalg.norm(fixed.z) == pytest.approx(2.0, rel=1e-6)
    np.testing.assert_array_equal(fixed.z_prime, -fixed.z)
    assert fixed.scenario == f"{kind} fixed"
    assert canary.scenario == f"{kind} anew"
    assert fixed.slot == canary.slot


@pytest.mark.parametrize("kind", ["dirac", "random"])
def test_each_step_draws_anew_and_the_same_seed_draws_the_same(task, model, spec, bank_of, kind):
    one, same, other = (crafters.gradient_each_step(task, model, spec(), kind=kind, seed=seed) for seed in (1, 1, 2))
    bank = bank_of("linear", 2)
    drawn = [dense(one.gradients(bank, step), model.parameters) for step in range(1, 11)]
    assert len(torch.stack(drawn).unique(dim=0)) == 10
    torch.testing.assert_close(dense(same.gradients(bank, 7), model.parameters), drawn[6], rtol=0, atol=0)
    assert not torch.equal(dense(other.gradients(bank, 7), model.parameters), drawn[6])
    assert one.fingerprint == same.fingerprint != other.fingerprint


def test_a_canary_of_a_smaller_model_is_refused(task, spec):
    """A Dirac would fit any larger one."""
    small, large = models.linear(task), models.mlp(task)
    for kind in ("dirac", "random"):
        pair = crafters.gradient_each_step(task, small, spec(), kind=kind, seed=0)
        with pytest.raises(ValueError, match=f"bank must have models of {small.parameters} parameters, got"):
            audit_steps(task, large, pair, spec(), seed=0, progress=False, device="cpu")


def test_diracs_are_uniform_over_the_parameters(task, spec, bank_of):
    model = models.linear(task)
    canary = crafters.gradient_each_step(task, model, spec(), kind="dirac", seed=0)
    bank = bank_of("linear", 2)
    counts = Counter(int(canary.gradients(bank, step).support) * 10 // model.parameters for step in range(2000))
    assert sorted(counts) == list(range(10))
    assert max(abs(count - 200) for count in counts.values()) < 5 * np.sqrt(2000 * 0.1 * 0.9)


def test_random_directions_are_gaussian_and_constants_equal(task, model, spec, bank_of):
    bank = bank_of("linear", 2)
    drawn = crafters.gradient_each_step(task, model, spec(), kind="random", seed=0).gradients(bank, 1)
    assert drawn.support == slice(None)
    assert kstest(drawn.z.numpy() * np.sqrt(model.parameters) / 2.0, "norm").pvalue > 1e-3
    constant = crafters.gradient_each_step(task, model, spec(), kind="constant", seed=0)
    assert len(constant.gradients(bank, 1).z.unique()) == 1
    assert torch.equal(constant.gradients(bank, 1).z, constant.gradients(bank, 2).z)


def test_draws_are_none_of_the_audits(task, model, spec, bank_of):
    canary = crafters.gradient_each_step(task, model, spec(), kind="random", seed=3)
    bank = bank_of("linear", 2)
    state = bank.generator.get_state()
    z = canary.gradients(bank, 1).z.double().numpy()
    assert torch.equal(bank.generator.get_state(), state)
    for purpose in ("data", "audit", "training"):
        other = stream(3, purpose, 1).standard_normal(model.parameters)
        assert abs(np.corrcoef(z, other)[0, 1]) < 5 / np.sqrt(model.parameters)


def test_against_nothing_empties_the_other_world(task, model, spec, bank_of):
    canary = crafters.gradient_each_step(task, model, spec(), kind="random", seed=0)
    bank = bank_of("linear", 2)
    alone = canary.against_nothing(adjacency="add_remove")
    assert alone.adjacency == "add_remove"
    assert alone.gradients(bank, 3).z_prime is None
    torch.testing.assert_close(alone.gradients(bank, 3).z, canary.gradients(bank, 3).z)
    assert alone.fingerprint != canary.fingerprint
    assert canary.against_nothing(adjacency="zero_out").fingerprint != alone.fingerprint
    with pytest.raises(ValueError, match="adjacency must be one of 'add_remove', 'zero_out', got 'substitute'"):
        canary.against_nothing(adjacency="substitute")


def test_fingerprint_changes_with_all_that_determines_the_canary(task, model, spec):
    canary = crafters.gradient_each_step(task, model, spec(), kind="dirac", seed=0)
    changes = {"kind": "random", "seed": 1, "parameters": 3, "max_grad_norm": 1.0, "slot": 80, "task": "another"}
    assert len({canary.fingerprint, *(replace(canary, **{k: v}).fingerprint for k, v in changes.items())}) == 7


def test_fixed_dirac_says_where_it_is(task, model, spec):
    pair = crafters.fixed_gradient(task, model, spec(), kind="dirac", seed=2)
    assert np.flatnonzero(pair.z).tolist() == [pair.details["parameter"]]
