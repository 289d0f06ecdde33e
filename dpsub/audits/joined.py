"""Several audits of one thing as one: of the same worlds and law, each with randomness of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import xarray as xr

from dpsub.audits.plans import joined

# Attributes in which audits of one thing may differ: how many runs there are, and where and when they were made.
COUNTED = ("runs", "repeats", "seed", "seeds", "first_of", "grown_from", "failed_with_z", "failed_with_z_prime")
MADE = ("device", "cpu_capability", "commit")
LEFT_OUT = ("wall_seconds", "last_written", "failed_runs", "failed_messages")


def join(*audits: xr.Dataset) -> xr.Dataset:
    """Audits of the same task, canary and law as one audit, for one bound from all of their runs.

    The audits may be read by `audits.load`, made on several machines, or be the repeats of one audit. Whether to make
    another audit must not depend on what the first ones showed: `audit(refute=…)` is for that, or a bound by rule
    "bets".

    Args:
        audits: what `audit`, `audit_training` or `audit_worst_case` returned, each with a seed of its own. The repeats
            of an audit are joined, too.

    Returns:
        A dataset with what was observed of all models. The attribute `runs` counts them, `seeds` lists their seeds, and
        devices and versions are those of all. Rows keep their coordinates `seed` and `number`.

    Raises:
        ValueError: if two audits have a seed in common; if they are not of the same task, model, canary, parameters or
            steps; or if one was stopped by a test (`audit(refute=…)`), has a scorer for each fold, or holds several
            observations of a model.

    >>> from dpsub import audit_worst_case
    >>> law = {"noise_multiplier": 20, "sample_rate": 1, "steps": 100, "adjacency": "substitute"}
    >>> both = join(*(audit_worst_case(**law, runs=1_000, seed=seed) for seed in (0, 1)))
    >>> both.sizes["run"], both.attrs["runs"], both.attrs["seeds"]
    (2000, 2000, [0, 1])
    """
    parts = [part for each in audits for part in _without_repeats(each)]
    for number, part in enumerate(parts):
        told = {"watched": "one stopped by refute", "fold": "one with a scorer for each fold"}
        other = next((told[mark] for mark in told if mark in part.coords), f"dimensions {part.bit.dims}")
        if "run" not in part.bit.dims or {*told} & {*part.coords}:
            raise ValueError(
                "audits must be of independent models that are scored alike and whose number no test decided, got "
                f"{other} in place {number}: bound each by itself"
            )
    seeds = [seed for part in parts for seed in np.unique(part.seed).tolist()]
    if len(set(seeds)) < len(seeds):
        raise ValueError(
            f"audits must have a seed each, got {seeds}: those of one seed have the same randomness, and are copies. "
            "Make another with seed=…"
        )
    first = _law(parts[0])
    for number, law in enumerate(map(_law, parts)):
        if differences := [name for name in {**first, **law} if first.get(name) != law.get(name)]:
            listed = "; ".join(f"{name} {first.get(name)!r} and {law.get(name)!r}" for name in sorted(differences))
            raise ValueError(f"audits must be of one law, got in places 0 and {number}: {listed:.800}")
    about = {name: value for name, value in parts[0].attrs.items() if name not in COUNTED + LEFT_OUT}
    about |= {name: joined(part.attrs.get(name, "") for part in parts) for name in about if _of_making(name)}
    for name in ("failed_with_z", "failed_with_z_prime"):
        if name in parts[0].attrs:
            about[name] = sum(part.attrs[name] for part in parts)
    of_all = [[name for name, values in part.data_vars.items() if "run" in values.dims] for part in parts]
    kept = [part[names].drop_vars("run", errors="ignore") for part, names in zip(parts, of_all, strict=True)]
    whole = xr.concat(kept, "run", join="exact")
    return whole.assign_attrs(about, runs=sum(part.sizes["run"] for part in parts), seeds=seeds)


def _without_repeats(audit: xr.Dataset) -> Iterable[xr.Dataset]:
    if "repeat" not in audit.dims:
        return [audit]
    return [audit.isel(repeat=place, drop=True) for place in range(audit.sizes["repeat"])]


def _of_making(name: str) -> bool:
    return name in MADE or name.startswith("version_")


def _law(audit: xr.Dataset) -> Mapping[str, Any]:
    """What must be the same in all audits: the steps, and the attributes that determine the law of the scores."""
    own = {n: v for n, v in audit.attrs.items() if n not in COUNTED + LEFT_OUT and not _of_making(n)}
    return own | {"steps observed": audit.step.values.tolist()}
