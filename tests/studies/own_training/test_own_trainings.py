"""Trainings and models as users write them."""

from dataclasses import replace
from functools import partial

import myst_nb
import numpy as np
import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from scipy.optimize import minimize
from scipy.stats import gamma, kstest, norm
from scipy.stats import laplace as laplace_law
from torch.utils.data import TensorDataset

from dpsub import audit_training, data
from dpsub.accounting import gdp_epsilon
from dpsub.estimators import epsilon_lower_bound
from studies import glue
from studies.final_models import learned_at_zero
from studies.own_audits import logistic_audits
from studies.own_training import fine_tuning, hospital
from studies.own_training import private_logistic as logistic
from studies.tight_auditing import formulas as tight

LAMBDA, N = 0.01, 60


@pytest.mark.parametrize("number", [0.1 + 0.2, 1e-17, float("inf"), 512])
def test_a_glued_number_is_that_of_myst_nb(number):
    InteractiveShell.instance()  # without one, display prints
    with capture_output(stdout=False, stderr=False) as ours:
        glue.glue("bound", number)
    with capture_output(stdout=False, stderr=False) as theirs:
        myst_nb.glue("bound", number, display=False)
    [ours], [theirs] = ours.outputs, theirs.outputs
    assert (ours.data, ours.metadata) == (theirs.data, theirs.metadata)


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


def test_the_pair_of_an_audit_is_as_far_apart_as_found_and_labels_need_half_the_noise():
    x, y = logistic_audits.tumours(80, 0)
    assert len(x) == len(y) == 79
    assert np.linalg.norm(x, axis=1).max() <= 1 + 1e-12
    pairs = logistic_audits.pairs_of(x, y, LAMBDA)
    apart = {what: logistic_audits.distance(x, y, pair, LAMBDA) for what, pair in pairs.items()}
    assert apart["labels"] <= 1 / (80 * LAMBDA) < apart["records"] <= 2 / (80 * LAMBDA)
    found = logistic_audits.audited(x, y, pairs, epsilon=2.0, strength=LAMBDA, runs=20)
    for what in pairs:
        one, half = (found[how, what][1] for how in logistic_audits.NOISE)
        assert one == pytest.approx(apart[what] * 80 * LAMBDA)  # ε times the distance over the sensitivity
        assert half == pytest.approx(2 * one)
        assert found["as proved", what][0].sizes["run"] == 20


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_an_opacus_training_follows_from_its_seed_alone():
    train = partial(hospital.train, n_train=20, noise_multiplier=1.0, batch_size=10, epochs=1)
    options = {"runs": 6, "adjacency": "substitute", "name": "hospital", "progress": False}
    found = audit_training(train, **options)
    assert found.equals(audit_training(train, **options))
    assert len(np.unique(found.score)) == 6


RATES = np.linspace(0.001, 0.999, 57)


def test_the_laplace_mechanism_has_the_tradeoff_function_of_its_two_distributions():
    thresholds = np.linspace(-3, 4, 4001)
    one, other = laplace_law(0, 1 / 1.3), laplace_law(1, 1 / 1.3)
    assert (tight.laplace(one.sf(thresholds), 1.3) <= other.cdf(thresholds) + 1e-12).all()
    np.testing.assert_allclose(tight.laplace(one.sf(thresholds), 1.3), other.cdf(thresholds), atol=1e-12)


def test_rates_show_what_an_audit_with_a_fixed_threshold_does():
    rng = np.random.default_rng(4)
    bits = np.repeat([0, 1], [300, 300])
    scores = rng.normal(size=600) + 1.5 * (bits == 0)
    for threshold in (-0.5, 0.6, 1.7, 9.0):
        missed, taken = (scores[:300] <= threshold).sum(), (scores[300:] > threshold).sum()
        fpr, fnr = tight.upper(taken, 300, 0.025), tight.upper(missed, 300, 0.025)
        options = {"delta": 1e-5, "rule": threshold}
        gdp, dp = (epsilon_lower_bound(scores, bits, claim=claim, **options) for claim in ("gdp", "dp"))
        assert gdp.mu == pytest.approx(float(tight.mu_gdp(fpr, fnr)) if fnr < 1 else 0.0)
        assert dp.epsilon == pytest.approx(float(tight.epsilon_dp(fpr, fnr, 1e-5)))


@pytest.mark.parametrize("sigma", [0.3, 1.0, 4.0])
def test_the_best_threshold_shows_the_whole_epsilon_and_others_less(sigma):
    truth = gdp_epsilon(1 / sigma, 1e-5)
    best = tight.best_threshold(sigma, 1e-5)
    for threshold, shown in ((best - 0.05, "less"), (best, "all"), (best + 0.05, "less")):
        rates = norm.sf(threshold / sigma), norm.cdf((threshold - 1) / sigma)
        found = tight.epsilon_dp(*rates, 1e-5)
        assert found == pytest.approx(truth, rel=1e-6) if shown == "all" else found < truth * (1 - 1e-6)
    assert (2 * best - 1) / (2 * sigma**2) == pytest.approx(truth, rel=1e-6)  # equation 22


def test_lines_lie_below_the_tradeoff_function_and_more_of_them_come_nearer():
    exact = norm.cdf(norm.isf(RATES) - 1.0)
    gaps = []
    for count in (3, 10, 50):
        epsilons, deltas = tight.lines(lambda delta: gdp_epsilon(1.0, delta), count, 1e-5)
        below = tight.from_lines(RATES, epsilons, deltas)
        gaps.append((exact - below).max())
        assert (below <= exact + 1e-12).all()
        printed = tight.from_lines(RATES, epsilons, deltas, combine=np.min)
        assert (printed <= below).all()
        assert printed.max() == 0  # the line of δ = 1 − 1e-5 says nothing
        in_exponent = np.exp(-epsilons * (1 - deltas - RATES[:, None])).min(axis=1)
        assert (in_exponent > exact).any(), "as printed, it is no lower bound"
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[-1] < 0.01


def test_bits_at_zero_are_tossed_after_the_training_and_the_same_for_a_seed():
    found, again = (learned_at_zero.bounds_at_zero(3, runs=60) for _ in range(2))
    assert found == again
    assert {name for name, bound in found.items() if bound.valid} == {"half and half, ranks", "folds"}
    assert found["first version"].epsilon > 0


def test_an_encoder_sees_public_records_alone_and_its_features_have_one_length():
    task = data.digits(n_train=50)
    other = replace(task, x_train=task.x_train[::-1].copy(), y_train=(task.y_train + 1) % 10)
    one, two = (fine_tuning.encoded(each, width=16, epochs=3) for each in (task, other))
    np.testing.assert_array_equal(one.x_test, two.x_test)
    np.testing.assert_allclose(one.x_train, two.x_train[::-1], atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(one.x_train, axis=1), 3, rtol=1e-5)


@pytest.mark.filterwarnings("default")  # of Opacus
def test_a_fine_tuning_takes_the_steps_that_its_audit_states():
    task = fine_tuning.encoded(data.digits(n_train=60), width=16, epochs=100)
    records = TensorDataset(torch.tensor(task.x_train), torch.tensor(task.y_train))
    settings = {"noise_multiplier": 0.5, "batch_size": 20, "epochs": 4, "seed": 0}
    head, engine, loader = fine_tuning.fine_tune(records, 10, **settings)
    assert engine.accountant.history == [(0.5, 1 / len(loader), 4 * len(loader))]
    with torch.no_grad():
        right = head(torch.tensor(task.x_test)).argmax(dim=1).numpy() == task.y_test
    assert fine_tuning.accuracy(head, task) == pytest.approx(right.mean())
    assert right.mean() > 0.3
