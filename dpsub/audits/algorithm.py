r"""Algorithm 1: train by the thousand, score."""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, closing
from threading import Event
from typing import Any

import torch
import xarray as xr

from dpsub._core import DPSGD, CanaryPair, checks
from dpsub.audits import cluster
from dpsub.audits.arguments import plan_of
from dpsub.audits.observers import Observer
from dpsub.audits.origins import Made, made_on
from dpsub.audits.places import Memory, Place
from dpsub.audits.plans import Plan, Shard
from dpsub.audits.progress import Bars
from dpsub.audits.reading import located
from dpsub.audits.shards import Arrays, train_shard, workers
from dpsub.data import Task
from dpsub.models import Model
from dpsub.trainers import devices


def audit(
    task: Task,
    model: Model,
    canary: CanaryPair | Sequence[CanaryPair],
    spec: DPSGD,
    *,
    runs: int,
    observe_every: int = 1,
    repeats: int = 1,
    metrics: Sequence[str | Observer] = (),
    coordinates: str = "auto",
    seed: int = 0,
    device: str = "auto",
    matmul_precision: str = "highest",
    store: str | os.PathLike[str] | None = None,
    repair: bool = False,
    allow_mix: bool = False,
    client: Any = None,
    progress: bool = True,
) -> xr.Dataset:
    r"""Train `runs` models, each with z or z′ in the slot by a fair coin, and score them along the way.

    Each observed step stands for a model released then: the adversary sees its parameters, none before (the
    hidden-state threat model). The other n − 1 records are the same in both worlds; the slot is sampled with
    probability q at each step by a coin of the same law in both.

    Args:
        task, model, canary, spec: on what, what, which pair of worlds, how. One canary serves all repeats; a sequence
            of as many as there are repeats is for canaries that were crafted anew, each with its seed of
            `repeat_seeds`. The attributes say which (`canary_crafted`).
        runs: R ≥ 1, in all, of each repeat.
        observe_every: score every so many steps, and at the last step always.
        repeats: audits of their own, with seeds spawned from `seed` (`repeat_seeds`, and `seeds` in the attributes),
            the first with `seed` itself. `estimators.over_repeats` makes a mean and an error of their bounds.
        metrics: what else to observe. "accuracy", on the test set, of the first runs, 8 at most, at the observed steps.
            "distance", ‖g_z − g_z′‖/2C of the two canaries' gradients, a record's clipped, in the models observed: at
            most 1, or 0.5 beside an empty slot, as the accountants assume; less where gradients are shorter than C or
            not opposite. "gradient", at the observed steps of all runs: ⟨g_z, privatised sum⟩/C², what an adversary
            sees who watches the steps (`Bank.watch_gradient`); all of them, to be summed, only with observe_every=1.
            "weights", the parameters of all runs after the last step, each a vector that `model.module(parameters)`
            makes a `torch.nn.Module` of. With "accuracy" or "weights" a linear head trains in all its coordinates
            instead of those that the records span (`Linear.within_span`): the numbers are others, of the same law.
        seed: runs come in blocks (`block_size` in the attributes; it depends on the model alone), each with a stream
            of its own: the same numbers on the same kind of device, with the same versions and arguments, however
            many threads, workers or interruptions, or whatever memory there are.
        device: "auto" (CUDA if there is any), "cpu" or "cuda". On a CPU, as many blocks train side by side as torch
            may use threads, one thread each.
        matmul_precision: "highest" is float32. "high" and "medium" let a device that can multiply in TF32 or bfloat16,
            which is faster and rounds parameters and records to 11 or 8 bits: another mechanism than the one accounted
            for, though what the audit finds may hardly change.
        store: a folder to keep the audit in, by custom `….zarr`. What is finished is written there at once, in shards
            of whole blocks; the same call goes on from what is there, or reads it if nothing is missing, on any device.
            `status` says how far it is; `xarray.open_zarr` opens it, with NaN and bits of −1 for what is not there yet.
            One process at a time may write it (`flock`, which some network file systems do not know). A noise
            multiplier within 1e-6 of the stored one, and a canary within 1e-3 of its norm, count as the same, since
            another machine computes them a little differently; the stored ones are used.
        repair: write again what is damaged in the store, trained again if need be. Without it, damage is an error.
        allow_mix: go on with a store that was begun on another kind of device (GPU, or instructions of a CPU), or with
            another version of torch or dpsub, and record both. The law stays, the numbers are those of no one machine.
        client: a `dask.distributed.Client`, or a scheduler's address: its workers train the shards, with one torch
            thread to each of their threads and one GPU to each worker; this process alone writes. A worker that dies
            costs the shards that it was training. A script that starts a LocalCluster does so under
            `if __name__ == "__main__":`, since the workers import it.
        progress: show a progress bar.

    Returns:
        `score` (run, step) float32, higher speaks for z; `bit` (run,) int8, 0 for z and 1 for z′; `step`, the number
        of steps taken; `accuracy` (measured, step), with the runs that were measured as its coordinate; `distance` and
        `gradient` (run, step); `weights` (run, parameter). With repeats > 1, each with a leading `repeat`. The
        attributes say what made it: parameters, seed and versions, and checksums of task, canary and fixed start to
        know these by; of a stored audit also commit, wall time and the devices that took part.

    Raises:
        ValueError: before any training, if an argument is out of range, a feature is not finite or a label not in
            0 … num_classes − 1, if model or canary do not fit the task, if a gradient canary is longer than
            max_grad_norm, so that the accountants' promise would not cover it, or if the memory does not suffice for
            one block; if the store is something else's folder, another audit, damaged, of another format or kind of
            device; after some training, if it diverged.
        OSError: with the path, if the store cannot be written or another process is writing it. ConnectionError, one of
            them, if no scheduler answers. What was stored before stays.
        KeyboardInterrupt: on Ctrl-C, once what is being written is written.

    Source: *Beyond Membership*, Algorithm 1.
    """
    plan = plan_of(
        task,
        model,
        canary,
        spec,
        runs=runs,
        observe_every=observe_every,
        repeats=repeats,
        metrics=metrics,
        coordinates=coordinates,
        seed=seed,
        matmul_precision=matmul_precision,
    )
    checks.choice("device", device, devices.NAMES)
    place: Place = Memory(plan)
    if store is not None:
        from dpsub.audits.stores import Store  # zarr takes a quarter of a second to import

        place = Store(located(store), plan, repair=repair)
    if not place.missing:
        place.settle()
        return place.dataset()
    try:
        _train(place, device, client, allow_mix, progress)
    except (KeyboardInterrupt, SystemExit) as interruption:  # dask-jobqueue makes Ctrl-C the second
        if store is None:
            raise
        total = plan.runs * plan.repeats
        done = total - sum(shard.stop - shard.start for shard in place.missing)
        told = f"{done:,} of {total:,} models are in {store}; the same call goes on from there"
        raise type(interruption)(told) from None
    return place.dataset()


def _train(place: Place, device: str, client: Any, allow_mix: bool, progress: bool) -> None:
    """Train what is missing, here or on a cluster, and put it in its place."""
    with ExitStack() as stack:
        if client is None:
            where = devices.device(device)
            at_once = workers(place.plan, where)
            expected = [made_on(where)]
        else:
            client = stack.enter_context(cluster.connected(client))
            expected = cluster.kinds(client, device)
        for made in expected:
            _check_kind(place.made, made, allow_mix)
        writer = stack.enter_context(place.writing())
        plan, missing = writer.plan, writer.missing
        if client is None:
            trained = _trained_here(plan, missing, where, at_once)
        else:
            trained = cluster.trained(client, plan, missing, device)
        bars = stack.enter_context(Bars(plan, missing, progress))
        if not expected:
            bars.models.set_postfix_str("waiting for workers")
        for shard, arrays, made in stack.enter_context(closing(trained)):
            _check_kind(writer.made, made, allow_mix)
            writer.write(shard, arrays, made)
            bars.count(shard)


def _trained_here(
    plan: Plan, shards: list[Shard], device: torch.device, at_once: int
) -> Generator[tuple[Shard, Arrays, Made]]:
    def train(shard: Shard, stop: Event) -> tuple[Arrays, Made]:
        begin = time.monotonic()
        arrays = train_shard(plan, shard, device, stop)
        return arrays, made_on(device, time.monotonic() - begin)

    with (
        devices.matmul_precision(plan.matmul_precision),
        closing(devices.side_by_side(train, shards, at_once)) as results,
    ):
        for shard, (arrays, made) in results:
            yield shard, arrays, made


def _check_kind(others: list[Made], made: Made, allow_mix: bool) -> None:
    for other in others:
        if other.kind != made.kind and not allow_mix:
            told = "".join(f"\n  {name}: {other.kind[name]}, now {value}" for name, value in made.kind.items())
            raise ValueError(
                f"device and versions must be those that the other shards come from:{told}\n"
                "use these, or audit(..., allow_mix=True), which records both: numbers are the same for one kind only"
            )
