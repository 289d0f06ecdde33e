"""Carrying out a plan: computing the shards that are missing, here or elsewhere, and putting them where they belong."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from functools import partial
from threading import Lock
from typing import Any, TypedDict

import xarray as xr
from tqdm.auto import tqdm

from dpsub._core import checks
from dpsub.audits import executors
from dpsub.audits.executors import Executor
from dpsub.audits.plans import Made, Plan, Results, Shard, origin, warn_of_failures
from dpsub.audits.store import Database

MOST_PROCESSES = 1024


class Options(TypedDict, total=False):
    """Where and how an audit runs. Its numbers depend on the kind of device alone. `dpsub.audit` describes them."""

    device: str
    client: Any
    store: str | os.PathLike[str] | None
    repair: bool
    allow_mix: bool
    progress: bool


class OwnOptions(Options, total=False):
    """Beside these, those of `dpsub.audit_training`."""

    retry: bool
    processes: int


class Memory:
    """The place for audits that are not stored, with the face of a `Database`.

    Attributes:
        plan: the plan as it is kept there, with the noise multiplier and canaries of the machine that began it.
        missing: the shards that are not there.
        failed: the shards with runs that failed.
        made: where the shards come from.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.made: list[Made] = []
        self.failed: list[Shard] = []
        self._flat = plan.layout.empty()
        self._messages: dict[int, str] = {}
        self.missing = list(plan.layout.shards)

    def writing(self) -> AbstractContextManager[Memory]:
        return nullcontext(self)

    def write(self, shard: Shard, results: Results, made: Made) -> None:
        for name, values in results.arrays.items():
            self._flat[name][self.plan.layout.part(name, shard)] = values.ravel()
        self._messages |= results.failed
        self.made.append(made)

    def dataset(self) -> xr.Dataset:
        return self.plan.layout.dataset(self._flat, self.plan.attributes | origin(self.made), self._messages)


Place = Memory | Database


@checks.checked(
    "progress",
    repair=checks.flag,
    allow_mix=checks.flag,
    retry=checks.flag,
    processes=partial(checks.whole, at_most=MOST_PROCESSES),
)
def carried_out(
    plan: Plan,
    *,
    device: str = "auto",
    client: Any = None,
    store: str | os.PathLike[str] | None = None,
    repair: bool = False,
    allow_mix: bool = False,
    progress: bool = True,
    retry: bool = False,
    processes: int = 1,
) -> xr.Dataset:
    """Compute what is missing of a plan, and return all of it. The options are those of `dpsub.audit_training`."""
    if processes > 1 and client is not None:
        raise ValueError(f"processes must be 1 with a client, whose workers train, got {processes}")
    place: Place = Memory(plan)
    if store is not None:
        plan.check_told_apart()
        place = Database(store, plan, repair=repair)
    if place.missing or (retry and place.failed):
        where: AbstractContextManager[Executor]
        if client is not None:
            where = executors.workers(client, device)
        else:
            where = executors.processes(processes) if processes > 1 else nullcontext(executors.Here(device))
        try:
            _compute(place, where, allow_mix=allow_mix, progress=progress, retry=retry)
        except (KeyboardInterrupt, SystemExit) as interruption:  # dask-jobqueue turns Ctrl-C into SystemExit
            if store is None:
                raise
            total = plan.layout.cut.runs * plan.layout.cut.repeats
            done = total - sum(shard.runs for shard in place.missing)
            message = f"{done:,} of {total:,} {plan.things} are in {store}; the same call goes on from there"
            raise type(interruption)(message) from None
    found = place.dataset()
    warn_of_failures(found, depth=4)
    return found


def _compute(
    place: Place, where: AbstractContextManager[Executor], *, allow_mix: bool, progress: bool, retry: bool
) -> None:
    with ExitStack() as stack:
        executor = stack.enter_context(where)
        expected = executor.kinds(place.plan)
        for made in expected if not allow_mix else ():
            _check_kind(place, made)
        writing: AbstractContextManager[Place] = place.writing()
        writer = stack.enter_context(writing)
        plan, shards = writer.plan, [*writer.missing, *(writer.failed if retry else ())]
        bars = stack.enter_context(Bars(plan, shards, progress))
        if not expected:
            bars.told("waiting for workers")
        for shard, results, made in stack.enter_context(closing(executor.each(plan, shards, bars.tick))):
            if not allow_mix:
                _check_kind(writer, made)
            writer.write(shard, results, made)
            bars.count(shard, len(results.failed))


def _check_kind(writer: Place, made: Made) -> None:
    """Refuse a shard that was made on another kind of device, or by other versions, than those that are there."""
    for other in writer.made if writer.plan.of_one_kind else ():
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
