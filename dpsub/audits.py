r"""Algorithm 1: craft, train by the thousand, score."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import asdict
from threading import Event
from typing import Any

import numpy as np
import torch
import xarray as xr
from numpy.typing import NDArray
from torch import Tensor
from tqdm.auto import tqdm

from dpsub import _checks, _dataset, _devices
from dpsub._random import stream, torch_seed
from dpsub.canaries import CanaryPair, Record
from dpsub.data import Task, check_task
from dpsub.dpsgd import DPSGD
from dpsub.models import Model, check_fits
from dpsub.trainers import Bank, block_bytes, block_size

METRICS = {
    "accuracy": "share of the test records that the model labels rightly",
    "gradient": "privatised sum times z's gradient, in units of max_grad_norm squared",
    "weights": "parameters after the last step",
}
ACCURACY_RUNS = 8

Block = dict[str, NDArray[Any]]


def audit(
    task: Task,
    model: Model,
    canary: CanaryPair,
    spec: DPSGD,
    *,
    runs: int,
    observe_every: int = 1,
    metrics: Sequence[str] = (),
    seed: int = 0,
    device: str = "auto",
    matmul_precision: str = "highest",
    progress: bool = True,
) -> xr.Dataset:
    r"""Train `runs` models, each with z or z′ in the slot by a fair coin, and score them along the way.

    Each observed step stands for a model released then: the adversary sees its parameters, none before (the
    hidden-state threat model). The other n − 1 records are the same in both worlds; the slot is sampled with
    probability q at each step by a coin of the same law in both.

    Args:
        task, model, canary, spec: on what, what, which pair of worlds, how.
        runs: R ≥ 1, in all.
        observe_every: score every so many steps, and at the last step always.
        metrics: what else to observe. "accuracy", on the test set, of the first runs, 8 at most, at the observed steps.
            "gradient", at the observed steps of all runs: ⟨g_z, privatised sum⟩/C², what an adversary sees who watches
            the steps (`Bank.watch_gradient`); all of them, to be summed, only with observe_every=1. "weights", the
            parameters of all runs after the last step, each a vector that `model.module(parameters)` makes a
            `torch.nn.Module` of. With "accuracy" or "weights" a linear head trains in all its coordinates instead of
            those that the records span (`Linear.within_span`): the numbers are others, of the same law.
        seed: runs come in blocks (`block_size` in the attributes; it depends on the model alone), each with a stream
            of its own: the same numbers on the same kind of device, with the same versions and arguments, however
            many threads or whatever memory there are.
        device: "auto" (CUDA if there is any), "cpu" or "cuda". On a CPU, as many blocks train side by side as torch
            may use threads, one thread each.
        matmul_precision: "highest" is float32. "high" and "medium" let a device that can multiply in TF32 or bfloat16,
            which is faster and rounds parameters and records to 11 or 8 bits: another mechanism than the one accounted
            for, though what the audit finds may hardly change.
        progress: show a progress bar.

    Returns:
        `score` (run, step) float32, higher speaks for z; `bit` (run,) int8, 0 for z and 1 for z′; `step`, the number
        of steps taken; `accuracy` (measured, step), with the runs that were measured as its coordinate; `gradient`
        (run, step); `weights` (run, parameter). The attributes say what made it: parameters, seed and
        versions, and checksums of task, canary and fixed start to know these by.

    Raises:
        ValueError: before any training, if an argument is out of range, a feature is not finite or a label not in
            0 … num_classes − 1, if model or canary do not fit the task, if a gradient canary is longer than
            max_grad_norm, so that the accountants' promise would not cover it, or if the memory does not suffice for
            one block; after it, if training diverged.

    Source: *Beyond Membership*, Algorithm 1.
    """
    _check_fit(task, model, canary, spec)
    runs = _checks.whole("runs", runs)
    observe_every = _checks.whole("observe_every", observe_every)
    if observe_every > spec.steps:
        raise ValueError(f"observe_every must be <= spec.steps = {spec.steps}, got {observe_every}")
    metrics = _metrics(metrics, task)
    seed = _checks.whole("seed", seed, at_least=0)
    where = _devices.device(device)
    _checks.choice("matmul_precision", matmul_precision, tuple(_devices.PRECISIONS))

    size = block_size(model)
    starts = range(0, runs, size)
    observed = sorted({*range(observe_every, spec.steps + 1, observe_every), spec.steps})
    workers = _workers(task, model, spec, where, min(runs, size))

    def train(block: int, stop: Event) -> Block:
        count = min(size, runs - starts[block])
        return _train_block(task, model, canary, spec, count, observed, metrics, seed, block, where, stop)

    blocks: dict[int, Block] = {}
    with (
        tqdm(total=runs, unit="model", desc=f"{canary.scenario} on {task.name}", disable=not progress) as bar,
        _devices.matmul_precision(matmul_precision),
        closing(_devices.side_by_side(train, len(starts), workers)) as results,
    ):
        for block, result in results:
            blocks[block] = result
            bar.update(len(result["bit"]))

    names = blocks[0]
    found = {name: np.concatenate([blocks[i][name] for i in sorted(blocks) if name in blocks[i]]) for name in names}
    for name, values in found.items():
        if not np.isfinite(values).all():
            wrong = f"{int((~np.isfinite(values)).sum())} numbers of {name!r} are not finite"
            raise ValueError(f"spec must be such that training does not diverge: {wrong}")

    attrs = {
        "scenario": canary.scenario,
        "adjacency": canary.adjacency,
        "task": task.name,
        "task_fingerprint": task.fingerprint,
        "n": len(task.y_train),
        "model": repr(model),
        **asdict(spec),
        "runs": runs,
        "observe_every": observe_every,
        "metrics": " ".join(metrics),
        "seed": seed,
        "block_size": size,
        "slot": canary.slot,
        "canary_fingerprint": canary.fingerprint,
        **{f"canary_{name}": value for name, value in canary.details.items()},
        "device": torch.cuda.get_device_name(where) if where.type == "cuda" else where.type,
        "matmul_precision": matmul_precision,
    }
    dataset = _dataset.build(found["score"], found["bit"], observed, libraries=("torch",), **attrs)
    dims = {"accuracy": ("measured", "step"), "gradient": ("run", "step"), "weights": ("run", "parameter")}
    for name in metrics:
        dataset[name] = (dims[name], found[name], {"long_name": METRICS[name]})
    return dataset.assign_coords(measured=np.arange(len(found["accuracy"]))) if "accuracy" in metrics else dataset


def _train_block(
    task: Task,
    model: Model,
    canary: CanaryPair,
    spec: DPSGD,
    runs: int,
    observed: list[int],
    metrics: tuple[str, ...],
    seed: int,
    block: int,
    device: torch.device,
    stop: Event,
) -> Block:
    bits = stream(seed, "audit", block).integers(0, 2, block_size(model), dtype=np.int8)[:runs]
    generator = torch.Generator(device).manual_seed(torch_seed(seed, "audit", block))
    everywhere = "accuracy" in metrics or "weights" in metrics
    bank = Bank(model, task, spec, bits=bits, generator=generator, canary=canary, within_span=not everywhere)
    measured = min(ACCURACY_RUNS, runs) if "accuracy" in metrics and block == 0 else 0
    x_test = torch.as_tensor(task.x_test if measured else task.x_test[:0], device=device)
    y_test = torch.as_tensor(task.y_test, device=device)

    seen: dict[str, list[Tensor]] = {"score": [], "gradient": [], "accuracy": []}
    due = set(observed)
    for step in range(1, spec.steps + 1):
        if stop.is_set():
            break
        gradient = bank.watch_gradient() if "gradient" in metrics and step in due else None
        bank.advance()
        if step in due:
            seen["score"].append(bank.scores())
            if gradient is not None:
                seen["gradient"].append(gradient())
            if measured:
                seen["accuracy"].append(bank.accuracy(x_test, y_test, measured))
    found: Block = {name: torch.stack(values, dim=1).cpu().numpy() for name, values in seen.items() if values}
    if "weights" in metrics:
        found["weights"] = model.flat(bank.theta).cpu().numpy()
    return {"bit": bits, **found}


def _workers(task: Task, model: Model, spec: DPSGD, device: torch.device, runs: int) -> int:
    """How many blocks of so many runs train side by side: a thread each, as many as the memory holds."""
    needed, free = block_bytes(model, task, spec, device, runs), _devices.free_bytes(device)
    if needed > free:
        raise ValueError(
            f"model and task must fit the memory: a block of {runs} models of {model.parameters} "
            f"parameters on {len(task.y_train)} records takes about {needed / 2**30:.1f} GiB, and {free / 2**30:.1f} "
            f"GiB are free on {device}: free some, or use a smaller model, fewer records or a larger device"
        )
    return 1 if device.type == "cuda" else min(torch.get_num_threads(), free // needed)


def _metrics(metrics: Sequence[str], task: Task) -> tuple[str, ...]:
    if isinstance(metrics, str) or not isinstance(metrics, Iterable):
        raise ValueError(f'metrics must be a sequence of names, got {metrics!r}; for one, ("accuracy",)')
    chosen = tuple(dict.fromkeys(_checks.choice("metrics", name, tuple(METRICS)) for name in metrics))
    if "accuracy" in chosen and not len(task.y_test):
        raise ValueError('metrics must not name "accuracy" for a task without test records: give x_test and y_test')
    return chosen


def _check_fit(task: Task, model: Model, canary: CanaryPair, spec: DPSGD) -> None:
    check_task(task)
    check_fits(model, task)
    for name, value, kind in (("canary", canary, CanaryPair), ("spec", spec, DPSGD)):
        if not isinstance(value, kind):
            raise ValueError(f"{name} must be a dpsub.{kind.__name__}, got a {type(value).__name__}")
    if canary.task is not None and canary.task != task.fingerprint:
        raise ValueError(
            f"canary must be crafted for this task, {task!r}: its private records are others; craft it anew"
        )
    if not 0 <= canary.slot < len(task.y_train):
        raise ValueError(f"canary.slot must be one of the {len(task.y_train)} private records, got {canary.slot}")

    def norm(gradient: NDArray[np.float32]) -> float:
        return float(np.linalg.norm(gradient.astype(np.float64)))

    for name, world in (("z", canary.z), ("z_prime", canary.z_prime)):
        if isinstance(world, Record):
            if world.x.shape != task.x_train.shape[1:] or world.y >= task.num_classes:
                raise ValueError(
                    f"canary.{name} must be a record like the task's, features {task.x_train.shape[1:]} and a label "
                    f"below {task.num_classes}, got {world.x.shape} and {world.y}"
                )
        elif world is not None and world.shape != (model.parameters,):
            raise ValueError(f"canary.{name} must have shape ({model.parameters},) for {model!r}, got {world.shape}")
        elif world is not None and not norm(world) <= spec.max_grad_norm * (1 + 1e-6):
            raise ValueError(
                f"canary.{name} must have norm <= max_grad_norm = {spec.max_grad_norm:g}, got {norm(world):g}"
            )
