"""Whether a store's canaries are those of a plan, up to rounding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from dpsub._core.canary_pair import CanaryPair, Record
from dpsub.audits.plans import Plan
from dpsub.audits.storage.decoding import check_memory, decoded_array
from dpsub.audits.storage.layout import Layout
from dpsub.audits.storage.zarr_layout import World, worlds_of

# A canary that is crafted again on another machine differs a little.
SAME_FEATURE = 1e-3  # of the feature's standard deviation in the private records; 3.5e-5 was measured for S3
SAME_DIFFERENCE = 1e-3  # of the norm of z − z′
SAME_GRADIENT = 1e-6  # of the gradient's largest entry


def canaries_of(files: Mapping[str, bytes], layout: Layout, asked: Plan) -> tuple[CanaryPair, ...] | None:
    """The stored canaries if those of the plan equal them up to rounding, else None."""
    worlds = worlds_of(asked.canaries)
    held = {name: layout.others[f"canary/{name}"] for name in ("z", "z_prime") if f"canary/{name}" in layout.others}
    if worlds.keys() != held.keys() or not worlds:
        return None
    check_memory(held.values())
    stored: dict[str, list[World]] = {}
    for name, array in held.items():
        arrays, labels = decoded_array(f"canary/{name}", array, files), array.attributes["labels"]
        stored[name] = [Record(x, y) for x, y in zip(arrays, labels, strict=True)] if labels else list(arrays)
    spread = asked.task.x_train.std(axis=0, dtype=np.float64)
    spread[spread == 0] = spread[spread > 0].min() if spread.any() else 0.0
    for name, mine in worlds.items():
        if len(stored[name]) != len(mine) or not all(map(partial(_same, spread=spread), mine, stored[name])):
            return None
    if not all(map(_equally_far, zip(*worlds.values(), strict=True), zip(*stored.values(), strict=True))):
        return None
    z_primes = stored.get("z_prime", [None] * len(asked.canaries))
    triples = zip(asked.canaries, stored["z"], z_primes, strict=True)
    return tuple(replace(canary, z=z, z_prime=z_prime) for canary, z, z_prime in triples)


def _same(mine: World, theirs: World, spread: NDArray[np.float64]) -> bool:
    """Whether two worlds are equal up to rounding: coordinate by coordinate, and in the label."""
    if isinstance(mine, Record) and isinstance(theirs, Record):
        return mine.y == theirs.y and _close(mine.x, theirs.x, SAME_FEATURE * spread)
    if isinstance(mine, Record) or isinstance(theirs, Record):
        return False
    return _close(mine, theirs, SAME_GRADIENT * np.abs(theirs).max(initial=0.0))


def _equally_far(mine: tuple[World, ...], theirs: tuple[World, ...]) -> bool:
    """Whether z − z′, which the audit is about, is the same up to rounding."""
    steps = []
    for worlds in (mine, theirs):
        arrays = [np.asarray(one.x if isinstance(one, Record) else one, dtype=np.float64) for one in worlds]
        steps.append(arrays[0] - arrays[-1])
    return bool(np.linalg.norm(steps[0] - steps[1]) <= SAME_DIFFERENCE * np.linalg.norm(steps[1]))


def _close(x: NDArray[np.float32], y: NDArray[np.float32], allowed: NDArray[np.float64] | float) -> bool:
    if x.shape != y.shape:
        return False
    return bool((np.abs(x.astype(np.float64) - y) <= allowed + 2 * np.spacing(np.abs(y))).all())
