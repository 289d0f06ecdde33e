"""What storing costs: an audit of 2,500 linear heads on digits with `store=`, against the same audit without.

`python benchmarks/stores.py [--rounds 5]`. Wall time varies by several percent from round to round, so the ratio is of
the fastest of each. "In the store's calls" is the time between entering and leaving them, most of it spent waiting for
a core that is training: at most that much is lost. The first stored audit of a process also imports zarr.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import dpsub


def counted(seconds: list[float], function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        begin = time.perf_counter()
        try:
            return function(*arguments, **options)
        finally:
            seconds.append(time.perf_counter() - begin)

    return call


@contextmanager
def unsynced() -> Iterator[None]:
    """Without waiting for the disk: what a power cut would cost a repair."""
    sync, os.fsync = os.fsync, lambda _: None
    try:
        yield
    finally:
        os.fsync = sync


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds

    task = dpsub.data.digits(n_train=500)
    model = dpsub.models.linear(task)
    spec = dpsub.DPSGD(26.8, 2.0, 1.0, 500, 1e-3)
    canary = dpsub.crafters.gradient(task, model, spec, seed=0)

    def audit(**options: Any) -> float:
        begin = time.perf_counter()
        dpsub.audit(task, model, canary, spec, runs=2_500, observe_every=25, device="cpu", progress=False, **options)
        return time.perf_counter() - begin

    audit()
    assert "zarr" not in sys.modules
    begin = time.perf_counter()
    from dpsub.audits.storage import store, writer

    imported = time.perf_counter() - begin
    inside: list[float] = []
    for name in ("__init__", "dataset"):
        setattr(store.Store, name, counted(inside, getattr(store.Store, name)))
    for name in ("__init__", "write", "put_root"):
        setattr(writer.StoreWriter, name, counted(inside, getattr(writer.StoreWriter, name)))

    rows = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            inside.clear()
            plain, stored = audit(), audit(store=Path(folder) / "audit.zarr")
            spent = sum(inside)
            read = audit(store=Path(folder) / "audit.zarr")
            with unsynced():
                rows.append((plain, stored, spent, read, audit(store=Path(folder) / "unsynced.zarr")))
    plain, stored, spent, read, left = zip(*rows, strict=True)
    print(f"2,500 linear heads on digits, n = 500, T = 500: {min(plain):.1f} s; read again: {median(read):.3f} s")
    print(f"stored / not stored: {min(stored) / min(plain):.3f}, the fastest of {rounds} each")
    print(
        f"stored and synced to the disk / stored without: {min(stored) / min(left):.3f}, the fastest of {rounds} each"
    )
    print(f"in the store's calls: {median(spent) / median(stored):.1%} of the time; importing zarr: {imported:.2f} s")


if __name__ == "__main__":
    main()
