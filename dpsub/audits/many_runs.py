r"""Algorithm 1: train models in both worlds, and score them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from threading import Event
from typing import Any, ClassVar, Self, Unpack

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from dpsub._core import DPSGD, CanaryPair, checks, random_streams
from dpsub._core.datasets import LONG_NAMES
from dpsub._core.random_streams import stream, torch_seed
from dpsub.audits.bank_plans import PRECISION, BankPlan, canary_arrays, canary_attributes, check_canary, stored_canaries
from dpsub.audits.execution import Options, carried_out
from dpsub.audits.observers import Observer, Score, chosen, seen, watching
from dpsub.audits.plans import Arrays, Cut, Layout, Stopped, Tick, Variable, check_same
from dpsub.data import Task
from dpsub.models import Model, check_fits
from dpsub.trainers import assemble
from dpsub.trainers.assembly import COORDINATES

ONCE, EACH_REPEAT = "once", "anew for each repeat"  # the attribute `canary_crafted`


@checks.checked(
    "spec",
    "repeats",
    "runs",
    "seed",
    observe_every=checks.whole,
    coordinates=partial(checks.choice, options=("auto", *COORDINATES)),
    matmul_precision=PRECISION,
)
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
    matmul_precision: str = "highest",
    **options: Unpack[Options],
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
        coordinates: "span" trains a linear head in the fewer coordinates that its records span, where that applies:
            the scores have the same law (`Model.within_span`). "all" trains in all coordinates. "auto" is "all" if a
            metric ("accuracy", "weights") needs all parameters, else "span". The numbers of the two
            differ; the attributes say which was used.
        seed: of batches, noise, starts and coins. Runs come in blocks, each with its own stream of randomness. The
            block size depends on the model alone (attribute `block_size`). Arguments, versions and the kind of device
            determine the numbers; threads, workers, interruptions and memory do not.
        matmul_precision: "highest" is float32. "high" and "medium" allow TF32 or bfloat16 on devices that have them.
            That is faster, and rounds parameters and records to 11 or 8 bits: another mechanism than the one accounted
            for, though the scores may hardly change.
        options: where and how the audit runs. Its numbers depend on the kind of device alone.

            - `device`: "auto" (CUDA if there is any), "cpu" or "cuda". On a CPU, several blocks train side by side, one
              thread each: as many as torch may use threads and the memory holds.
            - `client`: a `dask.distributed.Client`, or a scheduler's address. Its workers train the shards, one torch
              thread for each of their threads; only this process writes. A worker that dies costs the shards it was
              training. With several GPUs on a machine, start one worker for each, which sees that GPU alone, by
              `CUDA_VISIBLE_DEVICES` or as dask-cuda's `LocalCUDACluster` does. A script that starts a LocalCluster must
              do so under `if __name__ == "__main__":`, since workers import it.
            - `store`: a file for the audit, by convention `….db`: an SQLite database. Finished shards are written there
              at once. The same call resumes from what is there, or reads it if nothing is missing, on any device.
              `status` tells how far it is, and `load(partial=True)` reads what is there. One process at a time may
              write. Another machine computes noise multipliers and canaries slightly differently. So a noise multiplier
              or gradient within 1e-6 of the stored one counts as the same, and so does a record of the same label if
              each feature is within 1e-3 of its standard deviation in the private records. The stored ones are then
              used.
            - `repair`: compute damaged shards of the store again. Without it, damage is an error.
            - `allow_mix`: resume a store that was begun on another kind of device (GPU, or CPU instructions) or with
              another version of torch or dpsub, and record both. The distribution is unchanged, but no single machine
              reproduces the numbers.
            - `progress`: show a progress bar.

    Returns:
        A dataset with `score` (run, step) float32, higher speaks for z; `bit` (run,) int8, 0 for z and 1 for z′; and
        the metrics: `accuracy` (measured, step), `distance` and `gradient` (run, step), `weights` (run, parameter). The
        coordinate `step` is the number of steps taken. With repeats > 1 each variable has a leading dimension
        `repeat`. The attributes hold all parameters, the seed, the versions, and checksums of task, canary and fixed
        start; those of a stored audit also its commit, wall time and devices.

    Raises:
        ValueError: before any training, if an argument is out of range, a feature is not finite or a label not in
            0 … num_classes − 1; if model or canary do not fit the task; if a gradient canary is longer than
            max_grad_norm; if the memory does not hold one block; if the store is some other file, another audit,
            damaged, of another format or another kind of device; if the model or an observer holds what a store cannot
            tell apart, such as a lambda in a module that was not named. After some training, if it diverged.
        OSError: with the path, if the store cannot be written, or another process is writing it. Finished shards stay.
        ConnectionError: if no scheduler answers.
        KeyboardInterrupt: on Ctrl-C. Finished shards are in the store.

    Source: *Beyond Membership*, Algorithm 1.
    """
    check_fits(model, task)
    canaries = tuple(canary) if isinstance(canary, Sequence) else (canary,)
    for each in canaries:
        checks.instance("canary", each, of=CanaryPair, called="a dpsub.CanaryPair")
        check_canary(task, model, each, spec)
    if isinstance(canary, Sequence) and len(canaries) != repeats:
        raise ValueError(f"canary must be one for all repeats, or one for each of the {repeats}, got {len(canaries)}")
    if len({(each.scenario, each.adjacency, each.score, *sorted(each.details)) for each in canaries}) > 1:
        raise ValueError("canary must be of one scenario and adjacency in all repeats, crafted in one way")
    if observe_every > spec.steps:
        raise ValueError(f"observe_every must be <= spec.steps = {spec.steps}, got {observe_every}")
    observers = chosen(metrics, task)
    plan = ManyRuns(
        task=task,
        model=model,
        canaries=canaries,
        spec=spec,
        runs=runs,
        observe_every=observe_every,
        observers=observers,
        coordinates=_coordinates(coordinates, observers),
        seeds=tuple(repeat_seeds(seed, repeats)),
        matmul_precision=matmul_precision,
    )
    plan.attributes  # noqa: B018, which refuses what stores could not tell apart
    return carried_out(plan, **options)


@dataclass(frozen=True, eq=False, kw_only=True)
class ManyRuns(BankPlan):
    """What an audit of many runs trains and observes.

    Attributes:
        canaries: one for all repeats, or one for each.
        observers: beside the scores.
        coordinates: "span" or "all".
        seeds: one for each repeat.
    """

    call: ClassVar[str] = "audit"

    canaries: tuple[CanaryPair, ...]
    observe_every: int
    observers: tuple[Observer, ...]
    coordinates: str
    seeds: tuple[int, ...]

    @property
    def repeats(self) -> int:
        return len(self.seeds)

    @property
    def title(self) -> str:
        return f"{self.canaries[0].scenario} on {self.task.name}"

    @cached_property
    def observed(self) -> list[int]:
        steps = self.spec.steps
        return sorted({*range(self.observe_every, steps + 1, self.observe_every), steps})

    def rows(self, observer: Observer) -> int:
        """How many models of a repeat this observer observes."""
        return self.runs if observer.most_runs is None else min(observer.most_runs, self.runs, self.block_size)

    @cached_property
    def layout(self) -> Layout:
        lead: dict[str, int] = {} if self.repeats == 1 else {"repeat": self.repeats}
        sizes = {"step": len(self.observed), "parameter": self.model.parameters}
        found = {"bit": Variable(lead | {"run": self.runs}, "int8", -1, LONG_NAMES["bit"])}
        indexes = {"step": np.array(self.observed), **({"repeat": np.arange(self.repeats)} if lead else {})}
        for one in (Score(), *self.observers):
            few = one.most_runs is not None
            shape = lead | {one.dims[0]: self.rows(one), one.dims[1]: sizes[one.dims[1]]}
            found[one.name] = Variable(shape, "float32", np.nan, one.long_name, of_first_shard=few)
            if few:
                indexes[one.dims[0]] = np.arange(self.rows(one))
        coordinates = {name: (name, values.astype(np.int64)) for name, values in indexes.items()}
        return Layout(Cut(self.runs, self.repeats, self.block_size), found, coordinates)

    @cached_property
    def attributes(self) -> dict[str, Any]:
        own = {
            "scenario": self.canaries[0].scenario,
            "adjacency": self.canaries[0].adjacency,
            "task": self.task.name,
            "task_fingerprint": self.task.fingerprint,
            "n": len(self.task.y_train),
            "model": repr(self.model),
            **self.spec.attributes,
            "runs": self.runs,
            "observe_every": self.observe_every,
            "repeats": self.repeats,
            "metrics": " ".join(one.name for one in self.observers),
            "trained_coordinates": self.coordinates,  # `coordinates` means something else to xarray
            "seed": self.seeds[0],
            **({"seeds": list(self.seeds)} if self.repeats > 1 else {}),
            "block_size": self.block_size,
            "matmul_precision": self.matmul_precision,
            **canary_attributes(self.canaries, ONCE if len(self.canaries) == 1 else EACH_REPEAT),
        }
        observed = {name: value for one in self.observers for name, value in one.attributes(self.task).items()}
        if taken := sorted(observed.keys() & own.keys()):
            raise ValueError(f"metrics must have attributes of other names than the audit's own, got {taken[0]!r}")
        return own | observed

    @property
    def arrays(self) -> Arrays:
        return canary_arrays(self.canaries)

    def resumed(self, attributes: Mapping[str, Any], arrays: Arrays) -> Self:
        plan = self.with_noise(attributes)
        plan = replace(plan, canaries=stored_canaries(self.canaries, self.task, attributes, arrays))
        check_same(attributes, plan.attributes)
        return plan

    @property
    def told_apart(self) -> tuple[Any, ...]:
        return (self.model, *self.observers)

    def canary(self, repeat: int) -> CanaryPair:
        return self.canaries[repeat if len(self.canaries) > 1 else 0]

    @property
    def copies(self) -> int:
        return max(Score.copies, *(one.copies for one in self.observers), 0)

    def block(self, repeat: int, block: int, device: torch.device, stop: Event, tick: Tick) -> Arrays:
        size, seed = self.block_size, self.seeds[repeat]
        runs = min(size, self.runs - block * size)
        bits = stream(seed, "audit", block).integers(0, 2, size, dtype=np.int8)[:runs]
        bank = assemble(
            self.model,
            self.task,
            self.spec,
            bits=bits,
            generator=torch.Generator(device).manual_seed(torch_seed(seed, "audit", block)),
            canary=self.canary(repeat),
            coordinates=self.coordinates,
        )
        # Observers of only some runs observe those of the first block.
        observers = [one for one in (Score(), *self.observers) if one.most_runs is None or block == 0]
        counts = {one.name: min(runs, self.rows(one)) for one in observers}
        watches = {one.name: watching(one, bank, self.task, counts[one.name]) for one in observers}
        observed, last = set(self.observed), {self.spec.steps}
        due = {one.name: observed if "step" in one.dims else last for one in observers}
        sizes = {one.name: () if "step" in one.dims else (self.model.parameters,) for one in observers}
        found: dict[str, list[Tensor]] = {name: [] for name in watches}
        for step in range(1, self.spec.steps + 1):
            if stop.is_set():
                raise Stopped
            looking = [one for one in observers if step in due[one.name]]
            for one in looking:
                watches[one.name].before_step()
            bank.advance()
            for one in looking:
                found[one.name].append(seen(one, watches[one.name], (counts[one.name], *sizes[one.name])))
        stacked = {
            one.name: torch.stack(found[one.name], dim=1) if "step" in one.dims else found[one.name][0]
            for one in observers
        }
        return {"bit": bits, **{name: values.cpu().numpy() for name, values in stacked.items()}}


def _coordinates(coordinates: str, observers: tuple[Observer, ...]) -> str:
    """Resolve "auto": "all" if an observer needs all coordinates, else "span"."""
    needing = [one.name for one in observers if one.all_coordinates]
    if coordinates == "span" and needing:
        raise ValueError(
            f"coordinates must be 'all' or 'auto' for the metrics {', '.join(needing)}, which need all of a model's "
            "parameters, got 'span'"
        )
    return coordinates if coordinates != "auto" else "all" if needing else "span"


@checks.checked("seed", "repeats")
def repeat_seeds(seed: int, repeats: int) -> list[int]:
    """The seeds of the repeats of `audit(seed=seed, repeats=repeats)`; the first is `seed` itself.

    An audit with `seed=repeat_seeds(seed, repeats)[i]` is the i-th repeat alone. To craft a canary for each repeat:
    `[crafters.gradient(task, model, spec, seed=s) for s in repeat_seeds(seed, repeats)]`.

    >>> repeat_seeds(7, 1)
    [7]
    """
    return random_streams.repeat_seeds(seed, repeats)
