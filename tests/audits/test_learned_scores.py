"""Learned scores: twins, a naive reimplementation, stores, power, and the promise of the bound."""

import sqlite3
from contextlib import closing
from dataclasses import replace
from threading import Event

import numpy as np
import pytest
import torch

from dpsub import DPSGD, CanaryPair, audit, audits, crafters, data, estimators, models
from dpsub._core.random_streams import torch_seed
from dpsub.audits import learned_scores, many_runs
from dpsub.audits.executors import Here
from dpsub.audits.learned_scores import Twins, discriminant, learned
from dpsub.audits.plans import Shard
from dpsub.trainers import assemble, devices

CPU = torch.device("cpu")
LEARNED = {"score": "learned", "learning_runs": 40}
DIGITS = data.digits(n_train=30)


def plan(*arguments, **options):
    """The plan of an audit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(many_runs, "carried_out", lambda plan, **options: plan)
        return audit(*arguments, **{"runs": 8, "observe_every": 2, "seed": 3, **LEARNED, **options})


def learn(plan):
    return learned(plan, Here("cpu"), progress=False)


@pytest.fixture(scope="module")
def records(task, model, spec):
    return crafters.mislabeled(task, model, spec, seed=0)


@pytest.fixture
def forbid_learning(monkeypatch):
    return lambda: monkeypatch.setattr(learned_scores, "assemble", None)


@pytest.mark.parametrize("adjacency", ["substitute", "add_remove"])
@pytest.mark.parametrize("sample_rate", [1.0, 0.5])
def test_twins_differ_by_the_canary_at_the_steps_that_sample_it_and_by_nothing_else(
    task, model, canary, spec, adjacency, sample_rate
):
    pair = canary if adjacency == "substitute" else canary.against_nothing(adjacency=adjacency)
    spec = replace(spec, sample_rate=sample_rate, learning_rate=1e-4, steps=9)
    pairs = [Shard(number, 0, range(number, number + 1), number, number + 1) for number in range(50)]
    twins = Twins(plan(task, model, pair, spec, observe_every=1), pairs, None)
    apart = np.stack([twins.run(shard, CPU, Event(), lambda units: None) for shard in pairs])
    assert apart.shape == (50, 9, model.parameters)
    step = -spec.learning_rate * (pair.z - pair.z_prime) / (sample_rate * len(task.y_train))
    times = apart @ step / (step @ step)
    np.testing.assert_allclose(apart, times[..., None] * step, atol=1e-3 * np.abs(step).max())
    np.testing.assert_allclose(times, times.round(), atol=1e-3)
    sampled = np.diff(times.round(), prepend=0)
    assert np.isin(sampled, (0, 1) if sample_rate < 1 else 1).all()
    assert sampled.sum(axis=1).mean() == pytest.approx(spec.steps * sample_rate, abs=4 * 1.5 / np.sqrt(50))


@pytest.mark.parametrize("kind", ["records", "canary", "nothing"])
def test_what_is_learned_is_what_a_naive_reimplementation_learns(request, task, spec, kind):
    model = models.mlp(task, (3,))
    craft = crafters.gradient if kind == "canary" else crafters.mislabeled
    pair = craft(task, model, spec, seed=0)
    if kind == "nothing":
        pair = pair.against_nothing(adjacency="zero_out")
    spec = replace(spec, sample_rate=0.7)
    asked = plan(task, model, pair, spec, learning_runs=300)
    found = learn(asked)
    assert found.directions.shape == (1, 2, model.parameters)
    thetas, scores = [], []  # by world, then by half: (runs, steps, …)
    for bit in (0, 1):
        halves = [[], []]
        for half, block, runs in ((0, 0, 128), (0, 1, 22), (1, 2, 128), (1, 3, 22)):
            source = torch.Generator().manual_seed(torch_seed(3, "learning", block))
            bank = assemble(model, task, spec, bits=np.full(runs, bit), generator=source, canary=pair)
            seen = [
                (model.flat(bank.theta - bank.theta_0 * (kind == "canary")).double().numpy().copy(), bank.scores())
                for step in bank.train()
                if step in (2, 4)
            ]
            halves[half].append(seen)
        thetas.append([[np.concatenate([b[i][0] for b in half]) for i in (0, 1)] for half in halves])
        scores.append([np.concatenate([b[i][1] for b in halves[1]]) for i in (0, 1)])
    for i in (0, 1):
        direction = (thetas[0][0][i] - thetas[1][0][i]).mean(0)
        features = [np.c_[scores[bit][i], thetas[bit][1][i] @ direction].astype(np.float64) for bit in (0, 1)]
        covariance = (np.cov(features[0].T) + np.cov(features[1].T)) / 2
        ridge = learned_scores.RIDGE * np.diag(np.diag(covariance))
        w = np.linalg.solve(covariance + ridge, (features[0] - features[1]).mean(0))
        w /= np.sqrt(w @ covariance @ w)
        assert found.coefficients[0, i] == pytest.approx(w[0], rel=1e-3)
        assert np.allclose(found.directions[0, i], w[1] * direction, atol=2e-3 * np.abs(w[1] * direction).max())


@pytest.mark.parametrize("kind", ["records", "canary"])
def test_scores_are_the_canarys_and_the_parameters_along_the_direction(request, task, model, spec, kind):
    pair = request.getfixturevalue(kind)
    options = {"runs": 200, "seed": 3, "observe_every": 2, "device": "cpu", "progress": False}
    own = audit(task, model, pair, spec, coordinates="all", **options)
    found = audit(task, model, pair, spec, metrics=("weights",), **LEARNED, **options)
    learnt = learn(plan(task, model, pair, spec))
    assert found.attrs["learned_fingerprint"] == learnt.fingerprint
    assert (found.attrs["score"], found.attrs["learning_runs"]) == ("learned", 40)
    assert "score" not in own.attrs
    assert found.bit.equals(own.bit)
    along = found.weights.values @ learnt.directions[0, -1]
    expected = learnt.coefficients[0, -1] * own.score[:, -1] + along
    assert np.allclose(found.score[:, -1], expected, atol=1e-4)
    within = np.mean([found.score.values[found.bit.values == bit].std(axis=0) for bit in (0, 1)], axis=0)
    assert np.allclose(within, 1, atol=0.35)


def test_the_discriminant_of_twins_is_fishers_and_takes_features_that_are_equal_or_constant():
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(4000, 2)) @ [[1.0, 0.6], [0.0, 0.8]]
    features = np.stack([noise + np.array([1.0, 0.2]), noise])
    expected = np.linalg.solve([[1, 0.6], [0.6, 1]], [1.0, 0.2])
    found = discriminant(features)
    assert np.allclose(found / np.linalg.norm(found), expected / np.linalg.norm(expected), atol=0.05)
    assert np.std(features[0] @ found) == pytest.approx(1, rel=1e-3)
    same = discriminant(features[..., [0, 0]])
    assert same[0] == pytest.approx(same[1]) == pytest.approx(0.5 / features[0][:, 0].std(ddof=1), rel=1e-3)
    assert discriminant(features * [1, 0])[1] == 0
    assert discriminant(np.stack([noise, noise])).tolist() == [1, 0]
    assert discriminant(np.zeros((2, 9, 2))).tolist() == [1, 0]


def test_the_learned_score_is_better_where_the_canarys_weighs_its_records_wrongly():
    """Both records are clipped to one norm, but z′ is ten times as long: its logit drowns the other's."""
    rng = np.random.default_rng(0)
    task = data.from_arrays(rng.normal(size=(20, 4)), np.arange(20) % 3, name="short and long")
    short, long = np.eye(4, dtype=np.float32)[0], 10 * np.eye(4, dtype=np.float32)[1]
    pair = CanaryPair((short, 0), (long, 1), 0, "S4")
    spec = DPSGD(noise_multiplier=5.0, max_grad_norm=0.5, sample_rate=1.0, steps=20, learning_rate=0.01)
    apart = {}
    for score in audits.learned_scores.SCORES:
        found = audit(task, models.linear(task), pair, spec, runs=4000, observe_every=20, score=score, progress=False)
        worlds = [found.score.values[found.bit.values == bit, -1] for bit in (0, 1)]
        apart[score] = (worlds[0].mean() - worlds[1].mean()) / np.std(worlds[1])
    # The canary's score has d' = √20/σ · |x̃ of both| … ≈ 1; the best look has √2 of that.
    assert apart["learned"] > 1.2 * apart["canary"] > 0.8


def test_an_interrupted_audit_goes_on_with_what_it_learned_first(
    run, records, killed_after, forbid_learning, forbid_training, store
):
    options = {"canary": records, **LEARNED}
    expected = run(store=None, **options)
    killed_after(lambda: run(**options), 2)
    assert 0 < audits.status(store).stored < 300
    forbid_learning()
    found = run(**options)
    forbid_training()
    assert found.equals(expected)
    assert found.identical(run(**options))
    assert found.identical(audits.load(store))


def changed(store, statement):
    with closing(sqlite3.connect(store)) as database, database:
        assert database.execute(statement).rowcount == 1


@pytest.mark.parametrize("name", [learned_scores.COEFFICIENTS, learned_scores.DIRECTIONS])
def test_damage_to_what_was_learned_is_named(run, store, name):
    run(**LEARNED)
    changed(store, f"UPDATE arrays SET data = zeroblob(length(data)) WHERE name = '{name}'")
    with pytest.raises(ValueError, match=f"store is damaged.*{name}"):
        run(**LEARNED)


def test_audits_with_another_score_are_refused(run, store):
    run(**LEARNED)
    for options, told in (
        ({}, r"score: stored 'learned', asked for nothing"),
        (LEARNED | {"learning_runs": 41}, "learning_runs: stored 40, asked for 41"),
    ):
        with pytest.raises(ValueError, match=told):
            run(**options)


def test_each_repeat_learns_by_itself(run):
    several = run(store=None, repeats=2, **LEARNED)
    alone = run(store=None, seed=audits.repeat_seeds(3, 2)[1], **LEARNED)
    assert several.isel(repeat=1, drop=True).equals(alone)
    assert several.isel(repeat=0, drop=True).equals(run(store=None, **LEARNED))


def test_a_store_of_repeats_is_read_back(run, forbid_training, forbid_learning):
    found = run(repeats=2, **LEARNED)
    forbid_training()
    forbid_learning()
    assert found.identical(run(repeats=2, **LEARNED))


def test_numbers_do_not_depend_on_threads(run):
    one = run(store=None, score="learned", learning_runs=600)
    torch.set_num_threads(3)
    assert one.equals(run(store=None, score="learned", learning_runs=600))


def test_bad_input_is_refused_before_training(run, records, spec, monkeypatch):
    for score in ("logit", None, 1):
        with pytest.raises(ValueError, match="score must be"):
            run(store=None, score=score)
    with pytest.raises(ValueError, match="learning_runs must be"):
        run(store=None, score="learned", learning_runs=31)
    with pytest.raises(ValueError, match="coordinates must be 'all' or 'auto' for score='learned'"):
        run(store=None, coordinates="span", **LEARNED)
    with pytest.raises(ValueError, match="models to learn from are not finite"):
        run(store=None, spec=replace(spec, learning_rate=1e30), canary=records, **LEARNED)
    monkeypatch.setattr(devices, "free_bytes", lambda device: 2**20)
    asked = plan(DIGITS, models.linear(DIGITS), records, spec, observe_every=1)
    with pytest.raises(ValueError, match="score='learned' must fit the memory: twins, and the directions of 4"):
        learn(asked)


def nothing_to_find(seed):
    """An audit of two worlds that differ by a rounding error, and its bound."""
    rng = np.random.default_rng(0)
    task = data.from_arrays(rng.normal(size=(8, 3)), np.arange(8) % 2, name="nothing")
    x = task.x_train[0]
    pair = CanaryPair((x, 0), (np.nextafter(x, np.float32(9)), 0), 0, "S5")
    spec = DPSGD(noise_multiplier=5.0, max_grad_norm=1.0, sample_rate=1.0, steps=1, learning_rate=0.1)
    found = audit(
        task, models.linear(task), pair, spec, runs=300, seed=seed, score="learned", learning_runs=32, progress=False
    )
    return estimators.epsilon_lower_bound(found.score.values[:, -1], found.bit.values, delta=1e-5)


def test_the_bound_of_a_learned_score_is_valid():
    assert nothing_to_find(0).valid


@pytest.mark.slow
def test_where_there_is_nothing_to_find_nothing_is_found():
    found = [nothing_to_find(seed).epsilon > 0 for seed in range(200)]
    assert sum(found) <= 10 + 2 * np.sqrt(200 * 0.05 * 0.95)  # alpha and two standard errors
