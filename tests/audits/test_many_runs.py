from dataclasses import replace

import numpy as np
import pytest
import torch
from cases import slow_but
from scipy.stats import ks_2samp, kstest, norm

from dpsub import (
    DPSGD,
    CanaryPair,
    accounting,
    audit,
    audit_one_run,
    audit_steps,
    audits,
    bound,
    crafters,
    data,
    models,
    trainers,
)
from dpsub.estimators import epsilon_lower_bound

BLOCK = 128
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


def test_what_changes_the_numbers_changes_the_attributes(task, model, canary):
    def attrs(model=model, canary=canary, **options):
        return audit(task, model, canary, SPEC, runs=1, device="cpu", progress=False, **options).attrs

    first = attrs()
    assert first == attrs()
    assert first != attrs(metrics=("accuracy",))
    assert first != attrs(canary=replace(canary, z=-canary.z, z_prime=canary.z))
    assert attrs(canary=replace(canary, details={"seed": 99}))["seed"] == 0
    record = CanaryPair((task.x_train[3], 1), (task.x_train[3], 2), 3, "S4")
    others = [models.mlp(task, (3,)), models.mlp(task, (3,), activation="relu"), models.mlp(task, (3, 1))]
    assert len({attrs(other, record)["model"] for other in others}) == 3


def test_same_seed_same_numbers_whatever_the_number_of_blocks(task, model, canary):
    def run(runs, seed=1):
        return audit(task, model, canary, SPEC, runs=runs, observe_every=20, seed=seed, device="cpu", progress=False)

    one, more = run(BLOCK), run(2 * BLOCK + 5)
    assert one.equals(run(BLOCK))
    assert one.equals(more.isel(run=slice(0, BLOCK)))
    first, second = more.isel(run=slice(0, BLOCK)), more.isel(run=slice(BLOCK, 2 * BLOCK))
    assert not np.array_equal(first.bit, second.bit)
    assert not (first.score.values == second.score.values).any(), "each block has noise of its own"
    assert not np.array_equal(one.score, run(BLOCK, seed=2).score)


def small(kind):
    """A task and a model that are quickly trained."""
    rng = np.random.default_rng(0)
    task = data.from_arrays(rng.random((10, 1, 16, 16)), rng.integers(0, 10, 10), num_classes=10)
    if kind == "linear":
        task = data.digits(n_train=100)
    return task, getattr(models, kind)(task)


@pytest.mark.parametrize("kind", slow_but(["linear", "mlp", "convnet"], "linear", "mlp"))
def test_same_numbers_however_many_threads_train(kind, monkeypatch):
    """More blocks than threads, so that a thread trains several."""
    block = BLOCK if kind == "linear" else 16
    monkeypatch.setattr("dpsub.audits.bank_plans.block_size", lambda model: block)
    task, model = small(kind)
    spec = replace(SPEC, steps=3, sample_rate=0.4)
    pair = crafters.gradient(task, model, spec, seed=0)
    results = []
    before = torch.get_num_threads()
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        results.append(audit(task, model, pair, spec, runs=4 * block + 3, device="cpu", progress=False))
        assert torch.get_num_threads() == threads
    torch.set_num_threads(before)
    assert results[0].attrs["block_size"] == block
    assert results[0].equals(results[1])
    assert results[0].equals(results[2])


def test_a_record_canary_is_audited(task, model):
    spec = replace(SPEC, noise_multiplier=0.5, learning_rate=1.0)
    record = CanaryPair((task.x_train[3], 1), (task.x_train[3], 2), 3, "S4")
    for pair in (record, record.against_nothing(adjacency="add_remove")):
        result = audit(task, model, pair, spec, runs=200, observe_every=40, device="cpu", progress=False)
        promised = accounting.epsilon(**spec.mechanism, delta=1e-5, adjacency=pair.adjacency)
        assert 0.3 < epsilon_lower_bound(result.score[:, 0], result.bit, delta=1e-5).epsilon < promised
        assert result.attrs["adjacency"] == pair.adjacency


@pytest.mark.parametrize("kind", ["mlp", "convnet"])
def test_networks_are_audited(kind):
    task, model = small(kind)
    spec = DPSGD(1.0, 1.0, 0.5, 4, 0.01, "adam")
    pair = crafters.gradient(task, model, spec, seed=0)
    result = audit(task, model, pair, spec, runs=100, observe_every=4, device="cpu", progress=False)
    promised = accounting.epsilon(**spec.mechanism, delta=1e-5, adjacency="substitute")
    assert 0 < epsilon_lower_bound(result.score[:, 0], result.bit, delta=1e-5).epsilon < promised
    assert "random start" in result.attrs["model"]


def test_precision_is_float32_unless_asked_otherwise_and_is_put_back(task, model, canary, monkeypatch):
    backends, seen = torch.backends, []

    def state():
        switches = (backends.mkldnn.matmul, backends.mkldnn.conv, backends.cuda.matmul, backends.cudnn.conv)
        return (*(switch.fp32_precision for switch in switches), backends.cudnn.deterministic)

    def advance(bank, **options):
        seen.append(state())
        original(bank, **options)

    original = trainers.Bank.advance
    monkeypatch.setattr(trainers.Bank, "advance", advance)
    before = state()
    for precision, expected in (
        ("highest", ("ieee", "ieee", "ieee", "ieee", True)),
        ("high", ("tf32", "tf32", "tf32", "tf32", True)),
        ("medium", ("bf16", "bf16", "tf32", "tf32", True)),
    ):
        result = audit(task, model, canary, SPEC, runs=1, device="cpu", matmul_precision=precision, progress=False)
        assert result.attrs["matmul_precision"] == precision
        assert set(seen) == {expected}
        assert state() == before
        seen.clear()
    crafters.gradient(task, model, SPEC, seed=0)
    assert set(seen) == {("ieee", "ieee", "ieee", "ieee", True)}
    assert state() == before


@pytest.mark.parametrize("adjacency", ["substitute", "add_remove"])
def test_audited_epsilon_stays_within_the_accountants(task, model, canary, adjacency):
    pair = canary if adjacency == "substitute" else canary.against_nothing(adjacency=adjacency)
    promised = accounting.epsilon(**SPEC.mechanism, delta=1e-5, adjacency=adjacency)
    bounds = []
    for seed in range(2):
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


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["linear", "mlp", "convnet"])
def test_a_gpu_audits_the_same_law_and_repeats_itself(kind):
    task, model = small(kind)
    spec = replace(SPEC, steps=5, sample_rate=0.4, noise_multiplier=2.0)
    pair = crafters.gradient(task, model, spec, seed=0)

    def run(device):
        return audit(task, model, pair, spec, runs=1_000, observe_every=5, device=device, progress=False)

    here, there = run("cpu"), run("cuda")
    assert there.equals(run("cuda"))
    for bit in (0, 1):
        both = [result.score.values[result.bit.values == bit, -1] for result in (here, there)]
        assert ks_2samp(*both).pvalue > 1e-3


@pytest.mark.parametrize("sampling", ["without_replacement", "epochs"])
def test_batches_of_other_kinds_are_stored_with_their_name(tmp_path, sampling):
    task = data.digits(n_train=40)
    model = models.linear(task)
    setting = {"noise_multiplier": 2.0, "max_grad_norm": 1.0, "sample_rate": 0.25, "steps": 8, "learning_rate": 0.5}
    spec = DPSGD(**setting, sampling=sampling)
    pair = crafters.gradient(task, model, spec, seed=0)
    asked = {"runs": 300, "progress": False, "store": tmp_path / "audit.db"}
    audited = audit(task, model, pair, spec, **asked)
    assert audited.attrs["sampling"] == sampling
    assert audits.load(tmp_path / "audit.db").identical(audited)
    assert audit(task, model, pair, spec, **asked).identical(audited)
    with pytest.raises(
        ValueError, match=f"store holds another audit, .*\n  sampling: stored '{sampling}', asked for nothing"
    ):
        audit(task, model, pair, DPSGD(**setting), **asked)
    [*_, shown] = bound(audited, delta=1e-5, claim="pld")
    assert shown.valid
    assert shown.epsilon < accounting.epsilon(**spec.mechanism, delta=1e-5, adjacency="substitute")


def test_audits_that_draw_slots_apart_take_poisson_batches_alone():
    task = data.digits(n_train=40)
    model = models.linear(task)
    spec = DPSGD(2.0, 1.0, 0.25, 4, 0.5, sampling="epochs")
    pair = crafters.gradient(task, model, spec, seed=0)
    for call in (audit_steps, audit_one_run):
        with pytest.raises(ValueError, match="spec must have sampling='poisson', got 'epochs'"):
            call(task, model, pair, spec, progress=False)


def test_on_the_worst_data_set_trained_models_have_s1s_law():
    """All records are alike but for z's label, so that all others' gradients are that of z′."""
    task = data.from_arrays(np.full((40, 16), 10.0), np.zeros(40, int), num_classes=2)
    record = task.x_train[0]
    pair = CanaryPair((record, 1), (record, 0), 0, "S4")
    spec = DPSGD(2.0, 1.0, 0.25, 10, 1e-4, sampling="without_replacement")
    audited = audit(task, models.linear(task), pair, spec, runs=3000, metrics=("gradient",), progress=False)
    part = audited.gradient.values.astype(float) + 10
    in_z = audited.bit.values == 0
    assert kstest(part[~in_z].ravel() / 2, norm.cdf).pvalue > 1e-3
    mixture = kstest(part[in_z].ravel(), lambda x: 0.75 * norm.cdf(x / 2) + 0.25 * norm.cdf((x - 2) / 2))
    assert mixture.pvalue > 1e-3
    assert kstest(part[in_z].ravel() / 2, norm.cdf).pvalue < 1e-3, "the worlds differ"
