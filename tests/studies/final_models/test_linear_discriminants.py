"""Linear distinguishers: against naive formulas, scikit-learn, and the limits of their ridge."""

import numpy as np
import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

import dpsub
from dpsub import models
from studies.final_models import linear_discriminants
from studies.final_models.linear_discriminants import LinearDiscriminant

FEATURES, CLASSES = 3, 4


@pytest.fixture(scope="module")
def model():
    labels = np.arange(8) % CLASSES
    return models.linear(dpsub.data.from_arrays(np.random.default_rng(0).random((8, FEATURES)), labels, name="small"))


def trained(runs, model, seed=0, apart=1.0):
    """Gaussian weights, correlated, with means that differ in all coordinates; the bits of unequal counts."""
    rng = np.random.default_rng(seed)
    d = model.parameters
    mix = np.random.default_rng(7).normal(size=(d, d)) / np.sqrt(d) + np.eye(d)
    bits = (rng.random(runs) < 0.4).astype(np.int8)
    means = np.where(bits[:, None] == 0, apart, 0.0) * np.linspace(-1, 1, d)
    return (rng.normal(size=(runs, d)) @ mix.T + means).astype(np.float32), bits, mix @ mix.T


def naive(features, bits, ridge):
    features = features.astype(np.float64)
    means = [features[bits == bit].mean(0) for bit in (0, 1)]
    residuals = np.concatenate([features[bits == bit] - means[bit] for bit in (0, 1)])
    s = residuals.T @ residuals / (len(features) - 2)
    d = len(s)
    return np.linalg.solve((1 - ridge) * s + ridge * np.trace(s) / d * np.eye(d), means[0] - means[1])


def same_direction(found, expected, tolerance=1e-4):
    unit = [np.asarray(v, np.float64) / np.linalg.norm(v) for v in (found, expected)]
    return np.linalg.norm(unit[0] - unit[1]) < tolerance


@pytest.mark.parametrize("runs", [8, 15, 17, 60])
@pytest.mark.parametrize("ridge", [1e-3, 0.1, 0.9])
def test_the_discriminant_is_the_naive_one_with_fewer_models_than_parameters_too(model, runs, ridge):
    weights, bits, _ = trained(runs, model, seed=runs)
    scorer = LinearDiscriminant(ridge).learn(model, weights, bits)
    assert same_direction(scorer.direction, naive(weights, bits, ridge), 1e-3)


def test_the_discriminant_is_that_of_scikit_learn(model):
    weights, bits, _ = trained(400, model)
    for ridge in (0.0, 0.2):
        other = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=ridge).fit(weights.astype(np.float64), 1 - bits)
        assert same_direction(LinearDiscriminant(ridge).learn(model, weights, bits).direction, other.coef_[0])


def test_a_ridge_of_one_is_the_difference_of_the_means(model):
    weights, bits, _ = trained(100, model)
    matched = LinearDiscriminant(1.0).learn(model, weights, bits)
    assert same_direction(matched.direction, weights[bits == 0].mean(0) - weights[bits == 1].mean(0))
    assert same_direction(LinearDiscriminant(1 - 1e-9).learn(model, weights, bits).direction, matched.direction)


def test_the_discriminant_comes_near_the_mahalanobis_distance_and_the_matched_filter_does_not(model):
    weights, bits, covariance = trained(20_000, model)
    judged, worlds, _ = trained(20_000, model, seed=1)
    means = np.linspace(-1, 1, model.parameters)
    best = np.sqrt(means @ np.linalg.solve(covariance, means))
    matched = means @ means / np.sqrt(means @ covariance @ means)
    for by, expected in ((LinearDiscriminant(0.0), best), (LinearDiscriminant(1.0), matched)):
        scores = by.learn(model, weights, bits).scores(model, judged)
        assert scores.dtype == np.float32
        apart = scores[worlds == 0].mean() - scores[worlds == 1].mean()
        assert apart / scores[worlds == 1].std() == pytest.approx(expected, rel=0.04)  # standard error 0.01 to 0.02
        assert scores[worlds == 1].std() == pytest.approx(1, rel=0.03)
    assert matched < 0.8 * best


def test_exchanged_worlds_change_the_sign_and_nothing_else(model):
    weights, bits, _ = trained(50, model)
    for by in (LinearDiscriminant(1.0), LinearDiscriminant(), LinearDiscriminant(1e-3, np.eye(FEATURES))):
        one, other = (by.learn(model, weights, b).scores(model, weights) for b in (bits, 1 - bits))
        assert np.allclose(one, -other, atol=1e-4)


def test_with_probes_it_is_the_discriminant_of_their_logits(model):
    weights, bits, _ = trained(300, model)
    records = np.random.default_rng(3).random((5, FEATURES)).astype(np.float32)
    scorer = LinearDiscriminant(0.1, records).learn(model, weights, bits)
    by_hand = np.stack([model.module(row)(torch.tensor(records)).detach().numpy().ravel() for row in weights])
    assert same_direction(scorer.direction, naive(by_hand, bits, 0.1), 1e-3)
    assert np.allclose(scorer.scores(model, weights), by_hand @ scorer.direction, atol=1e-4)


def test_sums_in_parts_are_the_whole_sums(model, monkeypatch):
    weights, bits, _ = trained(90, model)
    whole = LinearDiscriminant().learn(model, weights, bits).direction
    monkeypatch.setattr(linear_discriminants, "AT_ONCE", 7 * model.parameters)
    assert np.allclose(LinearDiscriminant().learn(model, weights, bits).direction, whole, rtol=1e-5)


def test_held_out_they_find_the_worlds_of_an_audit_and_nothing_where_there_is_nothing(model):
    task = dpsub.data.digits(n_train=60)
    head, spec = models.linear(task), dpsub.DPSGD(4.0, 1.0, 1.0, 10, 0.1)
    pair = dpsub.crafters.mislabeled(task, head, spec, seed=0)
    audited = dpsub.audit(task, head, pair, spec, runs=2000, metrics=("weights",), device="cpu", progress=False)
    probes = np.stack([pair.z.x, pair.z_prime.x])
    for by in (LinearDiscriminant(1.0), LinearDiscriminant(), LinearDiscriminant(1e-3, probes)):
        found = dpsub.distinguish(audited, head, by, progress=False)
        assert found.attrs["distinguisher"] == repr(by)
        apart = [found.score.values[found.bit.values == bit] for bit in (0, 1)]
        assert apart[0].mean() - apart[1].mean() > 0.3 * apart[1].std()
        coin = audited.assign(bit=("run", np.random.default_rng(0).integers(0, 2, 2000, dtype=np.int8)))
        lost = dpsub.distinguish(coin, head, by, progress=False)
        apart = [lost.score.values[lost.bit.values == bit] for bit in (0, 1)]
        assert abs(apart[0].mean() - apart[1].mean()) < 4 * apart[1].std() * np.sqrt(2 / 500)


def test_reprs_tell_distinguishers_apart():
    for by in (LinearDiscriminant(), LinearDiscriminant(0.25)):
        assert repr(eval(repr(by), vars(linear_discriminants))) == repr(by)
    eye = np.eye(3)
    several = [LinearDiscriminant(), LinearDiscriminant(0.5)]
    several += [LinearDiscriminant(probes=one) for one in (eye, eye + 1e-6, eye[:2])] + [LinearDiscriminant(0.5, eye)]
    assert len({repr(by) for by in several}) == len(several)
    assert repr(LinearDiscriminant(probes=eye)) == repr(several[2])
