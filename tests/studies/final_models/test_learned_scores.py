"""Learned scores: twins, a naive reimplementation, power, and the promise of the bound."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from dpsub import DPSGD, CanaryPair, audit, crafters, data, estimators, models
from dpsub._core.random_streams import torch_seed
from dpsub.trainers import assemble
from studies.final_models import learned_scores
from studies.final_models.learned_scores import LearnedScore, discriminant, learn
from studies.final_models.looks import judged

SPEC = DPSGD(noise_multiplier=10.0, max_grad_norm=2.0, sample_rate=1.0, steps=4, learning_rate=0.01)
HOW = {"seed": 3, "observe_every": 2, "device": "cpu"}
TASK = data.digits(n_train=30)
MODEL = models.linear(TASK)
PAIRS = {
    "canary": crafters.gradient(TASK, MODEL, SPEC, seed=0),
    "records": crafters.mislabeled(TASK, MODEL, SPEC, seed=0),
}


@pytest.mark.parametrize("kind", ["records", "canary", "nothing"])
def test_what_is_learned_is_what_a_naive_reimplementation_learns(kind):
    model = models.mlp(TASK, (3,))
    craft = crafters.gradient if kind == "canary" else crafters.mislabeled
    pair = craft(TASK, model, SPEC, seed=0)
    if kind == "nothing":
        pair = pair.against_nothing(adjacency="zero_out")
    spec = replace(SPEC, sample_rate=0.7)
    found = learn(TASK, model, pair, spec, runs=300, **HOW)
    assert found.directions.shape == (2, model.parameters)
    thetas, scores = [], []  # by world, then by half: (runs, steps, …)
    for bit in (0, 1):
        halves = [[], []]
        for half, block, runs in ((0, 0, 128), (0, 1, 22), (1, 2, 128), (1, 3, 22)):
            source = torch.Generator().manual_seed(torch_seed(3, "learning", block))
            bank = assemble(model, TASK, spec, bits=np.full(runs, bit), generator=source, canary=pair)
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
        assert found.coefficients[i] == pytest.approx(w[0], rel=1e-3)
        assert np.allclose(found.directions[i], w[1] * direction, atol=2e-3 * np.abs(w[1] * direction).max())


@pytest.mark.parametrize("kind", ["records", "canary"])
def test_scores_are_the_canarys_and_the_parameters_along_the_direction(kind):
    pair = PAIRS[kind]
    learned = learn(TASK, MODEL, pair, SPEC, runs=40, **HOW)
    metrics = [LearnedScore(learned), "weights"]
    found = audit(TASK, MODEL, pair, SPEC, runs=200, metrics=metrics, progress=False, **HOW)
    along = found.weights.values @ learned.directions[-1]
    if kind == "canary":  # less the start, which is 0 for a linear head
        assert learned.displacement
    expected = learned.coefficients[-1] * found.score[:, -1] + along
    assert np.allclose(found.learned[:, -1], expected, atol=1e-4)
    within = np.mean([found.learned.values[found.bit.values == bit].std(axis=0) for bit in (0, 1)], axis=0)
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
    found = judged(task, models.linear(task), pair, spec, runs=4000, learning_runs=256, seed=0)
    apart = {}
    for score in ("score", "learned"):
        worlds = [found[score].values[found.bit.values == bit, -1] for bit in (0, 1)]
        apart[score] = (worlds[0].mean() - worlds[1].mean()) / np.std(worlds[1])
    # The canary's score has d' = √20/σ · |x̃ of both| … ≈ 1; the best look has √2 of that.
    assert apart["learned"] > 1.2 * apart["score"] > 0.8


def test_numbers_do_not_depend_on_threads():
    def learned():
        found = learn(TASK, MODEL, PAIRS["records"], SPEC, runs=600, **HOW)
        return found.coefficients, found.directions

    one = learned()
    torch.set_num_threads(3)
    assert all(map(np.array_equal, one, learned()))


def nothing_to_find(seed):
    """An audit of two worlds that differ by a rounding error, and its bound."""
    rng = np.random.default_rng(0)
    task = data.from_arrays(rng.normal(size=(8, 3)), np.arange(8) % 2, name="nothing")
    x = task.x_train[0]
    pair = CanaryPair((x, 0), (np.nextafter(x, np.float32(9)), 0), 0, "S5")
    spec = DPSGD(noise_multiplier=5.0, max_grad_norm=1.0, sample_rate=1.0, steps=1, learning_rate=0.1)
    found = judged(task, models.linear(task), pair, spec, runs=300, learning_runs=32, seed=seed)
    return estimators.epsilon_lower_bound(found.learned.values[:, -1], found.bit.values, delta=1e-5)


def test_the_bound_of_a_learned_score_is_valid():
    assert nothing_to_find(0).valid


@pytest.mark.slow
def test_where_there_is_nothing_to_find_nothing_is_found():
    found = [nothing_to_find(seed).epsilon > 0 for seed in range(200)]
    assert sum(found) <= 10 + 2 * np.sqrt(200 * 0.05 * 0.95)  # alpha and two standard errors
