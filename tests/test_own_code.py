"""What the book says of the code in notebooks/own_code."""

import importlib.util
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.stats import gamma, kstest

from dpsub import audit_training

OWN = Path(__file__).parent.parent / "notebooks/own_code"
LAMBDA, N = 0.01, 60


def imported(name):
    spec = importlib.util.spec_from_file_location(f"own_code_{name}", OWN / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


logistic = imported("private_logistic")


def on_sphere(rng, *shape):
    x = rng.normal(size=shape)
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def test_the_minimum_is_that_of_another_solver():
    rng = np.random.default_rng(0)
    v = on_sphere(rng, N, 3)
    found = minimize(
        lambda w: np.logaddexp(0, -v @ w).mean() + LAMBDA / 2 * w @ w,
        np.zeros(3),
        method="BFGS",
        options={"gtol": 1e-9},
    )
    np.testing.assert_allclose(logistic.minimum(v, LAMBDA), found.x, atol=1e-6)


def test_no_substitution_moves_the_minimum_further_than_the_sensitivity():
    rng = np.random.default_rng(1)
    make = partial(logistic.PrivateLogisticRegression, 1.0, LAMBDA, 0), partial(logistic.HalfTheNoise, 1.0, LAMBDA, 0)
    of_records, of_labels = (one().sensitivity(N) for one in make)
    assert (of_records, of_labels) == (2 / (N * LAMBDA), 1 / (N * LAMBDA))
    furthest = {"records": 0.0, "labels": 0.0}
    for spread in (0.05, 1.0):
        others = spread * on_sphere(rng, N - 1, 2) + (1 - spread) * np.array([1.0, 0.0])
        for z, other in on_sphere(rng, 300, 2, 2):
            for kind, pair in (("records", (z, other)), ("labels", (z, -z))):
                one, two = (logistic.minimum(np.vstack([others, row]), LAMBDA) for row in pair)
                furthest[kind] = max(furthest[kind], float(np.linalg.norm(one - two)))
    assert of_labels < furthest["records"] <= of_records
    assert 0.7 * of_labels < furthest["labels"] <= of_labels


def test_noise_has_a_gamma_length_and_a_uniform_direction():
    rng = np.random.default_rng(2)
    x, y = on_sphere(rng, N, 2), rng.choice([-1, 1], N)
    fitted = [logistic.PrivateLogisticRegression(0.5, LAMBDA, seed).fit(x, y) for seed in range(2000)]
    noise = np.array([one.coef_ - one.solution_ for one in fitted])
    scale = 2 / (N * LAMBDA) / 0.5
    assert kstest(np.linalg.norm(noise, axis=1), gamma(2, scale=scale).cdf).pvalue > 1e-3
    assert kstest(np.arctan2(*noise.T), "uniform", args=(-np.pi, 2 * np.pi)).pvalue > 1e-3
    probabilities = fitted[0].predict_proba(x)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)
    assert ((x @ fitted[0].coef_ > 0) == (probabilities[:, 1] > 0.5)).all()


def test_rows_that_are_too_long_are_refused():
    with pytest.raises(ValueError, match="rows must have a norm of at most 1"):
        logistic.PrivateLogisticRegression(1.0, LAMBDA, 0).fit(np.ones((4, 2)), np.ones(4))


def test_the_score_is_the_logarithm_of_the_ratio_of_densities():
    rng = np.random.default_rng(3)
    x, y, pair = on_sphere(rng, N - 1, 2), rng.choice([-1, 1], N - 1), [(row, 1) for row in on_sphere(rng, 2, 2)]
    solutions = logistic.minima(x, y, pair, LAMBDA)
    make = partial(logistic.PrivateLogisticRegression, 2.0, LAMBDA)
    for bit in (0, 1):
        score = logistic.attacked(bit, 5, make=make, x=x, y=y, pair=pair, solutions=solutions)
        model = make(seed=5).fit(np.vstack([x, pair[bit][0]]), np.append(y, 1))
        np.testing.assert_allclose(model.solution_, solutions[bit])
        log_densities = [-2.0 * np.linalg.norm(model.coef_ - w) / model.sensitivity(N) for w in solutions]
        assert 2.0 * score / model.sensitivity(N) == pytest.approx(log_densities[0] - log_densities[1])


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_an_opacus_training_follows_from_its_seed_alone():
    train = partial(imported("opacus_digits").train, n_train=20, noise_multiplier=1.0, batch_size=10, epochs=1)
    options = {"runs": 6, "adjacency": "substitute", "name": "digits", "progress": False}
    found = audit_training(train, **options)
    assert found.equals(audit_training(train, **options))
    assert len(np.unique(found.score)) == 6
