import numpy as np
import pytest
import xarray as xr

from dpsub import DPSGD, accounting, audit, crafters, data, findings, models


def test_d_prime_is_the_distance_of_means_in_the_deviations_of_a_world():
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2, 40_000)
    scores = 7 + 3 * (rng.normal(size=40_000) + 1.5 * (bits == 0))
    assert findings.d_prime(scores, bits) == pytest.approx(1.5, abs=0.04)
    assert findings.d_prime(-scores, bits) == -findings.d_prime(scores, bits)
    assert findings.d_prime(xr.DataArray(scores, dims="run"), bits) == findings.d_prime(scores, bits)
    assert findings.d_prime([3.0, 5.0, 1.0, -1.0], [0, 0, 1, 1]) == pytest.approx(4 / np.sqrt(2))


def test_d_prime_of_scores_without_spread_is_zero_or_infinite():
    assert findings.d_prime([1.0, 1.0, 1.0, 1.0], [0, 0, 1, 1]) == 0
    assert findings.d_prime([2.0, 2.0, 1.0, 1.0], [0, 0, 1, 1]) == np.inf
    assert findings.d_prime([1.0, 1.0, 2.0, 2.0], [0, 0, 1, 1]) == -np.inf


@pytest.mark.parametrize(
    ("scores", "bits", "message"),
    [
        ([[1.0, 2.0]] * 4, [0, 0, 1, 1], r"scores must have shape \(runs,\), got \(4, 2\): choose a step"),
        ([1.0, 2.0, 3.0], [0, 0, 1], "bits must hold two runs or more of each world, got 2 and 1"),
        ([1.0, np.nan, 3.0, 4.0], [0, 0, 1, 1], "scores must not be NaN"),
        ([1.0, np.inf, 3.0, 4.0], [0, 0, 1, 1], "scores must be finite"),
        ([1.0, 2.0, 3.0], [0, 0, 1, 1], "bits must"),
        ([1.0, 2.0, 3.0, 4.0], [0, 0, 2, 1], "bits must"),
    ],
)
def test_scores_that_do_not_fit_have_no_d_prime(scores, bits, message):
    with pytest.raises(ValueError, match=message):
        findings.d_prime(scores, bits)


@pytest.fixture(scope="module")
def watched():
    """Eight audited models, their canary's gradients observed at every step and at three steps."""
    task = data.digits(n_train=30)
    model, steps = models.linear(task), 9
    sigma = accounting.noise_multiplier(
        target_epsilon=6.0, sample_rate=1.0, steps=steps, delta=1e-5, adjacency="substitute"
    )
    spec = DPSGD(sigma, 1.0, 1.0, steps, 0.1)
    pair = crafters.gradient(task, model, spec, seed=0)
    usual = {"runs": 8, "metrics": ("distance",), "device": "cpu", "progress": False}
    return [audit(task, model, pair, spec, observe_every=every, **usual) for every in (1, 3)]


def test_a_gradient_canary_has_the_accountants_mu_however_many_steps_were_observed(watched):
    for result in watched:
        assert accounting.gdp_epsilon(findings.every_step_mu(result), 1e-5) == pytest.approx(6.0, rel=1e-3)


def test_every_step_mu_is_the_root_of_the_mean_square(watched):
    result = watched[0]
    drawn = np.random.default_rng(0).uniform(0, 1, result.distance.shape)
    squares = ((2 * drawn / result.noise_multiplier) ** 2).sum(axis=1)
    found = findings.every_step_mu(result.assign(distance=(result.distance.dims, drawn)))
    assert found == pytest.approx(np.sqrt(squares.mean()))
    assert findings.every_step_mu(result.assign(distance=0 * result.distance)) == 0


def test_audits_whose_steps_say_too_little_have_no_mu(watched):
    result = watched[0]
    with pytest.raises(ValueError, match=r'result must have distances \(run, step\): .*"distance",.*got none'):
        findings.every_step_mu(result.drop_vars("distance"))
    with pytest.raises(ValueError, match="result must be of sample rate 1, .* got 0.5"):
        findings.every_step_mu(result.assign_attrs(sample_rate=0.5))
    with pytest.raises(ValueError, match="got {'run': 8}"):
        findings.every_step_mu(result.isel(step=-1))
    with pytest.raises(ValueError, match="steps must be >= 1 and <= 1000000000"):
        findings.every_step_mu(result.assign_attrs(steps=10**400))
    with pytest.raises(ValueError, match="distances that are finite"):
        findings.every_step_mu(result.assign_attrs(noise_multiplier=1e-300))
    for spoiled in (result.assign(distance=result.distance * np.nan), result.isel(run=[])):
        with pytest.raises(ValueError, match="result must have distances >= 0 .*: is its store complete"):
            findings.every_step_mu(spoiled)
