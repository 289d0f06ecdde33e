"""The execution of a plan: compute the shards that are missing, here or elsewhere, and put them in their place."""

from __future__ import annotations

import os
from contextlib import closing
from functools import partial
from threading import Lock
from typing import Any, TypedDict

import xarray as xr
from tqdm.auto import tqdm

from dpsub._core import checks
from dpsub.audits import executors
from dpsub.audits.collected import Place, warn_of_failures
from dpsub.audits.plans import Made, Plan
from dpsub.audits.refutation import Refutation
from dpsub.audits.store import Database, located
from dpsub.trainers import devices


class Options(TypedDict, total=False):
    """Where and how an audit runs. Its numbers depend on the kind of device alone. `dpsub.audit` describes them."""

    device: str
    client: Any
    store: str | os.PathLike[str] | None
    repair: bool
    allow_mix: bool
    progress: bool
    refute: float | str | None
    delta: float | None


@checks.checked("progress", repair=checks.flag, allow_mix=checks.flag)
def execute(
    plan: Plan,
    *,
    device: str = "auto",
    client: Any = None,
    store: str | os.PathLike[str] | None = None,
    repair: bool = False,
    allow_mix: bool = False,
    progress: bool = True,
    refute: float | str | None = None,
    delta: float | None = None,
) -> xr.Dataset:
    """Compute what is missing of a plan, and return all of it. The options are those of `dpsub.audit`."""
    test = None if refute is None and delta is None else Refutation.of(plan, refute, delta)
    if store is None:
        place = Place(plan)
    else:
        plan.check_told_apart()
        place = Database(located(store), plan, repair=repair)
    if not (test and test.stops(place)) and place.to_compute():
        try:
            _compute(place, client, device, test, allow_mix=allow_mix, progress=progress)
        except (KeyboardInterrupt, SystemExit) as interruption:  # dask-jobqueue turns Ctrl-C into SystemExit
            if store is None:
                raise
            there = f"{place.collected.runs:,} of {plan.cut.total:,} models are in {store}"
            raise type(interruption)(f"{there}; the same call goes on from there") from None
    if test:
        test.settle(place)
    if place.asked < place.plan.cut.runs:
        place.resize(place.asked, first_of=place.plan.cut.runs)
    dataset = place.collected.dataset()
    warn_of_failures(dataset, depth=4)
    return dataset


def _compute(
    place: Place, client: Any, device: str, test: Refutation | None, *, allow_mix: bool, progress: bool
) -> None:
    mixed, compute = allow_mix or place.plan.calls_users, partial(executors.by_workers, client, device)
    if client is None:
        on = devices.device(device)
        place.plan.at_once(on)  # refuses what the memory does not hold
        if not mixed:
            _check_kind(place, place.plan.made(on))
        compute = partial(executors.here, on)
    with place.writing():
        # What is missing is asked anew: another process may have written since the place was read.
        plan, shards, lock, failed = place.plan, place.to_compute(), Lock(), 0
        total, left = (sum(map(plan.units, some)) for some in (plan.cut.shards, shards))

        def tick(units: int) -> None:
            with lock:  # shards are computed in several threads
                bar.update(units)

        with (
            tqdm(total=total, initial=total - left, unit=plan.unit, desc=plan.title, disable=not progress) as bar,
            closing(compute(plan, shards, tick)) as computed,
        ):
            for shard, results, made in computed:
                if not mixed:
                    _check_kind(place, made)
                place.write(shard, results, made)
                if failed := failed + len(results.failed):
                    bar.set_postfix_str(f"{failed:,} failed", refresh=False)
                if test and test.stops(place):
                    break
        if test:
            test.settle(place)


def _check_kind(place: Place, made: Made) -> None:
    """Refuse a shard that was made on another kind of device, or by other versions, than those that are there."""
    for earlier in place.collected.shards.values():
        if earlier.kind != made.kind:
            kinds = "".join(f"\n  {name}: {earlier.kind[name]}, now {value}" for name, value in made.kind.items())
            raise ValueError(
                f"device and versions must be those of the audit's other shards:{kinds}\n"
                f"use those, or {place.plan.call}(..., allow_mix=True), which records both: no single machine "
                "reproduces the numbers"
            )
