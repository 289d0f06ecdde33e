"""Carrying out a plan: computing the shards that are missing, here or elsewhere, and putting them where they belong."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Any, Protocol, TypedDict

import xarray as xr
from tqdm.auto import tqdm

from dpsub._core import checks
from dpsub.audits import cluster
from dpsub.audits.local_executors import Executor, Processes, Threads
from dpsub.audits.plans import Made, Plan, Results, Shard, origin, warn_of_failures
from dpsub.audits.store import Database
from dpsub.trainers import devices

MOST_PROCESSES = 1024


class Options(TypedDict, total=False):
    """The fields of `Execution`, as keyword arguments of the functions that audit."""

    device: str
    client: Any
    store: str | os.PathLike[str] | None
    repair: bool
    allow_mix: bool
    progress: bool


@dataclass(frozen=True)
class Execution:
    """Where and how an audit runs. Its numbers depend on the kind of device alone.

    Attributes:
        device: "auto" (CUDA if there is any), "cpu" or "cuda". On a CPU, several blocks train side by side, one thread
            each: as many as torch may use threads and the memory holds.
        client: a `dask.distributed.Client`, or a scheduler's address. Its workers train the shards, one torch thread
            for each of their threads; only this process writes. A worker that dies costs the shards it was training.
            With several GPUs on a machine, start one worker for each, which sees that GPU alone, by
            `CUDA_VISIBLE_DEVICES` or as dask-cuda's `LocalCUDACluster` does. A script that starts a LocalCluster must
            do so under `if __name__ == "__main__":`, since workers import it.
        store: a file for the audit, by convention `….db`: an SQLite database. Finished shards are written there at
            once. The same call resumes from what is there, or reads it if nothing is missing, on any device. `status`
            tells how far it is, and `load(partial=True)` reads what is there. One process at a time may write. Another
            machine computes noise multipliers and canaries slightly differently. So a noise multiplier or gradient
            within 1e-6 of the stored one counts as the same, and so does a record of the same label if each feature is
            within 1e-3 of its standard deviation in the private records. The stored ones are then used.
        repair: compute damaged shards of the store again. Without it, damage is an error.
        allow_mix: resume a store that was begun on another kind of device (GPU, or CPU instructions) or with another
            version of torch or dpsub, and record both. The distribution is unchanged, but no single machine reproduces
            the numbers.
        progress: show a progress bar.
        retry: compute the failed runs of the store again (`audit_training`).
        processes: how many shards to compute side by side, each in a process of its own (`audit_training`).
    """

    device: str = "auto"
    client: Any = None
    store: str | os.PathLike[str] | None = None
    repair: bool = False
    allow_mix: bool = False
    progress: bool = True
    retry: bool = False
    processes: int = 1

    def __post_init__(self) -> None:
        checks.check_fields(
            self,
            "progress",
            device=partial(checks.choice, options=devices.NAMES),
            repair=checks.flag,
            allow_mix=checks.flag,
            retry=checks.flag,
            processes=partial(checks.whole, at_most=MOST_PROCESSES),
        )
        if self.processes > 1 and self.client is not None:
            raise ValueError(f"processes must be 1 with a client, whose workers train, got {self.processes}")

    @classmethod
    def of(cls, execution: Execution | None, options: Mapping[str, Any]) -> Execution:
        """The execution that was given, or the one that keyword arguments describe.

        Raises:
            TypeError: if both were given.
        """
        if execution is None:
            return cls(**options)
        checks.instance("execution", execution, of=Execution, called="an Execution")
        if options:
            raise TypeError(f"execution must be given alone, got it with {', '.join(options)}: put these into it")
        return execution


class Writer(Protocol):
    """Takes shards. It exists only while its place is open for writing."""

    @property
    def plan(self) -> Plan: ...

    @property
    def missing(self) -> list[Shard]: ...

    @property
    def failed(self) -> list[Shard]: ...

    @property
    def made(self) -> list[Made]: ...

    def write(self, shard: Shard, results: Results, made: Made) -> None: ...


class Place(Writer, Protocol):
    """Where the results of an audit are kept.

    Attributes:
        plan: the plan as it is kept there, with the noise multiplier and canaries of the machine that began it.
        missing: the shards that are not there.
        failed: the shards with runs that failed.
        made: where the shards come from.
    """

    @property
    def is_whole(self) -> bool:
        """Whether all shards are there, and nothing is damaged."""
        ...

    def prepare(self, plan: Plan) -> None:
        """Take the plan with what was computed before the first shard."""
        ...

    def writing(self) -> AbstractContextManager[Writer]:
        """Open for writing."""
        ...

    def dataset(self) -> xr.Dataset:
        """The whole audit."""
        ...


class Memory:
    """The place for audits that are not stored."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.made: list[Made] = []
        self.failed: list[Shard] = []
        self._flat = plan.layout.empty()
        self._written: set[int] = set()
        self._messages: dict[int, str] = {}

    @property
    def missing(self) -> list[Shard]:
        return [shard for shard in self.plan.layout.shards if shard.number not in self._written]

    @property
    def is_whole(self) -> bool:
        return not self.missing

    def prepare(self, plan: Plan) -> None:
        self.plan = plan

    def writing(self) -> AbstractContextManager[Memory]:
        return nullcontext(self)

    def write(self, shard: Shard, results: Results, made: Made) -> None:
        for name, values in results.arrays.items():
            self._flat[name][self.plan.layout.part(name, shard)] = values.ravel()
        self._written.add(shard.number)
        self._messages |= results.failed
        self.made.append(made)

    def dataset(self) -> xr.Dataset:
        return self.plan.layout.dataset(self._flat, self.plan.attributes | origin(self.made), self._messages)


def carried_out(plan: Plan, how: Execution) -> xr.Dataset:
    """Compute what is missing of a plan, and return all of it."""
    place: Place = Memory(plan)
    if how.store is not None:
        plan.check_told_apart()
        place = Database(how.store, plan, repair=how.repair)
    if not place.is_whole or not place.plan.is_prepared or (how.retry and place.failed):
        try:
            _compute(place, how)
        except (KeyboardInterrupt, SystemExit) as interruption:  # dask-jobqueue turns Ctrl-C into SystemExit
            if how.store is None:
                raise
            total = plan.layout.cut.runs * plan.layout.cut.repeats
            done = total - sum(shard.runs for shard in place.missing)
            message = f"{done:,} of {total:,} {plan.things} are in {how.store}; the same call goes on from there"
            raise type(interruption)(message) from None
    found = place.dataset()
    warn_of_failures(found)
    return found


def _compute(place: Place, how: Execution) -> None:
    with ExitStack() as stack:
        executor = stack.enter_context(_executor(how))
        expected = executor.kinds(place.plan)
        for made in expected:
            _check_kind(place, made, how)
        if not place.plan.is_prepared:
            place.prepare(place.plan.prepared(executor, progress=how.progress))
        writer = stack.enter_context(place.writing())
        plan, shards = writer.plan, [*writer.missing, *(writer.failed if how.retry else ())]
        bars = stack.enter_context(Bars(plan, shards, how.progress))
        if how.client is not None and not expected:
            bars.told("waiting for workers")
        for shard, results, made in stack.enter_context(closing(executor.each(plan, shards, bars.tick))):
            _check_kind(writer, made, how)
            writer.write(shard, results, made)
            bars.count(shard, len(results.failed))


def _executor(how: Execution) -> AbstractContextManager[Executor]:
    if how.client is not None:
        return cluster.connected(how.client, how.device)
    return nullcontext(Processes(how.processes) if how.processes > 1 else Threads(how.device))


def _check_kind(writer: Writer, made: Made, how: Execution) -> None:
    if how.allow_mix or not writer.plan.of_one_kind:
        return
    for other in writer.made:
        if other.kind != made.kind:
            kinds = "".join(f"\n  {name}: {other.kind[name]}, now {value}" for name, value in made.kind.items())
            raise ValueError(
                f"device and versions must be those of the audit's other shards:{kinds}\n"
                "use those, or audit(..., allow_mix=True), which records both: no single machine reproduces the numbers"
            )


class Bars:
    """A bar of what the plan counts, and a second one of repeats if there are several."""

    def __init__(self, plan: Plan, shards: list[Shard], progress: bool) -> None:
        self._plan, self._failed, self._lock = plan, 0, Lock()
        self._ticked = 0  # units of shards that are not finished
        everything, repeats = plan.layout.shards, plan.layout.cut.repeats
        self._left = [sum(shard.repeat == repeat for shard in shards) for repeat in range(repeats)]
        self._repeats = tqdm(
            total=repeats,
            initial=self._left.count(0),
            unit=" repeats",
            desc="repeats",
            disable=not progress or repeats == 1,
        )
        total = sum(map(plan.units, everything))
        self._units = tqdm(
            total=total,
            initial=total - sum(map(plan.units, shards)),
            unit=plan.unit,
            desc=plan.title,
            disable=not progress,
        )

    def __enter__(self) -> Bars:
        return self

    def __exit__(self, *_: object) -> None:
        self._units.close()
        self._repeats.close()

    def told(self, message: str) -> None:
        """Show a message beside the bar."""
        self._units.set_postfix_str(message)

    def tick(self, units: int) -> None:
        """Count units of a shard that is not finished, in any thread."""
        with self._lock:
            self._ticked += units
            self._units.update(units)

    def count(self, shard: Shard, failed: int = 0) -> None:
        self._failed += failed
        self._units.set_postfix_str(f"{self._failed:,} failed" if self._failed else "", refresh=False)
        with self._lock:
            ahead = min(self._ticked, self._plan.units(shard))
            self._ticked -= ahead
            self._units.update(self._plan.units(shard) - ahead)
        self._left[shard.repeat] -= 1
        self._repeats.update(self._left[shard.repeat] == 0)
