r"""Algorithm 1: craft, train by the thousand, score."""

from __future__ import annotations

import numpy as np
import torch
import xarray as xr
from tqdm.auto import tqdm

from dpsub import _checks, _dataset
from dpsub._random import stream
from dpsub.canaries import CanaryPair
from dpsub.data import Task
from dpsub.dpsgd import DPSGD
from dpsub.models import Linear
from dpsub.trainers import Bank

BLOCK = 256


def audit(
    task: Task,
    model: Linear,
    canary: CanaryPair,
    spec: DPSGD,
    *,
    runs: int,
    observe_every: int = 1,
    seed: int = 0,
    device: str = "auto",
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
        seed: runs come in blocks of 256, each with a stream of its own: the same numbers on the same kind of
            device, number of threads and versions.
        device: "auto" (CUDA if there is any), "cpu" or "cuda".
        progress: show a progress bar.

    Returns:
        `score` (run, step) float32, higher speaks for z; `bit` (run,) int8, 0 for z and 1 for z′; `step`, the number
        of steps taken. The attributes say everything that is needed to run it again.

    Raises:
        ValueError: if an argument is out of range, if model or canary do not fit the task, or if a gradient canary is
            longer than max_grad_norm, so that the accountants' promise would not cover it.

    Source: *Beyond Membership*, Algorithm 1.
    """
    runs = _checks.whole("runs", runs)
    observe_every = _checks.whole("observe_every", observe_every)
    if observe_every > spec.steps:
        raise ValueError(f"observe_every must be <= spec.steps = {spec.steps}, got {observe_every}")
    seed = _checks.whole("seed", seed, at_least=0)
    _check_fit(task, model, canary, spec)
    where = _device(device)

    observed = sorted({*range(observe_every, spec.steps + 1, observe_every), spec.steps})
    scores = np.empty((runs, len(observed)), dtype=np.float32)
    bits = np.empty(runs, dtype=np.int8)
    with tqdm(total=runs, unit="model", desc=f"{canary.scenario} on {task.name}", disable=not progress) as bar:
        for block, start in enumerate(range(0, runs, BLOCK)):
            here = slice(start, min(start + BLOCK, runs))
            bits[here], scores[here] = _train_block(
                task,
                model,
                canary,
                spec,
                size=here.stop - start,
                observed=observed,
                seed=seed,
                block=block,
                device=where,
            )
            bar.update(here.stop - start)

    if np.isnan(scores).any():
        raise ValueError(
            f"spec must be such that training does not diverge: {int(np.isnan(scores).sum())} scores are NaN"
        )

    return _dataset.build(
        scores,
        bits,
        observed,
        libraries=("torch",),
        scenario=canary.scenario,
        adjacency=canary.adjacency,
        task=task.name,
        n=len(task.y_train),
        model=repr(model),
        **{name: getattr(spec, name) for name in spec.__dataclass_fields__},
        runs=runs,
        observe_every=observe_every,
        seed=seed,
        block_size=BLOCK,
        slot=canary.slot,
        **canary.details,
        device=torch.cuda.get_device_name(where) if where.type == "cuda" else where.type,
        threads=torch.get_num_threads(),
    )


def _train_block(
    task: Task,
    model: Linear,
    canary: CanaryPair,
    spec: DPSGD,
    *,
    size: int,
    observed: list[int],
    seed: int,
    block: int,
    device: torch.device,
) -> tuple[np.ndarray, np.ndarray]:
    rng = stream(seed, "audit", block)
    bits = rng.integers(0, 2, BLOCK, dtype=np.int8)[:size]
    generator = torch.Generator(device).manual_seed(int(rng.integers(2**63)))
    bank = Bank(model, task, spec, bits=bits, canary=canary, device=device)
    due = set(observed)
    scores = [bank.scores() for step in bank.train(generator) if step in due]
    return bits, torch.stack(scores, dim=1).cpu().numpy()


def _device(name: str) -> torch.device:
    _checks.choice("device", name, ("auto", "cpu", "cuda"))
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError('device "cuda" was asked for, but torch finds no CUDA device: use "auto" or "cpu"')
    return torch.device(name)


def _check_fit(task: Task, model: Linear, canary: CanaryPair, spec: DPSGD) -> None:
    model.check_fits(task)
    if not 0 <= canary.slot < len(task.y_train):
        raise ValueError(f"canary.slot must be one of the {len(task.y_train)} private records, got {canary.slot}")
    for name, gradient in (("z", canary.z), ("z_prime", canary.z_prime)):
        if gradient.shape != (model.parameters,):
            raise ValueError(f"canary.{name} must have shape ({model.parameters},) for {model!r}, got {gradient.shape}")
        norm = float(np.linalg.norm(gradient))
        if not norm <= spec.max_grad_norm * (1 + 1e-6):
            raise ValueError(f"canary.{name} must have norm <= max_grad_norm = {spec.max_grad_norm:g}, got {norm:g}")
