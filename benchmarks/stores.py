"""What storing costs: an audit of 2,500 linear heads on digits with `store=`, against the same audit without.

`python benchmarks/stores.py [--rounds 5]`. Wall time varies by several percent from round to round, so the ratio is of
the fastest of each. "In the store's calls" is the time between entering and leaving them, most of it spent waiting for
a core that is training: at most that much is lost. The first stored audit of a process also imports zarr.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
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
    from dpsub.audits import stores as _stores

    imported = time.perf_counter() - begin
    inside: list[float] = []
    for name in ("__init__", "write", "dataset"):
        setattr(_stores.Store, name, counted(inside, getattr(_stores.Store, name)))
    writing = _stores.Store.writing

    @contextmanager
    def counted_writing(self: _stores.Store) -> Any:
        context = writing(self)
        counted(inside, context.__enter__)()
        yield
        counted(inside, context.__exit__)(None, None, None)

    _stores.Store.writing = counted_writing  # type: ignore[method-assign]

    rows = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            inside.clear()
            plain, stored = audit(), audit(store=Path(folder) / "audit.zarr")
            spent = sum(inside)
            rows.append((plain, stored, spent, audit(store=Path(folder) / "audit.zarr")))
    plain, stored, spent, read = zip(*rows, strict=True)
    print(f"2,500 linear heads on digits, n = 500, T = 500: {min(plain):.1f} s; read again: {median(read):.3f} s")
    print(f"stored / not stored: {min(stored) / min(plain):.3f}, the fastest of {rounds} each")
    print(f"in the store's calls: {median(spent) / median(stored):.1%} of the time; importing zarr: {imported:.2f} s")


if __name__ == "__main__":
    main()
