from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import kstest, norm

from dpsub import DPSGD, accounting, audit, crafters, data, models
from dpsub.audits import BLOCK
from dpsub.estimators import epsilon_lower_bound

SPEC = DPSGD(noise_multiplier=10.0, max_grad_norm=2.0, sample_rate=1.0, steps=40, learning_rate=0.01)


@pytest.fixture(scope="module")
def task():
    return data.digits(n_train=100)


@pytest.fixture(scope="module")
def model(task):
    return models.linear(task)


@pytest.fixture(scope="module")
def canary(task, model):
    return crafters.gradient(task, model, SPEC, seed=0)


def test_dataset_has_scores_bits_and_what_made_them(task, model, canary):
    result = audit(task, model, canary, SPEC, runs=10, observe_every=15, seed=4, device="cpu", progress=False)
    assert result.score.dims == ("run", "step")
    assert result.score.shape == (10, 3)
    assert result.step.values.tolist() == [15, 30, 40]
    assert (result.score.dtype, result.bit.dtype) == (np.float32, np.int8)
    assert result.attrs["adjacency"] == "substitute"
    expected = {"noise_multiplier": 10.0, "steps": 40, "runs": 10, "seed": 4, "task": "digits", "device": "cpu"}
    assert result.attrs.items() >= expected.items()
    assert result.attrs["version_torch"] == torch.__version__


def test_same_seed_same_numbers_whatever_the_number_of_blocks(task, model, canary):
    def run(runs, seed=1):
        return audit(task, model, canary, SPEC, runs=runs, observe_every=20, seed=seed, device="cpu", progress=False)

    one, more = run(BLOCK), run(2 * BLOCK + 5)
    assert one.equals(run(BLOCK))
    assert one.equals(more.isel(run=slice(0, BLOCK)))
    assert not np.array_equal(more.score[:BLOCK], more.score[BLOCK : 2 * BLOCK])
    assert not np.array_equal(one.score, run(BLOCK, seed=2).score)


def test_progress_is_shown_only_when_wanted(task, model, canary, capsys):
    audit(task, model, canary, SPEC, runs=2, observe_every=40, device="cpu", progress=False)
    assert capsys.readouterr().err == ""
    audit(task, model, canary, SPEC, runs=2, observe_every=40, device="cpu", progress=True)
    assert "S2 on digits" in capsys.readouterr().err


@pytest.mark.parametrize("adjacency", ["substitute", "add_remove"])
def test_audited_epsilon_stays_within_the_accountants(task, model, canary, adjacency):
    pair = canary if adjacency == "substitute" else canary.against_nothing(adjacency=adjacency)
    promised = accounting.epsilon(**SPEC.mechanism, delta=1e-5, adjacency=adjacency)
    bounds = []
    for seed in range(5):
        result = audit(task, model, pair, SPEC, runs=600, observe_every=40, seed=seed, device="cpu", progress=False)
        bounds.append(epsilon_lower_bound(result.score[:, 0], result.bit, delta=1e-5).epsilon)
    assert 0.6 * promised < np.mean(bounds) < promised
    if adjacency == "substitute":
        assert min(bounds) > accounting.epsilon(**SPEC.mechanism, delta=1e-5, adjacency="add_remove")


def test_score_of_an_undisturbed_parameter_is_gaussian(task, model, canary):
    result = audit(task, model, canary, SPEC, runs=1_000, observe_every=40, device="cpu", progress=False)
    # (θ₀ − θ_T)·g_z/C moves by ±η·T·C/n, with noise η·σ·C·√T/n, and the little that the other records add.
    unit = SPEC.learning_rate * SPEC.max_grad_norm / 100
    score = result.score.values[:, 0] / (unit * SPEC.noise_multiplier * np.sqrt(SPEC.steps))
    for bit, sign in ((0, 1), (1, -1)):
        mean = sign * np.sqrt(SPEC.steps) / SPEC.noise_multiplier
        drift = score[result.bit.values == bit].mean() - mean
        assert abs(drift) < 0.25
        assert kstest(score[result.bit.values == bit] - drift, norm(mean, 1).cdf).pvalue > 1e-3


def test_a_sampled_audit_draws_its_batches(task, model):
    spec = replace(SPEC, sample_rate=0.5, noise_multiplier=5.0)
    pair = crafters.gradient(task, model, spec, seed=1)
    result = audit(task, model, pair, spec, runs=600, observe_every=40, device="cpu", progress=False)
    promised = accounting.epsilon(**spec.mechanism, delta=1e-5, adjacency="substitute")
    bound = epsilon_lower_bound(result.score[:, 0], result.bit, delta=1e-5)
    assert 0.3 * promised < bound.epsilon <= promised


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"runs": 0}, "runs must be >= 1, got 0"),
        ({"observe_every": 41}, "observe_every must be <= spec.steps = 40, got 41"),
        ({"observe_every": 0}, "observe_every must be >= 1, got 0"),
        ({"seed": -1}, "seed must be >= 0, got -1"),
        ({"device": "tpu"}, "device must be one of 'auto', 'cpu', 'cuda', got 'tpu'"),
        ({"model": models.Linear(3, 10)}, "model must fit the task"),
    ],
)
def test_bad_input_is_named(task, model, canary, change, message):
    arguments = {"task": task, "model": model, "canary": canary, "spec": SPEC, "runs": 4, "progress": False}
    with pytest.raises(ValueError, match=message):
        audit(**{**arguments, **change})


def test_a_canary_that_the_accountants_do_not_cover_is_refused(task, model, canary):
    with pytest.raises(ValueError, match="canary.z must have norm <= max_grad_norm = 2, got 4"):
        audit(task, model, replace(canary, z=2 * canary.z), SPEC, runs=4, progress=False)
    with pytest.raises(ValueError, match=r"canary.z_prime must have shape"):
        audit(task, model, replace(canary, z_prime=canary.z[:-1]), SPEC, runs=4, progress=False)
    with pytest.raises(ValueError, match="canary.slot must be one of the 100 private records, got 100"):
        audit(task, model, replace(canary, slot=100), SPEC, runs=4, progress=False)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_cuda_that_is_absent_is_refused(task, model, canary):
    with pytest.raises(ValueError, match='device "cuda" was asked for, but torch finds no CUDA device'):
        audit(task, model, canary, SPEC, runs=4, device="cuda", progress=False)


def test_training_that_diverges_is_said_so(task, model, canary):
    wild = replace(SPEC, learning_rate=1e30, max_grad_norm=1e30)
    with pytest.raises(ValueError, match="spec must be such that training does not diverge"):
        audit(task, model, canary, wild, runs=4, device="cpu", progress=False)
