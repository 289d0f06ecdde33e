import numpy as np
import pytest
import torch

from dpsub import DPSGD, CanaryPair, audit, data, models
from dpsub.trainers import assemble


@pytest.mark.parametrize("rows", [0, 2])
def test_a_head_within_the_span_of_its_records_trains_the_same(rows):
    """Injected noise, seen in the smaller coordinates, leads to the same logits and products."""
    rng = np.random.default_rng(0)
    task = data.from_arrays(rng.random((20, 50)), rng.integers(0, 4, 20), num_classes=4)
    model, spec = models.linear(task), DPSGD(0.5, 1.0, 1.0, 6, 0.3)
    vectors = torch.zeros(2, *model.shape)
    vectors[0, :rows, 1], vectors[1, :rows, 2] = 0.7, -0.4
    bank = assemble(model, task, spec, bits=np.zeros(3, np.int8), generator=torch.Generator())
    small, inputs, moved = model.within_span(bank.inputs, vectors.flatten(1))
    assert inputs.shape == (20, 20 + rows)
    assert small.parameters == (20 + rows) * 4
    torch.testing.assert_close(inputs.norm(dim=1), bank.inputs.norm(dim=1))

    basis = torch.linalg.lstsq(inputs.double(), bank.inputs.double()).solution  # (20 + rows, 51), where rows = 0
    if rows:
        basis = torch.zeros(20 + rows, 51, dtype=torch.float64)
        basis[:rows, :rows] = torch.eye(rows)
        rest = bank.inputs.double().clone()
        rest[:, :rows] = 0
        basis[rows:] = torch.linalg.solve(inputs[:, rows:].double(), rest)
    torch.testing.assert_close(basis @ basis.T, torch.eye(20 + rows, dtype=torch.float64), atol=1e-4, rtol=0)

    theta, noise = torch.zeros(*small.shape, 3), torch.randn(6, *model.shape, 3, generator=bank.generator)
    for step in range(6):
        bank.step(noise=noise[step])
        total = small.clipped_sum(theta, inputs, bank.labels, None, 1.0)
        total += 0.5 * torch.einsum("sd,dkr->skr", basis.float(), noise[step])
        theta -= 0.3 * total / 20
    torch.testing.assert_close(small.logits(theta, inputs), model.logits(bank.theta, bank.inputs), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(moved @ theta.flatten(0, 1), vectors.flatten(1) @ bank.theta.flatten(0, 1))


def test_a_span_that_saves_nothing_is_not_taken(bench_of):
    _, model, _, inputs, _ = bench_of("linear")
    assert model.within_span(inputs, torch.ones(1, model.parameters)) is None
    assert model.within_span(torch.cat([inputs] * 8), torch.zeros(1, model.parameters)) is None


def few_records():
    """Fewer records than features, so that a head trains in their span."""
    rng = np.random.default_rng(0)
    return data.from_arrays(rng.random((6, 30)), rng.integers(0, 3, 6), num_classes=3)


def test_heads_are_told_apart_by_their_start_and_are_what_they_were_without_one():
    model = models.linear(few_records())
    ones, twos = (model.starting_from(np.full(model.parameters, value)) for value in (1, 2))
    assert repr(model) == "Linear(features=30, classes=3)"
    assert len({repr(one) for one in (model, models.Linear(30, 3), ones, twos)}) == 3
    assert (model.initial, ones.initial[:5]) == ("zero", "fixed")
    with pytest.raises(ValueError, match="read-only"):
        ones.theta_0[0] = 3
    with pytest.raises(ValueError, match="features must be >= 0, got -1"):
        models.Linear(-1, 2)


def test_a_start_outside_the_span_is_not_lost():
    """An audit in the coordinates of the span is one in all coordinates."""
    task = few_records()
    model = models.linear(task)
    inputs = model.inputs(torch.tensor(task.x_train))
    assert model.within_span(inputs, torch.zeros(0, model.parameters)) is not None
    started = model.starting_from(np.random.default_rng(1).normal(size=model.parameters))
    assert started.within_span(inputs, torch.zeros(0, model.parameters)) is None
    x, z = task.x_train[2], np.random.default_rng(2).random(30)
    pair, spec = CanaryPair((z, 1), (x, 0), 2, "S5"), DPSGD(0.5, 1.0, 1.0, 4, 0.3)
    options = {"runs": 5, "device": "cpu", "progress": False}
    spanned, whole = (audit(task, started, pair, spec, coordinates=one, **options) for one in ("auto", "all"))
    np.testing.assert_array_equal(spanned.score, whole.score)
    assert abs(spanned.score - audit(task, model, pair, spec, **options).score).max() > 0.1


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("at_once", [2**24, 1])
def test_gathered_batches_sum_to_what_one_product_with_all_records_does(classes, at_once, monkeypatch):
    monkeypatch.setattr("dpsub.models.heads.RECORDS_AT_ONCE", at_once)
    rng = torch.Generator().manual_seed(0)
    model = models.Linear(20, classes)
    inputs, labels = model.inputs(torch.randn(40, 20, generator=rng)), torch.arange(40) % classes
    theta = torch.randn(*model.shape, 5, generator=rng)
    sampled = torch.rand(40, 5, generator=rng) < 0.2
    sampled[:, 3] = False  # an empty batch
    whole, gathered = torch.empty_like(theta), torch.full_like(theta, torch.nan)
    monkeypatch.setattr(models.Linear, "_gathers", lambda *shape: False)
    model.clipped_sum(theta, inputs, labels, sampled, 0.7, out=whole)
    monkeypatch.setattr(models.Linear, "_gathers", lambda *shape: True)
    model.clipped_sum(theta, inputs, labels, sampled, 0.7, out=gathered)
    torch.testing.assert_close(gathered, whole, atol=1e-5, rtol=1e-5)
    assert not gathered[..., 3].any()
    weights = torch.rand(40, 5, generator=rng)  # are for all records
    expected = model.clipped_sum(theta, inputs, labels, weights, 0.7)
    one = sum(model.clipped_sum(theta, *record, None, 0.7) * w for record, w in each(inputs, labels, weights))
    torch.testing.assert_close(expected, one, atol=1e-5, rtol=1e-5)


def each(inputs, labels, weights):
    return [((inputs[i : i + 1], labels[i : i + 1]), weights[i]) for i in range(len(labels))]


@pytest.mark.parametrize("scenario", ["S2", "S4"])
def test_gathering_changes_scores_by_rounding_only(scenario, monkeypatch):
    """The same seed draws the same batches, slots and noise."""
    rng = np.random.default_rng(0)
    task = data.from_arrays(rng.random((300, 400)), rng.integers(0, 10, 300), num_classes=10)
    model, spec = models.linear(task), DPSGD(1.0, 1.0, 0.05, 10, 0.5)
    assert model.prepared(torch.device("cpu"), spec.sample_rate)._gathers(300, 401)
    for of in (model, models.Linear(400, 100)):
        assert not of.prepared(torch.device("cuda"), spec.sample_rate)._gathers(300, 401)
        assert not of.prepared(torch.device("cpu"), 1.0)._gathers(300, 401)
    assert not model.prepared(torch.device("cpu"), 0.5)._gathers(300, 401)
    z = np.zeros(model.parameters, np.float32)
    z[7] = 1
    canary = {"S2": CanaryPair(z, -z, 3, "S2"), "S4": CanaryPair((task.x_train[3], 0), (task.x_train[3], 1), 3, "S4")}
    for coordinates in ("all", "auto"):
        options = {"runs": 20, "coordinates": coordinates, "device": "cpu", "progress": False}
        gathered = audit(task, model, canary[scenario], spec, **options)
        with monkeypatch.context() as whole:
            whole.setattr(models.Linear, "_gathers", lambda *shape: False)
            expected = audit(task, model, canary[scenario], spec, **options)
        assert not np.array_equal(gathered.score, expected.score)
        np.testing.assert_allclose(gathered.score, expected.score, atol=2e-5 * abs(expected.score).max().item())
