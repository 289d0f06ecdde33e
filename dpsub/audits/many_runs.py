r"""Algorithm 1: train models in both worlds, and score them."""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, closing
from functools import partial
from threading import Event
from typing import Any

import torch
import xarray as xr

from dpsub._core import DPSGD, CanaryPair, checks
from dpsub.audits import cluster
from dpsub.audits.any_plans import BankPlan
from dpsub.audits.checked_arguments import check_told_apart, plan_of
from dpsub.audits.destinations import Memory, Place
from dpsub.audits.observers import Observer
from dpsub.audits.plans import Arrays, Plan, Shard
from dpsub.audits.progress import Bars
from dpsub.audits.shard_provenance import Made, made_on
from dpsub.audits.shards import train_shard, workers
from dpsub.audits.stored_audits import located
from dpsub.audits.training_plans import TrainingPlan
from dpsub.audits.twin_lessons import learn
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
    score: str = "canary",
    learning_runs: int = 256,
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

    Each observed step stands for a model that is released then: the adversary sees its parameters and no earlier ones
    (the hidden-state threat model). The other n − 1 records are the same in both worlds. At each step the slot is
    sampled with probability q, by a coin of the same law in both worlds.

    Args:
        task: the training records.
        model: the architecture: one of `dpsub.models`, or anything that implements `dpsub.models.Model`.
        canary: the two worlds. One pair serves all repeats. A sequence holds one pair for each repeat, crafted anew
            with its seed of `repeat_seeds`. The attribute `canary_crafted` says which was given.
        spec: the DP-SGD parameters.
        runs: R ≥ 1: models of each repeat, both worlds together.
        observe_every: score after every `observe_every` steps, and always after the last one.
        repeats: independent audits. The first has `seed` itself, the others seeds spawned from it (`repeat_seeds`).
            `estimators.over_repeats` computes mean and error of their bounds.
        metrics: what to observe beside the scores: names, or `Observer` objects of your own.

            - "accuracy": on the test records, of the first 8 models at most, at the observed steps.
            - "distance": ‖g_z − g_z′‖/2C of the two canaries' gradients in each model, records' gradients clipped. It
              is at most 1, or 0.5 beside an empty slot. It is less where gradients are shorter than C or not opposite.
            - "gradient": ⟨g_z, privatised sum⟩/C² at the observed steps: what an adversary sees who watches the steps.
              To sum over all steps, set observe_every=1.
            - "weights": the parameters after the last step. `model.module(parameters)` makes a `torch.nn.Module` of
              one model's.
        score: what the worlds are told apart by.

            - "canary": the canary's own score (`CanaryPair.score`).
            - "learned": at each observed step, the linear discriminant of two features, the canary's score and the
              parameters along the mean effect of the canary. It is learned from models that are not judged, before the
              first that is, and stored with the audit.
        learning_runs: how many pairs of twins a learned score is learned from in each repeat, ≥ 32. Twins have the
            same start, batches and noise, one with z and one with z′.
        coordinates: "span" trains a linear head in the fewer coordinates that its records span, where that applies:
            the scores have the same law (`Model.within_span`). "all" trains in all coordinates. "auto" is "all" if a
            metric ("accuracy", "weights") or a learned score needs all parameters, else "span". The numbers of the two
            differ; the attributes say which was used.
        seed: of batches, noise, starts and coins. Runs come in blocks, each with its own stream of randomness. The
            block size depends on the model alone (attribute `block_size`). Arguments, versions and the kind of device
            determine the numbers; threads, workers, interruptions and memory do not.
        device: "auto" (CUDA if there is any), "cpu" or "cuda". On a CPU, several blocks train side by side, one thread
            each: as many as torch may use threads and the memory holds.
        matmul_precision: "highest" is float32. "high" and "medium" allow TF32 or bfloat16 on devices that have them.
            That is faster, and rounds parameters and records to 11 or 8 bits: another mechanism than the one accounted
            for, though the scores may hardly change.
        store: a folder for the audit, by convention `….zarr`. Finished shards are written there at once. The same call
            resumes from what is there, or reads it if nothing is missing, on any device. `status` tells how far it is;
            `xarray.open_zarr` opens it, with NaN and bits of −1 for what is not there yet; `pack` puts a finished
            audit into one file, which this argument takes as well. One process at a time may write (`flock`; some
            network file systems ignore it). Another machine computes noise multipliers and canaries slightly
            differently. So a noise multiplier or gradient within 1e-6 of the stored one counts as the same, and so does
            a record of the same label if each feature is within 1e-3 of its standard deviation in the private records.
            The stored ones are then used. A folder is written only if it holds nothing but the audit; files that
            systems make, such as .DS_Store, may be there. Links below it are refused.
        repair: train damaged shards of the store again. Without it, damage is an error. A folder or a link in the place
            of a file has to be moved away first.
        allow_mix: resume a store that was begun on another kind of device (GPU, or CPU instructions) or with another
            version of torch or dpsub, and record both. The law is unchanged, but no single machine reproduces the
            numbers.
        client: a `dask.distributed.Client`, or a scheduler's address. Its workers train the shards, one torch thread
            for each of their threads and one GPU for each worker; only this process writes. A worker that dies costs
            the shards it was training. A script that starts a LocalCluster must do so under
            `if __name__ == "__main__":`, since workers import it.
        progress: show a progress bar.

    Returns:
        A dataset with `score` (run, step) float32, higher speaks for z; `bit` (run,) int8, 0 for z and 1 for z′; and
        the metrics: `accuracy` (measured, step), `distance` and `gradient` (run, step), `weights` (run, parameter). The
        coordinate `step` is the number of steps taken. With repeats > 1 each variable has a leading dimension
        `repeat`. The attributes hold all parameters, the seed, the versions, and checksums of task, canary and fixed
        start; those of a stored audit also its commit, wall time and devices.

    Raises:
        ValueError: before any training, if an argument is out of range, a feature is not finite or a label not in
            0 … num_classes − 1; if model or canary do not fit the task; if a gradient canary is longer than
            max_grad_norm; if the memory does not hold one block; if the store is something else's folder, another
            audit, damaged, of another format or another kind of device; if the model or an observer holds what a store
            cannot tell apart, such as a lambda in a module that was not named. After some training, if it diverged.
        OSError: with the path, if the store cannot be written, or another process is writing it. Finished shards stay.
        ConnectionError: if no scheduler answers.
        KeyboardInterrupt: on Ctrl-C, after the shard being written is written.

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
        score=score,
        learning_runs=learning_runs,
        coordinates=coordinates,
        seed=seed,
        matmul_precision=matmul_precision,
    )
    return carried_out(
        plan, device=device, store=store, repair=repair, allow_mix=allow_mix, client=client, progress=progress
    )


def carried_out(
    plan: BankPlan,
    *,
    device: str,
    store: str | os.PathLike[str] | None,
    repair: bool,
    allow_mix: bool,
    client: Any,
    progress: bool,
) -> xr.Dataset:
    """Train what is missing of a plan, and return all of it. The arguments are those of `audit`."""
    checks.choice("device", device, devices.NAMES)
    for name, value in (("repair", repair), ("allow_mix", allow_mix), ("progress", progress)):
        checks.flag(name, value)
    place: Place = Memory(plan)
    if store is not None:
        from dpsub.audits.storage.store import Store  # zarr takes a quarter of a second to import

        check_told_apart(plan)
        place = Store(located(store), plan, repair=repair)
    if not place.missing and not _is_to_learn(place):
        place.settle()
        return place.dataset()
    try:
        _train(place, device, client, allow_mix, progress)
    except (KeyboardInterrupt, SystemExit) as interruption:  # dask-jobqueue turns Ctrl-C into SystemExit
        if store is None:
            raise
        total = plan.runs * plan.repeats
        done = total - sum(shard.stop - shard.start for shard in place.missing)
        message = f"{done:,} of {total:,} models are in {store}; the same call goes on from there"
        raise type(interruption)(message) from None
    return place.dataset()


def _train(place: Place, device: str, client: Any, allow_mix: bool, progress: bool) -> None:
    """Train the missing shards, here or on a cluster, and write them."""
    asked = place.plan
    assert not isinstance(asked, TrainingPlan)
    with ExitStack() as stack:
        if client is None:
            where = devices.device(device)
            at_once = workers(asked, where)
            expected = [made_on(where)]
        else:
            client = stack.enter_context(cluster.connected(client))
            expected = cluster.kinds(client, device)
        for made in expected:
            _check_kind(place.made, made, allow_mix)
        if _is_to_learn(place):
            assert isinstance(asked, Plan)
            place.take(learn(asked, device, client, progress=progress))
            if not place.missing:
                place.settle()
                return
        writer = stack.enter_context(place.writing())
        plan, missing = writer.plan, writer.missing
        assert not isinstance(plan, TrainingPlan)
        bars = stack.enter_context(Bars(plan, missing, progress))
        if client is None:
            trained = _trained_here(plan, missing, where, at_once, bars)
        else:
            trained = cluster.trained(client, plan, missing, device)
        if not expected:
            bars.models.set_postfix_str("waiting for workers")
        for shard, arrays, made in stack.enter_context(closing(trained)):
            _check_kind(writer.made, made, allow_mix)
            writer.write(shard, arrays, made)
            bars.count(shard)


def _is_to_learn(place: Place) -> bool:
    return isinstance(place.plan, Plan) and place.plan.is_to_learn


def _trained_here(
    plan: BankPlan, shards: list[Shard], device: torch.device, at_once: int, bars: Bars
) -> Generator[tuple[Shard, Arrays, Made]]:
    def train(shard: Shard, stop: Event) -> tuple[Arrays, Made]:
        begin = time.monotonic()
        arrays = train_shard(plan, shard, device, stop, partial(bars.tick, shard))
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
            kinds = "".join(f"\n  {name}: {other.kind[name]}, now {value}" for name, value in made.kind.items())
            raise ValueError(
                f"device and versions must be those of the audit's other shards:{kinds}\n"
                "use those, or audit(..., allow_mix=True), which records both: no single machine reproduces the numbers"
            )
