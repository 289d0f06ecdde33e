"""What the page on label privacy says of its mechanisms."""

from functools import partial
from itertools import product

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax
from scipy.stats import binom, chisquare, laplace, norm

import dpsub
from dpsub.accounting import gdp_mu
from dpsub.estimators import epsilon_lower_bound
from studies.label_privacy import mechanisms as labels
from studies.label_privacy.mechanisms import Alibi, DrawnAnew, RandomizedResponse

K = 4


def transition(epsilon):
    """The law of a released label (columns) for each true label (rows)."""
    odds = np.exp(epsilon)
    return (np.ones((K, K)) + np.eye(K) * (odds - 1)) / (odds + K - 1)


@pytest.mark.parametrize("epsilon", [0.3, 2.0])
def test_a_label_is_released_by_the_law_of_randomised_response(epsilon):
    mechanism = RandomizedResponse(epsilon, K)
    released = mechanism.release(np.full(40_000, 2), np.random.default_rng(0))
    law = transition(epsilon)
    assert mechanism.kept == pytest.approx(law[2, 2])
    assert law.max() / law.min() == pytest.approx(np.exp(epsilon))
    assert chisquare(np.bincount(released, minlength=K), 40_000 * law[2]).pvalue > 0.001


def test_evidence_is_bayes_with_every_prior():
    rng = np.random.default_rng(1)
    prior = rng.dirichlet(np.ones(K))
    y = rng.integers(0, K, 50)
    response, alibi = RandomizedResponse(1.5, K), Alibi(1.5, K)
    released, code = response.release(y, rng), alibi.release(y, rng)
    density = np.array([[laplace.pdf(one - np.eye(K)[c], scale=2 / 1.5).prod() for c in range(K)] for one in code])
    for evidence, likelihood in (
        (response.evidence(released), transition(1.5)[:, released].T),
        (alibi.evidence(code), density),
    ):
        naive = prior * likelihood
        naive /= naive.sum(1, keepdims=True)
        np.testing.assert_allclose(softmax(np.log(prior) + evidence, axis=1), naive, rtol=1e-9)


@pytest.mark.parametrize("kind", [RandomizedResponse, Alibi])
def test_no_release_says_more_than_epsilon_and_some_say_all(kind):
    mechanism = kind(0.8, K)
    y = np.zeros(5_000, int)
    evidence = mechanism.evidence(mechanism.release(y, np.random.default_rng(2)))
    assert np.ptp(evidence, axis=1).max() == pytest.approx(0.8)
    anew = DrawnAnew(mechanism, 3)
    together = anew.evidence(anew.release(y, np.random.default_rng(3))).sum(0)
    assert np.ptp(together, axis=1).max() == pytest.approx(3 * 0.8)


def test_two_votes_of_a_teacher_are_at_most_the_root_of_two_a_query_apart():
    queries, classes = 3, 3
    codes = [labels.one_hot(np.array(answers), classes) for answers in product(range(classes), repeat=queries)]
    furthest = max(np.linalg.norm(one - other) for one in codes for other in codes)
    assert furthest == pytest.approx(np.sqrt(2 * queries))


def test_the_teacher_of_one_record_votes_for_its_label_and_the_votes_are_gaussian_with_the_stated_mu():
    rng = np.random.default_rng(4)
    x, y, queries = rng.random((20, 5)), rng.integers(0, K, 20), rng.random((8, 5))
    others = labels.votes(x, y, queries, 4, K)
    assert (others.sum(1) == 4).all()
    worlds = np.array([others + labels.votes(x[:1], np.array([c]), queries, 1, K) for c in (1, 3)])
    assert (worlds[0] - worlds[1] == labels.one_hot(1, K) - labels.one_hot(3, K)).all()
    mu = gdp_mu(2.0, 1e-5)
    attack = partial(labels.attacked_votes, worlds=worlds, sigma=np.sqrt(2 * 8) / mu)
    scores = np.array([[attack(bit, 2 * seed + bit) for seed in range(4_000)] for bit in (0, 1)])
    scores /= np.sqrt(2 * 8) * np.sqrt(2 * 8) / mu  # by the standard deviation of their noise
    apart, error = scores[0].mean() - scores[1].mean(), np.sqrt(2 / 4_000)
    assert abs(apart - mu) < norm.isf(0.001) * error
    assert scores.std(axis=1) == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("kind", [RandomizedResponse, Alibi])
def test_training_minimises_the_corrected_loss(kind):
    rng = np.random.default_rng(5)
    x, y = rng.normal(size=(60, 2)), rng.integers(0, K, 60)
    mechanism = kind(2.0, K)
    evidence = mechanism.evidence(mechanism.release(y, rng))
    ones = np.column_stack([x, np.ones(60)])

    def loss(flat):
        weights = flat.reshape(K, 3)
        told = log_softmax(ones @ weights.T, axis=1) + evidence
        return -np.logaddexp.reduce(told, axis=1).sum() + (flat**2).sum() / 2

    losses = [loss(labels.fit(x, evidence, rounds=rounds).ravel().astype(float)) for rounds in (1, 2, 5, 20, 300)]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] == pytest.approx(minimize(loss, np.zeros(3 * K)).fun, abs=1e-3)


def test_attacks_see_the_released_label_or_the_model_alone():
    rng = np.random.default_rng(6)
    x, y = rng.random((30, 3)), rng.integers(0, K, 29)
    known = {"mechanism": RandomizedResponse(50.0, K), "x": x, "y": y, "pair": (1, 3)}
    assert [labels.attacked(bit, 7, **known) for bit in (0, 1)] == pytest.approx([50, -50])
    by_model = [labels.attacked(bit, 7, asked=x[-1], **known) for bit in (0, 1)]
    assert by_model[0] > by_model[1]
    models = [labels.fit(x, labels.SURE * labels.one_hot(np.append(y, own), K)) for own in (1, 3)]
    outputs = [labels.outputs(model, x[-1]) for model in models]
    assert by_model == pytest.approx([told[1] - told[3] for told in outputs], abs=1e-4)


def test_bounds_from_released_labels_keep_their_promise_and_find_noise_drawn_anew():
    epsilon, audits, runs = 1.0, 200, 600
    rng = np.random.default_rng(8)
    bits = rng.integers(0, 2, runs)
    mechanism, asked = RandomizedResponse(epsilon, K), {"delta": 1e-5, "claim": "dp", "rule": epsilon / 2}

    def bound(draws):
        evidence = sum(mechanism.evidence(mechanism.release(bits, rng)) for _ in range(draws))
        return epsilon_lower_bound(evidence[:, 0] - evidence[:, 1], bits, **asked).epsilon

    wrong = sum(bound(draws=1) > epsilon for _ in range(audits))
    assert wrong <= binom.ppf(0.999, audits, 0.05)
    assert bound(draws=10) > 2 * epsilon


def test_the_audit_of_a_release_comes_near_its_epsilon():
    attack = partial(labels.attacked, mechanism=Alibi(2.0, K), x=None, y=np.array([], int), pair=(0, 1))
    audited = dpsub.audit_training(attack, runs=4_000, adjacency="substitute", name="ALIBI", progress=False)
    [bound] = dpsub.bound(audited, delta=1e-5, claim="dp")
    assert 1.5 < bound.epsilon < 2


def test_the_mark_is_a_column_of_one_record():
    task = labels.digits_with_a_mark(50, 0)
    assert (task.x_train[:-1, -1] == 0).all()
    assert np.flatnonzero(task.x_train[-1]).tolist() == [task.x_train.shape[1] - 1]
    assert not task.x_aux[:, -1].any()
    assert not task.x_test[:, -1].any()
