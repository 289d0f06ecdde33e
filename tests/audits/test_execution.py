from dataclasses import replace

import pytest
import torch

from dpsub import CanaryPair, audit, crafters, models, trainers
from dpsub.audits import many_runs
from dpsub.audits.plans import Stopped
from dpsub.trainers.bank import block_bytes


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"runs": 0}, "runs must be >= 1, got 0"),
        ({"device": "tpu"}, "device must be one of 'auto', 'cpu', 'cuda', got 'tpu'"),
        ({"model": models.Linear(3, 10)}, "model must fit the task"),
        ({"metrics": "accuracy"}, r"observers, such as \(\"accuracy\",\), got 'accuracy'"),
        (
            {"model": torch.nn.Linear(2, 2)},
            "model must be a bank, got a Linear: make one with dpsub.models",
        ),
        ({"metrics": ("loss",)}, "metrics must be one of 'accuracy', 'distance', 'gradient', 'weights', got 'loss'"),
        ({"repair": "False"}, "repair must be True or False, got 'False'"),
    ],
)
def test_bad_input_is_named(task, model, canary, change, message, spec):
    arguments = {"task": task, "model": model, "canary": canary, "spec": spec, "runs": 4, "progress": False}
    with pytest.raises(ValueError, match=message):
        audit(**{**arguments, **change})


def test_a_canary_that_the_accountants_do_not_cover_is_refused(task, model, canary, spec):
    with pytest.raises(ValueError, match="canary must be gradients of norm <= max_grad_norm = 2, got one of norm 4"):
        audit(task, model, replace(canary, z=2 * canary.z), spec, runs=4, progress=False)
    shorter = replace(canary, z=canary.z[:-1], z_prime=canary.z_prime[:-1])
    with pytest.raises(ValueError, match=r"canary must be gradients of \d+ for Linear.*, got"):
        audit(task, model, shorter, spec, runs=4, progress=False)


def test_a_task_that_was_changed_is_refused_before_training(task, model, canary, spec):
    for parts, message in (
        ({"x_train": task.x_train + 1}, "canary must be crafted for this task"),
        ({"y_train": task.y_train[::-1].copy()}, "canary must be crafted for this task"),
    ):
        with pytest.raises(ValueError, match=message):
            audit(replace(task, **parts), model, canary, spec, runs=4, progress=False)
    edited = replace(task, x_train=task.x_train.copy())
    edited.x_train.flags.writeable = True
    edited.x_train[3, 0] += 1
    with pytest.raises(ValueError, match="canary must be crafted for this task"):
        audit(edited, model, canary, spec, runs=1, progress=False)
    none_to_test = replace(task, x_test=task.x_test[:0], y_test=task.y_test[:0])
    with pytest.raises(ValueError, match='metrics must not name "accuracy" for a task without test records'):
        audit(none_to_test, model, canary, spec, runs=4, metrics=("accuracy",), progress=False)
    for record in ((task.x_train[0, :5], 1), (task.x_train[0], 10)):
        pair = CanaryPair(record, (record[0], 2), 3, "S4")
        with pytest.raises(ValueError, match="canary must be records like the task's"):
            audit(task, model, pair, spec, runs=4, progress=False)


def test_another_default_dtype_is_refused(task, model, canary, spec):
    features = task.x_train.shape[1]
    kinds = (model, models.mlp(task), models.from_module(torch.nn.Linear(features, 10), task))
    pairs = [crafters.mislabeled(task, kind, spec, seed=0) for kind in kinds]
    torch.set_default_dtype(torch.float64)
    try:
        for kind, pair in zip(kinds, pairs, strict=True):
            with pytest.raises(RuntimeError, match="dtype|scalar type"):  # torch's own words
                audit(task, kind, pair, spec, runs=4, progress=False)
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"stores": "a.db"}, TypeError, r"audit\(\) got an unexpected .* 'stores': did you mean 'store'"),
        ({"colour": 1}, TypeError, "argument 'colour': it takes task, model, .*, matmul_precision, device, client, "),
    ],
)
def test_where_it_runs_is_said_once(task, model, canary, spec, options, error, message):
    with pytest.raises(error, match=message):
        audit(task, model, canary, spec, runs=4, progress=False, **options)


def test_training_that_diverges_is_said_so(task, model, canary, spec):
    wild = replace(spec, learning_rate=1e38, max_grad_norm=1e15)
    with pytest.raises(ValueError, match="spec must be such that training does not diverge"):
        audit(task, model, canary, wild, runs=4, device="cpu", progress=False)


def test_an_interrupt_stops_every_block_soon(task, model, canary, monkeypatch, spec):
    steps = []
    advance = trainers.Bank.advance

    def interrupted(self):
        steps.append(1)
        if len(steps) == 30:
            raise KeyboardInterrupt
        advance(self)

    monkeypatch.setattr(trainers.Bank, "advance", interrupted)
    with pytest.raises(KeyboardInterrupt):
        audit(task, model, canary, replace(spec, steps=1_000), runs=1_280, device="cpu", progress=False)
    assert len(steps) < 500


@pytest.fixture
def plan_of(task, model, canary, spec, monkeypatch):
    """The plan of an audit."""

    def made(**options):
        with monkeypatch.context() as patch:
            patch.setattr(many_runs, "execute", lambda plan, **options: plan)
            return audit(task, model, canary, spec, **options)

    return made


def test_as_many_blocks_train_at_once_as_the_memory_holds(task, model, canary, spec, monkeypatch, plan_of):
    plan, cpu = plan_of(runs=200), torch.device("cpu")
    needed = block_bytes(model, task, spec, cpu, 128)
    assert plan.bytes_at_once(cpu) == needed
    watched = plan_of(runs=200, metrics=("distance",))
    assert watched.bytes_at_once(cpu) == needed + 4 * 128 * model.parameters, "a copy more of the parameters"
    monkeypatch.setattr(trainers.devices, "free_bytes", lambda device: 3.5 * needed)
    for threads, at_once in ((64, 3), (2, 2)):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        assert plan.at_once(cpu) == at_once
    monkeypatch.setattr(trainers.devices, "free_bytes", lambda device: needed - 1)
    with pytest.raises(ValueError, match="model and task must fit the memory: a block of 128 models"):
        audit(task, model, canary, spec, runs=200, device="cpu", progress=False)


def test_a_shard_that_nobody_waits_for_ends_at_its_next_step(plan_of):
    plan, cpu, ticks = plan_of(runs=2), torch.device("cpu"), []
    shard = plan.cut.shards[0]
    assert plan.run(shard, cpu, ticks.append).arrays["score"].shape == (2, 4)
    assert sum(ticks) == 2
    assert len(ticks) > plan.spec.steps

    def stopped(units):
        raise Stopped

    with pytest.raises(Stopped):
        plan.run(shard, cpu, stopped)


def test_progress_counts_models_and_begins_where_the_store_is(run, capsys, killed_after):
    killed_after(lambda: run(repeats=2, progress=True), 2)
    capsys.readouterr()
    run(repeats=2, progress=True)
    shown = capsys.readouterr().err
    assert "models/s" in shown
    assert "| 600/600" in shown
    assert "S2 on digits:   0%" not in shown
    run(repeats=2, progress=True)
    assert capsys.readouterr().err == ""


def test_progress_is_shown_only_when_wanted(task, model, canary, capsys, spec):
    for wanted, shown in ((False, ""), (True, "S2 on digits")):
        audit(task, model, canary, spec, runs=2, observe_every=4, device="cpu", progress=wanted)
        told = capsys.readouterr().err
        assert shown in told
        assert bool(told) == wanted
