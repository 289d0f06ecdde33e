"""Blocks that train as one bank, as they do on a GPU, find what each finds alone."""

import numpy as np
import pytest
import torch

from dpsub import DPSGD, audit, crafters, data, models
from dpsub.audits import executors, many_runs
from dpsub.audits.plans import Cut
from dpsub.audits.store import Database
from dpsub.trainers.bank import blocks_together

OPTIONS = {
    "runs": 560,
    "observe_every": 2,
    "seed": 3,
    "device": "cpu",
    "progress": False,
}  # five blocks, the last short


@pytest.fixture
def together(monkeypatch):
    """From the call on, so many blocks train as one bank."""
    return lambda blocks: monkeypatch.setattr(many_runs, "blocks_together", lambda model, device: blocks)


@pytest.mark.parametrize("scenario", ["S2", "S4"])
@pytest.mark.parametrize(("q", "sampling", "optimizer"), [(1.0, "poisson", "sgd"), (0.2, "epochs", "adam")])
def test_grouped_blocks_find_what_single_ones_do(together, scenario, q, sampling, optimizer):
    task = data.digits(n_train=30)
    model = models.linear(task)
    spec = DPSGD(1.0, 1.0, q, 5, 0.1, optimizer, sampling=sampling)
    canary = crafters.BY_SCENARIO[scenario](task, model, spec, seed=0)
    options = OPTIONS | {"repeats": 2, "metrics": ("accuracy", "distance", "gradient", "weights")}
    alone = audit(task, model, canary, spec, **options)
    together(4)
    grouped = audit(task, model, canary, spec, **options)
    for name, values in alone.items():
        np.testing.assert_allclose(grouped[name], values, rtol=1e-4, atol=1e-5 * float(abs(values).max()), err_msg=name)


def test_each_group_is_computed_whole_and_only_what_is_missing_is_written(
    together, run, store, expected, forbid_training, monkeypatch
):
    options = OPTIONS | {"runs": 300}
    first = run(runs=128, **{name: value for name, value in options.items() if name != "runs"})
    together(2)
    shards = Cut(560, 2, 128).shards
    plan = type("Plan", (), {"together": lambda self, device: 2, "cut": Cut(560, 2, 128)})()
    groups = executors.grouped(plan, [shards[1], shards[4], shards[9]], None)
    assert [[shard.number for shard in group] for group in groups] == [[0, 1], [4], [9]]
    written = []
    write = Database.write
    monkeypatch.setattr(
        Database, "write", lambda self, shard, *rest: written.append(shard.number) or write(self, shard, *rest)
    )
    whole = run(**options)
    assert written == [1, 2]
    np.testing.assert_array_equal(whole.score[:128], first.score)
    np.testing.assert_allclose(whole.score, expected.score, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(whole.bit, expected.bit)
    forbid_training()
    run(**options)


def test_small_models_alone_train_in_groups_and_on_a_gpu_alone():
    task, gpu = data.digits(n_train=30), torch.device("cuda")
    assert blocks_together(models.linear(task), gpu) == 16
    assert blocks_together(models.linear(task), torch.device("cpu")) == 1
    assert blocks_together(models.Linear(600, 100), gpu) == 4
    assert blocks_together(models.mlp(task), gpu) == 1
