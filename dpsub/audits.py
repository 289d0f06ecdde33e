r"""Algorithm 1: craft, train by the thousand, score."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import xarray as xr
from numpy.typing import NDArray
from tqdm.auto import tqdm

from dpsub import _checks, _cluster, _devices, _random
from dpsub._plans import Arrays, Made, Memory, Plan, Shard, joined, made_on, train_shard, workers
from dpsub.canaries import CanaryPair, Record
from dpsub.crafters import BY_SCENARIO
from dpsub.data import Task, check_task
from dpsub.dpsgd import DPSGD
from dpsub.models import Model, check_fits

if TYPE_CHECKING:
    from dpsub._stores import Store

METRICS = ("accuracy", "distance", "gradient", "weights")


def audit(
    task: Task,
    model: Model,
    canary: CanaryPair | Sequence[CanaryPair],
    spec: DPSGD,
    *,
    runs: int,
    observe_every: int = 1,
    repeats: int = 1,
    metrics: Sequence[str] = (),
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
    plan = _plan(task, model, canary, spec, runs, observe_every, repeats, metrics, seed, matmul_precision)
    _checks.choice("device", device, _devices.NAMES)
    place: Memory | Store = Memory(plan)
    if store is not None:
        from dpsub._stores import Store  # zarr takes a quarter of a second to import

        place = Store(_folder(store), plan, repair=repair)
    if place.missing:
        try:
            _train(place, device, client, allow_mix, progress)
        except (KeyboardInterrupt, SystemExit) as interruption:  # dask-jobqueue makes Ctrl-C the second
            if store is None:
                raise
            total = plan.runs * plan.repeats
            done = total - sum(shard.stop - shard.start for shard in place.missing)
            told = f"{done:,} of {total:,} models are in {store}; the same call goes on from there"
            raise type(interruption)(told) from None
    elif not isinstance(place, Memory):
        place.mend()
    return place.dataset()


class Status(NamedTuple):
    """How far a stored audit is.

    Attributes:
        store: its folder.
        audit: what it audits, in words.
        models: how many there will be, over all repeats; 0 where damage leaves that unknown.
        stored: how many there are, whole.
        damaged: files that are not what was written, and what is wrong with each.
        being_written: whether a process is at it, as far as the file system can tell.
        device, commit: that the shards come from, all of them.
        wall_seconds: of the sessions that wrote them, each up to its last shard.
    """

    store: Path
    audit: str
    models: int
    stored: int
    damaged: dict[str, str]
    being_written: bool
    device: str
    commit: str
    wall_seconds: float

    @property
    def complete(self) -> bool:
        """Whether all models are there, and nothing is damaged."""
        return self.stored == self.models and not self.damaged

    def __str__(self) -> str:
        state = "complete" if self.complete else "being written" if self.being_written else "not complete"
        made = f", {self.wall_seconds:,.0f} s on {self.device}, commit {self.commit}" if self.stored else ""
        damaged = "".join(f"\n  damaged: {name} {problem}" for name, problem in self.damaged.items())
        return f"{self.store}: {self.audit}, {self.stored:,} of {self.models:,} models, {state}{made}{damaged}"


def load(store: str | os.PathLike[str]) -> xr.Dataset:
    """A complete stored audit, every checksum computed again, without the task, model and canary that it takes to run.

    Returns:
        What `audit` returned.

    Raises:
        ValueError: if there is no audit in this folder, or it is damaged or not complete.
    """
    from dpsub import _stores

    return _stores.read(_folder(store))


def status(store: str | os.PathLike[str]) -> Status:
    """How far a stored audit is, and whether all of it is what was written (every checksum is computed again).

    Raises:
        ValueError: if there is no audit in this folder.
    """
    from dpsub._contents import Contents
    from dpsub._stores import is_taken

    path = _folder(store)
    contents = Contents(path)
    if not contents.begun:
        raise ValueError(f"store must be an audit's folder, got {path}, where there is none")
    about, made = contents.attributes, [entry.made for entry in contents.entries.values()]
    return Status(
        store=path,
        audit=f"{about['scenario']} on {about['task']}" if about else "unknown",
        models=about["runs"] * about["repeats"] if about else 0,
        stored=contents.models,
        damaged=contents.damaged,
        being_written=is_taken(path),
        device=joined(each.device for each in made),
        commit=joined(each.commit for each in made),
        wall_seconds=contents.wall_seconds,
    )


def sweep(
    task: Task,
    model: Model,
    specs: Mapping[str, DPSGD],
    *,
    scenarios: Mapping[str, Callable[..., CanaryPair]] = BY_SCENARIO,
    seed: int = 0,
    results: str | os.PathLike[str] | None = None,
    **options: Any,
) -> dict[tuple[str, str], xr.Dataset]:
    """Audit every scenario under every spec: the panels of a figure.

    Each canary is crafted once for each spec, with `seed`, and audited with the same seed.

    Args:
        task, model: as in `audit`.
        specs: by label, such as "q = 0.25": the DP-SGD parameters of each panel.
        scenarios: by name, the crafters; S2 to S5 by default.
        seed: of crafters and audits.
        results: a folder to keep the audits in, one store each ("q=0.25-S2.zarr"); None keeps nothing.
        options: of `audit`.

    Returns:
        The audits by label and scenario.

    >>> from dpsub import DPSGD, audits, data, models
    >>> task = data.digits(n_train=20)
    >>> specs = {f"q = {q:g}": DPSGD(1.0, 1.0, q, 2, 0.1) for q in (0.5, 1.0)}
    >>> found = audits.sweep(task, models.linear(task), specs, runs=4, progress=False)
    >>> len(found), ("q = 0.5", "S4") in found
    (8, True)
    """
    found = {}
    for label, spec in specs.items():
        for scenario, craft in scenarios.items():
            store = None if results is None else Path(results, f"{_file_name(label)}-{scenario}.zarr")
            canary = craft(task, model, spec, seed=seed)
            found[label, scenario] = audit(task, model, canary, spec, seed=seed, store=store, **options)
    return found


def load_all(
    folder: str | os.PathLike[str], *, label: str = "q = {sample_rate:g}"
) -> dict[tuple[str, str], xr.Dataset]:
    """All audits of a folder, by label and scenario: what `sweep` returned when it kept them.

    Args:
        folder: where the stores are, `*.zarr`.
        label: a format of the audits' attributes, by which they are told apart.

    Raises:
        FileNotFoundError: if there are none.
        ValueError: if one is damaged or not complete, or two have the same label and scenario.
    """
    found: dict[tuple[str, str], xr.Dataset] = {}
    for path in sorted(Path(folder).expanduser().glob("*.zarr*")):
        one = load(path)
        key = label.format(**one.attrs), one.attrs["scenario"]
        if key in found:
            raise ValueError(f"label must tell the audits in {folder} apart, got {key} for two of them: {label!r}")
        found[key] = one
    if not found:
        raise FileNotFoundError(
            f"folder must hold audits, *.zarr, got {Path(folder).absolute()} without any: those of the book are in "
            "results/ of dpsub's repository, and notebooks look for them from notebooks/"
        )
    return found


def _file_name(label: str) -> str:
    """Of a label, in letters that any file system takes: "η = 0.1" is "eta=0.1"."""
    name = "".join({"η": "eta", "σ": "sigma", "ε": "epsilon", "δ": "delta"}.get(c, c) for c in label if c != " ")
    if not re.fullmatch(r"[A-Za-z0-9=.,_+-]+", name):
        raise ValueError(f"specs must have labels of letters, digits and =.,_+-, for file names, got {label!r}")
    return name


def repeat_seeds(seed: int, repeats: int) -> list[int]:
    """The seeds of the repeats of `audit(seed=seed, repeats=repeats)`, the first of them `seed` itself.

    An audit with `seed=repeat_seeds(seed, repeats)[i]` is the i-th repeat by itself. To craft the canary anew for each:
    `[crafters.gradient(task, model, spec, seed=s) for s in repeat_seeds(seed, repeats)]`.

    >>> repeat_seeds(7, 1)
    [7]
    """
    return _random.repeat_seeds(_checks.whole("seed", seed, at_least=0), _checks.whole("repeats", repeats))


def _folder(store: str | os.PathLike[str]) -> Path:
    """Where it is now, whatever folder the process is in later."""
    if not isinstance(store, str | os.PathLike) or not os.fspath(store) or "://" in os.fspath(store):
        raise ValueError(f"store must be a path in the file system, got {store!r}")
    return Path(store).expanduser().resolve()


def _train(place: Memory | Store, device: str, client: Any, allow_mix: bool, progress: bool) -> None:
    """Train what is missing, here or on a cluster, and put it in its place."""
    with ExitStack() as stack:
        if client is None:
            where = _devices.device(device)
            at_once = workers(place.plan, where)
            expected = [made_on(where)]
        else:
            client = stack.enter_context(_cluster.connected(client))
            expected = _cluster.kinds(client, device)
        for made in expected:
            _check_kind(place.made, made, allow_mix)
        stack.enter_context(place.writing())
        plan, missing = place.plan, place.missing
        if client is None:
            trained = _trained_here(plan, missing, where, at_once)
        else:
            trained = _cluster.trained(client, plan, missing, device)
        bars = stack.enter_context(_Bars(plan, missing, progress))
        if not expected:
            bars.models.set_postfix_str("waiting for workers")
        for shard, arrays, made in stack.enter_context(closing(trained)):
            _check_kind(place.made, made, allow_mix)
            place.write(shard, arrays, made)
            bars.count(shard)


def _trained_here(
    plan: Plan, shards: list[Shard], device: torch.device, at_once: int
) -> Generator[tuple[Shard, Arrays, Made]]:
    def train(shard: Shard, stop: Event) -> tuple[Arrays, Made]:
        begin = time.monotonic()
        arrays = train_shard(plan, shard, device, stop)
        return arrays, made_on(device, time.monotonic() - begin)

    with (
        _devices.matmul_precision(plan.matmul_precision),
        closing(_devices.side_by_side(train, shards, at_once)) as results,
    ):
        for shard, (arrays, made) in results:
            yield shard, arrays, made


class _Bars:
    """Models per second and the time left; where there are repeats, a second bar that counts them."""

    def __init__(self, plan: Plan, missing: list[Shard], progress: bool) -> None:
        self._left = [sum(shard.repeat == repeat for shard in missing) for repeat in range(plan.repeats)]
        done, total = self._left.count(0), plan.runs * plan.repeats
        self._repeats = tqdm(
            total=plan.repeats, initial=done, unit=" repeats", desc="repeats", disable=not progress or plan.repeats == 1
        )
        self.models = tqdm(
            total=total,
            initial=total - sum(shard.stop - shard.start for shard in missing),
            unit=" models",
            desc=f"{plan.canaries[0].scenario} on {plan.task.name}",
            disable=not progress,
        )

    def __enter__(self) -> _Bars:
        return self

    def __exit__(self, *_: object) -> None:
        self.models.close()
        self._repeats.close()

    def count(self, shard: Shard) -> None:
        self.models.set_postfix_str("", refresh=False)
        self.models.update(shard.stop - shard.start)
        self._left[shard.repeat] -= 1
        self._repeats.update(self._left[shard.repeat] == 0)


def _check_kind(others: list[Made], made: Made, allow_mix: bool) -> None:
    for other in others:
        if other.kind != made.kind and not allow_mix:
            told = "".join(f"\n  {name}: {other.kind[name]}, now {value}" for name, value in made.kind.items())
            raise ValueError(
                f"device and versions must be those that the other shards come from:{told}\n"
                "use these, or audit(..., allow_mix=True), which records both: numbers are the same for one kind only"
            )


def _plan(
    task: Task,
    model: Model,
    canary: CanaryPair | Sequence[CanaryPair],
    spec: DPSGD,
    runs: int,
    observe_every: int,
    repeats: int,
    metrics: Sequence[str],
    seed: int,
    matmul_precision: str,
) -> Plan:
    check_task(task)
    check_fits(model, task)
    if not isinstance(spec, DPSGD):
        raise ValueError(f"spec must be a dpsub.DPSGD, got a {type(spec).__name__}")
    repeats = _checks.whole("repeats", repeats)
    canaries = tuple(canary) if isinstance(canary, Sequence) else (canary,)
    for each in canaries:
        _check_canary(task, model, each, spec)
    if isinstance(canary, Sequence) and len(canaries) != repeats:
        raise ValueError(f"canary must be one for all repeats, or one for each of the {repeats}, got {len(canaries)}")
    if len({(each.scenario, each.adjacency, each.score, *sorted(each.details)) for each in canaries}) > 1:
        raise ValueError("canary must be of one scenario and adjacency in all repeats, crafted in one way")
    runs = _checks.whole("runs", runs)
    observe_every = _checks.whole("observe_every", observe_every)
    if observe_every > spec.steps:
        raise ValueError(f"observe_every must be <= spec.steps = {spec.steps}, got {observe_every}")
    return Plan(
        task=task,
        model=model,
        canaries=canaries,
        spec=spec,
        runs=runs,
        observe_every=observe_every,
        metrics=_metrics(metrics, task),
        seeds=tuple(repeat_seeds(seed, repeats)),
        matmul_precision=_checks.choice("matmul_precision", matmul_precision, tuple(_devices.PRECISIONS)),
    )


def _metrics(metrics: Sequence[str], task: Task) -> tuple[str, ...]:
    if isinstance(metrics, str) or not isinstance(metrics, Iterable):
        raise ValueError(f'metrics must be a sequence of names, got {metrics!r}; for one, ("accuracy",)')
    chosen = tuple(dict.fromkeys(_checks.choice("metrics", name, METRICS) for name in metrics))
    if "accuracy" in chosen and not len(task.y_test):
        raise ValueError('metrics must not name "accuracy" for a task without test records: give x_test and y_test')
    return chosen


def _check_canary(task: Task, model: Model, canary: CanaryPair, spec: DPSGD) -> None:
    if not isinstance(canary, CanaryPair):
        raise ValueError(f"canary must be a dpsub.CanaryPair, got a {type(canary).__name__}")
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
