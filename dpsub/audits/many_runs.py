r"""Algorithm 1: train models in both worlds, and score them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar, Unpack

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from dpsub._core import CanaryPair, checks
from dpsub._core.datasets import LONG_NAMES
from dpsub._core.random_streams import repeat_seeds, stream
from dpsub.accounting import DPSGD
from dpsub.audits.bank_plans import EACH_REPEAT, ONCE, PRECISION, BankPlan, canary_attributes, check_canary
from dpsub.audits.execution import Options, execute
from dpsub.audits.observers import Observer, Score, chosen, observation
from dpsub.audits.plans import Arrays, Results, Shard, Tick, unfilled
from dpsub.data import Task
from dpsub.models.interface import Model, check_fits
from dpsub.trainers.bank import blocks_together


@checks.checked(
    "spec",
    "repeats",
    "runs",
    "seed",
    observe_every=checks.whole,
    coordinates=partial(checks.choice, options=("auto", "all")),
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
        runs: R ≥ 1: models of each repeat, both worlds together. A store of fewer goes on to as many, and of a store of
            more the first are read: from the second block on, models are the same however many follow, and so are those
            of the first block if there are enough to fill it.
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
        coordinates: "auto" trains a linear head in the fewer coordinates that its records span, where that applies and
            no metric ("accuracy", "weights") needs all parameters: the scores have the same law (`Model.within_span`).
            "all" trains in all coordinates. The numbers of the two differ; the attribute `trained_coordinates` says
            which were used, "span" or "all".
        seed: of batches, noise, starts and coins. Runs come in blocks, each with its own stream of randomness. The
            block size depends on the model alone (attribute `block_size`). Arguments, versions and the kind of device
            determine the numbers; threads, workers, interruptions and memory do not. On a GPU, up to 16 blocks
            of linear heads train as one bank: there other `runs` may change last digits, and so may a client unless
            `device` is "cuda".
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
            - `refute`, `delta`: stop when bets on the last observed step refute that the training has this ε at this δ,
              at confidence 95 % and for claim "gdp", but train `runs` models at most. "add_remove" or "substitute" is
              the accountant's ε for that adjacency. It holds although it looks after every few models, and the models
              are bet on in the order of their numbers, so that the same models decide wherever they are trained. The
              attribute `refuted_after` is the number of models trained, or 0 if they refute nothing. `bound` judges
              such an audit by rule "bets"; other rules are not valid for it. Without repeats only.

    Returns:
        A dataset with `score` (run, step) float32, higher speaks for z; `bit` (run,) int8, 0 for z and 1 for z′; and
        the metrics: `accuracy` (measured, step), `distance` and `gradient` (run, step), `weights` (run, parameter). The
        coordinate `step` is the number of steps taken. With repeats > 1 each variable has a leading dimension
        `repeat`. The attributes hold all parameters, the seed, the versions, and checksums of task, canary and fixed
        start; those of a stored audit also its commit, wall time and devices.

    Raises:
        ValueError: before any training, if an argument is out of range, a feature is not finite or a label not in
            0 … num_classes − 1; if model or canary are of another task; if a gradient canary is longer than
            max_grad_norm; if the memory does not hold one block; if the store is some other file, another audit,
            damaged, of another format or another kind of device; if the model or an observer holds what a store cannot
            tell apart, such as a lambda in a module that was not named. After some training, if it diverged.
        sqlite3.Error, OSError: with the path, if the store cannot be written, or another process is writing it.
            Finished shards stay.
        Exception: dask's own, if no scheduler answers, or several workers died of one shard.
        KeyboardInterrupt: on Ctrl-C. Finished shards are in the store.

    Source: *Beyond Membership*, Algorithm 1.
    """
    check_fits(model, task)
    canaries = tuple(canary) if isinstance(canary, Sequence) else (canary,)
    for pair in canaries:
        checks.instance("canary", pair, of=CanaryPair, called="a dpsub.CanaryPair")
        check_canary(task, model, pair, spec)
    if isinstance(canary, Sequence) and len(canaries) != repeats:
        raise ValueError(f"canary must be one for all repeats, or one for each of the {repeats}, got {len(canaries)}")
    if len({(pair.scenario, pair.adjacency, pair.score, *sorted(pair.details)) for pair in canaries}) > 1:
        raise ValueError("canary must be of one scenario and adjacency in all repeats, crafted in one way")
    observers = chosen(metrics, task)
    training = task, model, spec, canaries, runs, seed, matmul_precision
    span = coordinates == "auto" and not any(observer.all_coordinates for observer in observers)
    observed = observe_every, observers, "span" if span else "all"
    return execute(ManyRuns(*training, *observed, repeats=repeats), **options)


@dataclass(frozen=True, eq=False)
class ManyRuns(BankPlan):
    """What an audit of many runs trains and observes.

    Attributes:
        observers: beside the scores.
        coordinates: "span" or "all".
    """

    call: ClassVar[str] = "audit"
    grows: ClassVar[bool] = True
    purpose = "audit"

    observe_every: int
    observers: tuple[Observer, ...]
    coordinates: str

    @cached_property
    def seeds(self) -> list[int]:
        """One for each repeat."""
        return repeat_seeds(self.seed, self.repeats)

    @property
    def observed(self) -> list[int]:
        """The steps after which models are observed, the last one always."""
        return [*range(self.observe_every, self.spec.steps, self.observe_every), self.spec.steps]

    def rows(self, observer: Observer) -> int:
        """How many models of a repeat this observer observes."""
        return self.runs if observer.most_runs is None else min(observer.most_runs, self.models_of(0))

    def empty(self) -> xr.Dataset:
        repeat = {} if self.repeats == 1 else {"repeat": self.repeats}
        sizes = {"step": len(self.observed), "parameter": self.model.parameters}
        variables = {"bit": unfilled(LONG_NAMES["bit"], {**repeat, "run": self.runs}, "int8")}
        coordinates = {"step": np.array(self.observed)} | {name: np.arange(size) for name, size in repeat.items()}
        for observer in (Score(), *self.observers):
            rows, columns = observer.dims
            shape = {**repeat, rows: self.rows(observer), columns: sizes[columns]}
            variables[observer.name] = unfilled(observer.long_name, shape)
            if observer.most_runs is not None:
                coordinates[rows] = np.arange(self.rows(observer))
        return xr.Dataset(variables, coordinates)

    @cached_property
    def attributes(self) -> dict[str, Any]:
        own = super().attributes | {
            "runs": self.runs,
            "observe_every": self.observe_every,
            "repeats": self.repeats,
            "metrics": " ".join(observer.name for observer in self.observers),
            "trained_coordinates": self.coordinates,  # `coordinates` means something else to xarray
            **({"seeds": self.seeds} if self.repeats > 1 else {}),
            **canary_attributes(self.canaries, ONCE if len(self.canaries) == 1 else EACH_REPEAT),
        }
        return {name: value for one in self.observers for name, value in one.attributes(self.task).items()} | own

    @property
    def written_by_users(self) -> tuple[Any, ...]:
        return (self.model, *self.observers)

    @property
    def copies(self) -> int:
        return max(1, sum(observer.copies for observer in self.observers))  # some keep theirs while others look

    def together(self, device: torch.device) -> int:
        blocks_of_shard = len(self.cut.shards[0].blocks)
        return max(1, blocks_together(self.model, device) // blocks_of_shard)

    def models_at_once(self, device: torch.device) -> int:
        blocks = min(blocks_together(self.model, device), -(-self.runs // self.block_size))
        return self.models_of(0) if blocks == 1 else blocks * self.block_size

    def run_together(self, shards: Sequence[Shard], device: torch.device, tick: Tick) -> list[Results]:
        if len(shards) == 1:
            return super().run_together(shards, device, tick)
        first, last = shards[0], shards[-1]
        arrays = self.blocks(first.repeat, range(first.blocks.start, last.blocks.stop), device, tick)
        results = []
        for shard in shards:
            rows = slice(shard.start - first.start, shard.stop - first.start)
            results.append(self.results(shard, {name: values[rows] for name, values in arrays.items()}))
        return results

    def block(self, repeat: int, block: int, device: torch.device, tick: Tick) -> Arrays:
        return self.blocks(repeat, range(block, block + 1), device, tick)

    def blocks(self, repeat: int, blocks: range, device: torch.device, tick: Tick) -> Arrays:
        """The numbers of blocks of models that train as one bank, by variable."""
        # All blocks but the first are trained whole: so their numbers do not depend on how many runs follow.
        seed, kept = self.seeds[repeat], sum(map(self.models_of, blocks))
        runs = kept if blocks == range(1) else self.block_size * len(blocks)
        sources = (stream(seed, self.purpose, block) for block in blocks)
        bits = np.concatenate([source.integers(0, 2, self.block_size, dtype=np.int8) for source in sources])[:runs]
        canary = self.canaries[repeat if len(self.canaries) > 1 else 0]
        bank = self.bank(*blocks, device=device, bits=bits, canary=canary, seed=seed, coordinates=self.coordinates)
        # Observers of only some runs observe those of the first block.
        observers = [observer for observer in (Score(), *self.observers) if observer.most_runs is None or 0 in blocks]
        counts = {observer.name: min(runs, self.rows(observer)) for observer in observers}
        watches = {observer.name: observer.watch(bank, self.task, counts[observer.name]) for observer in observers}
        observations: dict[str, list[Tensor]] = {observer.name: [] for observer in observers}
        for step in range(1, self.spec.steps + 1):
            tick(0)
            last = step == self.spec.steps
            now = last or step % self.observe_every == 0
            due = [observer for observer in observers if (now if "step" in observer.dims else last)]
            for observer in due:
                watches[observer.name].before_step()
            bank.advance()
            for observer in due:
                shape = (counts[observer.name], *(() if "step" in observer.dims else (self.model.parameters,)))
                observations[observer.name].append(observation(observer, watches[observer.name], shape))
        tick(kept)
        arrays = {name: torch.stack(values, dim=1).flatten(1) for name, values in observations.items()}
        return {"bit": bits[:kept], **{name: values[:kept].cpu().numpy() for name, values in arrays.items()}}
