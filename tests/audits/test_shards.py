from dataclasses import replace
from threading import Event

import pytest
import torch

from dpsub import audit, trainers
from dpsub.audits import shards
from dpsub.audits.checked_arguments import plan_of


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


def test_as_many_blocks_train_at_once_as_the_memory_holds(task, model, canary, spec, monkeypatch):
    arguments = {"observe_every": 1, "repeats": 1, "coordinates": "auto", "seed": 0, "matmul_precision": "highest"}
    plan, cpu = plan_of(task, model, canary, spec, runs=200, metrics=(), **arguments), torch.device("cpu")
    needed = trainers.block_bytes(model, task, spec, cpu, 128)
    assert shards.bytes_of_a_block(plan, cpu) == needed
    watched = plan_of(task, model, canary, spec, runs=200, metrics=("distance",), **arguments)
    assert shards.bytes_of_a_block(watched, cpu) == needed + 4 * 128 * model.parameters, "a copy more of the parameters"
    monkeypatch.setattr(trainers.devices, "free_bytes", lambda device: 3.5 * needed)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    assert shards.workers(plan, cpu) == 3
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert shards.workers(plan, cpu) == 2
    monkeypatch.setattr(trainers.devices, "free_bytes", lambda device: needed - 1)
    with pytest.raises(ValueError, match="model and task must fit the memory: a block of 128 models"):
        audit(task, model, canary, spec, runs=200, device="cpu", progress=False)


def test_a_shard_that_is_told_to_stop_says_so(task, model, canary, spec):
    arguments = {"observe_every": 1, "repeats": 1, "coordinates": "auto", "seed": 0, "matmul_precision": "highest"}
    plan, stop = plan_of(task, model, canary, spec, runs=2, metrics=(), **arguments), Event()
    assert shards.train_shard(plan, plan.shards[0], torch.device("cpu"), stop)["score"].shape == (2, 4)
    stop.set()
    with pytest.raises(shards.Stopped):
        shards.train_shard(plan, plan.shards[0], torch.device("cpu"), stop)
