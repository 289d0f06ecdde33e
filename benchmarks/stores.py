"""What storing costs: an SQLite database of 128 shards, against one file of the same arrays by NumPy and xarray.

`python benchmarks/stores.py [--rounds 5]`. The numbers are there before, so that only their storing is timed. A store
waits for the disk after each shard, which the two other files do once, at the end: so it is also timed without waiting,
as on a disk that takes no time. Then an audit of 2,500 linear heads on digits is timed with and without a store, in
turns. Times vary from round to round: each is the fastest.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import xarray as xr

import dpsub
from dpsub import audits
from dpsub.audits import store
from dpsub.audits.execution import execute
from dpsub.audits.plans import Cut, Plan, Results, Shard, Tick, unfilled

RUNS, STEPS, SHARDS = 128 * 128, 20, 128


@dataclass(frozen=True, eq=False)
class Given(Plan):
    """An audit whose numbers are there already."""

    call: ClassVar[str] = "benchmark"
    numbers: dict[str, np.ndarray[Any, Any]]

    @property
    def title(self) -> str:
        return "numbers that are there already"

    @property
    def attributes(self) -> dict[str, Any]:
        return {"runs": RUNS, "seed": 0}

    @property
    def cut(self) -> Cut:
        return Cut(RUNS, block_size=RUNS // SHARDS)

    def empty(self) -> xr.Dataset:
        score, bit = unfilled("score", {"run": RUNS, "step": STEPS}), unfilled("bit", {"run": RUNS}, "int8")
        return xr.Dataset({"score": score, "bit": bit})

    def run(self, shard: Shard, device: torch.device, tick: Tick) -> Results:
        return Results({name: values[shard.start : shard.stop] for name, values in self.numbers.items()})


@contextmanager
def unsynced() -> Iterator[None]:
    """Stores that do not wait for the disk."""
    connected = store.connected

    def hasty(path: Path, mode: str) -> sqlite3.Connection:
        connection = connected(path, mode)
        connection.execute("PRAGMA synchronous = OFF")
        return connection

    store.connected = hasty
    try:
        yield
    finally:
        store.connected = connected


def synced(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def fastest(
    rounds: int, call: Callable[[Path], object], *, before: Callable[[Path], object] = lambda path: None
) -> float:
    """Seconds of the fastest round, each with a path of its own."""
    seconds = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "audit"
            before(path)
            begin = time.perf_counter()
            call(path)
            seconds.append(time.perf_counter() - begin)
    return min(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds

    rng = np.random.default_rng(0)
    plan = Given({
        "score": rng.normal(size=(RUNS, STEPS)).astype(np.float32), "bit": rng.integers(0, 2, RUNS, dtype=np.int8)
    })  # fmt: skip

    def stored(path: Path, plan: Plan = plan) -> xr.Dataset:
        return execute(plan, device="cpu", store=path, progress=False)

    found = execute(plan, device="cpu", progress=False)

    def by_numpy(path: Path) -> None:
        with open(path, "wb") as file:
            np.savez(file, **plan.numbers)
        synced(path)

    def by_xarray(path: Path) -> None:
        found.to_netcdf(path, engine="scipy")
        synced(path)

    def loaded_by_numpy(path: Path) -> None:
        with np.load(path) as file:
            list(map(file.__getitem__, file))

    written = fastest(rounds, stored)
    with unsynced():
        hasty = fastest(rounds, stored)
    read = fastest(rounds, audits.load, before=stored)
    print(f"{SHARDS} shards of {RUNS // SHARDS} runs with {STEPS} scores each, {found.nbytes / 2**20:.1f} MiB")
    print(f"written and read back: {written:.2f} s, without waiting for the disk {hasty:.2f} s; read: {read:.3f} s")
    for name, write, load in (
        ("numpy.savez", by_numpy, loaded_by_numpy),
        ("xarray.to_netcdf", by_xarray, partial(xr.load_dataset, engine="scipy")),
    ):
        once, again = fastest(rounds, write), fastest(rounds, load, before=write)
        print(
            f"store / {name}: {written / once:.1f} in writing, {hasty / once:.1f} without waiting for the disk; "
            f"{read / again:.1f} in reading"
        )

    task = dpsub.data.digits(n_train=500)
    model = dpsub.models.linear(task)
    spec = dpsub.DPSGD(26.8, 2.0, 1.0, 500, 1e-3)
    canary = dpsub.crafters.gradient(task, model, spec, seed=0)

    def audit(path: Path | None) -> xr.Dataset:
        return dpsub.audit(
            task, model, canary, spec, runs=2_500, observe_every=25, device="cpu", store=path, progress=False
        )

    of_audits = [[fastest(1, lambda path: audit(None)), fastest(1, audit)] for _ in range(rounds)]
    plain, kept = np.min(of_audits, axis=0)
    print(f"2,500 linear heads on digits, n = 500, T = 500: {plain:.1f} s; stored / not stored: {kept / plain:.3f}")


if __name__ == "__main__":
    main()
