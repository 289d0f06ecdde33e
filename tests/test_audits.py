import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import ks_2samp, kstest, norm

from dpsub import DPSGD, CanaryPair, accounting, audit, audits, crafters, data, models, trainers
from dpsub.audits import plans
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
    assert not np.array_equal(more.score[:BLOCK], more.score[BLOCK : 2 * BLOCK])
    assert not np.array_equal(one.score, run(BLOCK, seed=2).score)


@pytest.mark.parametrize("name", ["linear", "mlp", "convnet"])
def test_same_numbers_however_many_threads_train(name, monkeypatch):
    rng = np.random.default_rng(0)
    task = data.from_arrays(rng.random((10, 1, 16, 16)), rng.integers(0, 10, 10), num_classes=10)
    if name == "linear":
        task = data.digits(n_train=100)
    model = getattr(models, name)(task)
    spec = replace(SPEC, steps=3, sample_rate=0.4)
    pair = crafters.gradient(task, model, spec, seed=0)
    results = []
    before = torch.get_num_threads()
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        results.append(audit(task, model, pair, spec, runs=2 * BLOCK + 3, device="cpu", progress=False))
        assert torch.get_num_threads() == threads
    torch.set_num_threads(before)
    assert results[0].equals(results[1])
    assert results[0].equals(results[2])


def test_metrics_are_observed_beside_the_scores(task, model, canary):
    arguments = {"runs": BLOCK + 5, "observe_every": 20, "device": "cpu", "progress": False}
    plain = audit(task, model, canary, SPEC, **arguments)
    assert set(plain.data_vars) == {"score", "bit"}
    asked = ("accuracy", "weights", "distance", "gradient", "accuracy")
    result = audit(task, model, canary, SPEC, metrics=asked, **arguments)
    assert result.accuracy.dims == ("measured", "step")
    assert result.measured.values.tolist() == list(range(8))
    assert result.gradient.shape == result.distance.shape == (BLOCK + 5, 2)
    assert np.allclose(result.distance, 1)
    assert result.weights.shape == (BLOCK + 5, model.parameters)
    assert result.bit.equals(plain.bit)

    x, y = torch.as_tensor(task.x_test), torch.as_tensor(task.y_test)
    for run in (0, 7):
        module = model.module(result.weights.values[run])
        accuracy = (module(x).argmax(dim=1) == y).float().mean()
        assert float(result.accuracy[run, -1]) == pytest.approx(float(accuracy), abs=1e-6)
    parameter = canary.details["parameter"]
    np.testing.assert_allclose(result.score[:, -1], -result.weights[:, parameter], atol=1e-6)
    for bit, sign in ((0, 1), (1, -1)):
        seen = result.gradient.values[result.bit.values == bit]
        assert abs(seen.mean() - sign) < 4.5 * SPEC.noise_multiplier / np.sqrt(seen.size) + 0.2


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
    rng = np.random.default_rng(0)
    task = data.from_arrays(rng.random((20, 1, 16, 16)), rng.integers(0, 10, 20), num_classes=10)
    model = getattr(models, kind)(task)
    spec = DPSGD(2.0, 1.0, 0.5, 4, 0.01, "adam")
    pair = crafters.gradient(task, model, spec, seed=0)
    result = audit(task, model, pair, spec, runs=150, observe_every=4, device="cpu", progress=False)
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


def test_as_many_blocks_train_at_once_as_the_memory_holds(task, model, canary, monkeypatch):
    spec = replace(SPEC, steps=2)
    needed = trainers.block_bytes(model, task, spec, torch.device("cpu"), 128)
    monkeypatch.setattr(_devices, "free_bytes", lambda device: 3.5 * needed)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    plan = audits._plan(task, model, canary, spec, 200, 1, 1, (), 0, "highest")
    assert plans.workers(plan, torch.device("cpu")) == 3
    monkeypatch.setattr(_devices, "free_bytes", lambda device: needed - 1)
    with pytest.raises(ValueError, match="model and task must fit the memory: a block of 128 models"):
        audit(task, model, canary, spec, runs=200, device="cpu", progress=False)


MEMORY = """
import re, pathlib
import numpy as np, psutil, torch
from dpsub import DPSGD, CanaryPair, data, models
from dpsub.trainers import assemble, block_bytes

torch.set_num_threads(1)
rng = np.random.default_rng(0)
task = data.from_arrays(rng.random({shape}), rng.integers(0, 100, {shape}[0]), num_classes=100)
model, spec, device = models.{kind}(task), DPSGD(1.0, 1.0, {q}, 1, 0.1, {optimizer!r}), torch.device("cpu")
before = psutil.Process().memory_info().rss
bits, generator = np.zeros({runs}, np.int8), torch.Generator()
z = np.eye(1, model.parameters, dtype=np.float32)[0]
bank = assemble(model, task, spec, bits=bits, generator=generator, canary=CanaryPair(z, -z, 0, "S2"), coordinates="span")
bank.advance()
peak = re.search(r"VmHWM:\\s+(\\d+) kB", pathlib.Path("/proc/self/status").read_text())
used = 1024 * int(peak[1]) - before
print(used / block_bytes(model, task, spec, device, {runs}))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peaks are read where Linux keeps them")
@pytest.mark.parametrize(
    ("kind", "shape", "q", "optimizer", "runs"),
    [
        pytest.param("mlp", (2_000, 600), 0.25, "adam", 128, marks=pytest.mark.slow),
        ("mlp", (100_000, 2), 0.45, "sgd", 16),
        pytest.param("linear", (2_000, 8_000), 1.0, "sgd", 4, marks=pytest.mark.slow),
        pytest.param("convnet", (2_000, 1, 28, 28), 0.02, "sgd", 16, marks=pytest.mark.slow),
    ],
)
def test_a_blocks_memory_is_not_underestimated(kind, shape, q, optimizer, runs):
    code = MEMORY.format(kind=kind, shape=shape, q=q, optimizer=optimizer, runs=runs)
    share = float(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)
    assert 0.1 < share < 1


def test_an_interrupt_stops_every_block_soon(task, model, canary, monkeypatch):
    steps = []
    advance = trainers.Bank.advance

    def interrupted(self):
        steps.append(1)
        if len(steps) == 30:
            raise KeyboardInterrupt
        advance(self)

    monkeypatch.setattr(trainers.Bank, "advance", interrupted)
    with pytest.raises(KeyboardInterrupt):
        audit(task, model, canary, replace(SPEC, steps=1_000), runs=10 * BLOCK, device="cpu", progress=False)
    assert len(steps) < 500


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
        ({"metrics": "accuracy"}, "metrics must be a sequence of names, got 'accuracy'; for one, "),
        ({"metrics": None}, "metrics must be a sequence of names, got None"),
        ({"task": None}, "task must be a Task, of dpsub.data.from_arrays for one, got a NoneType"),
        ({"model": torch.nn.Linear(2, 2)}, "model must be made by dpsub.models, .* got a Linear"),
        ({"canary": np.ones(3)}, "canary must be a dpsub.CanaryPair, got a ndarray"),
        ({"spec": {}}, "spec must be a dpsub.DPSGD, got a dict"),
        ({"metrics": ("loss",)}, "metrics must be one of 'accuracy', 'distance', 'gradient', 'weights', got 'loss'"),
        ({"matmul_precision": "low"}, "matmul_precision must be one of 'highest', 'high', 'medium', got 'low'"),
        ({"model": models.mlp(data.from_arrays(np.ones((4, 7)), [0, 1, 2, 9]))}, "model must fit the task"),
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


def test_a_task_that_was_changed_is_refused_before_training(task, model, canary):
    def changed(**parts):
        return replace(task, **parts)

    broken = task.x_train.copy()
    broken[5, 2] = np.nan
    labels = np.where(np.arange(100) == 4, 10, task.y_train)
    for bad, message in (
        (changed(x_train=broken), "x_train must be finite, got 1 values that are not"),
        (changed(y_train=labels), "y_train must be labels from 0 to 9, got 10"),
        (changed(y_train=task.y_train - 1), "y_train must be whole numbers from 0 to"),
        (changed(x_test=task.x_test[:, :5]), "x_test must have records of shape"),
        (changed(x_train=task.x_train.astype(np.float64)), "x_train must be an array of float32, got float64"),
        (changed(y_train=task.y_train.tolist()), "y_train must be an array of int64, got list"),
        (changed(x_train=task.x_train[:1], y_train=task.y_train[:1]), "x_train must hold at least 2 records, got 1"),
        (changed(x_train=task.x_train + 1), "canary must be crafted for this task"),
        (data.digits(n_train=100, seed=1), "model must fit the task|canary must be crafted for this task"),
    ):
        with pytest.raises(ValueError, match=message):
            audit(bad, model, canary, SPEC, runs=4, progress=False)
    edited = changed(x_train=task.x_train.copy())
    audit(edited, model, canary, SPEC, runs=1, progress=False)
    edited.x_train[3, 0] += 1
    with pytest.raises(ValueError, match="canary must be crafted for this task"):
        audit(edited, model, canary, SPEC, runs=1, progress=False)
    none_to_test = changed(x_test=task.x_test[:0], y_test=task.y_test[:0])
    with pytest.raises(ValueError, match='metrics must not name "accuracy" for a task without test records'):
        audit(none_to_test, model, canary, SPEC, runs=4, metrics=("accuracy",), progress=False)
    for record in ((task.x_train[0, :5], 1), (task.x_train[0], 10)):
        pair = CanaryPair(record, (task.x_train[0], 1), 3, "S4")
        with pytest.raises(ValueError, match="canary.z must be a record like the task's"):
            audit(task, model, pair, SPEC, runs=4, progress=False)


def test_another_default_dtype_is_refused(task, model, canary):
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(ValueError, match="torch's default dtype must be float32, in which banks train"):
            audit(task, model, canary, SPEC, runs=4, progress=False)
        with pytest.raises(ValueError, match="torch's default dtype must be float32"):
            crafters.gradient(task, model, SPEC, seed=0)
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_cuda_that_is_absent_is_refused(task, model, canary):
    with pytest.raises(ValueError, match='device "cuda" was asked for, but torch finds no CUDA device'):
        audit(task, model, canary, SPEC, runs=4, device="cuda", progress=False)


def test_training_that_diverges_is_said_so(task, model, canary):
    wild = replace(SPEC, learning_rate=1e30, max_grad_norm=1e30)
    with pytest.raises(ValueError, match="spec must be such that training does not diverge"):
        audit(task, model, canary, wild, runs=4, device="cpu", progress=False)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["linear", "mlp", "convnet"])
def test_a_gpu_audits_the_same_law_and_repeats_itself(name):
    rng = np.random.default_rng(0)
    task = data.from_arrays(rng.random((10, 1, 16, 16)), rng.integers(0, 10, 10), num_classes=10)
    if name == "linear":
        task = data.digits(n_train=100)
    model = getattr(models, name)(task)
    spec = replace(SPEC, steps=5, sample_rate=0.4, noise_multiplier=2.0)
    pair = crafters.gradient(task, model, spec, seed=0)

    def run(device):
        return audit(task, model, pair, spec, runs=1_000, observe_every=5, device=device, progress=False)

    here, there = run("cpu"), run("cuda")
    assert there.equals(run("cuda"))
    for bit in (0, 1):
        both = [result.score.values[result.bit.values == bit, -1] for result in (here, there)]
        assert ks_2samp(*both).pvalue > 1e-3
