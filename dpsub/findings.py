"""What audits found beside what the accountants promise: datasets of scores made ready for tables and figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from dpsub import accounting, estimators
from dpsub.estimators import LowerBound


def kept(notebook: str, preset: str = "paper") -> Path:
    """Where the repository keeps the audits that a notebook's rerun left, seen from its root or from a folder in it.

    Raises:
        FileNotFoundError: if there are none here.
    """
    path = Path("results", preset, notebook)
    for start in (Path(), Path("..")):
        if (start / path).is_dir():
            return start / path
    raise FileNotFoundError(
        f"notebook must have audits in {path}, in this folder or the one above, got none: "
        f"make rerun PRESET={preset} ONLY={notebook}"
    )


def bounds(result: xr.Dataset, *, delta: float, runs: int | None = None, **options: Any) -> list[list[LowerBound]]:
    """The lower bounds on ε of an audit: for each of its repeats a list, one bound for each step observed.

    Args:
        result: of `dpsub.audit` or `dpsub.audit_worst_case`, or read from a store.
        delta: at which δ.
        runs: use the first so many runs of each repeat only.
        options: of `estimators.epsilon_lower_bound`.

    Raises:
        ValueError: if there are not so many runs, or a step, a run or a whole repeat is missing.
    """
    if "repeat" not in result.dims:
        result = result.expand_dims("repeat")
    there = result.sizes["run"]
    if runs is not None and not 2 <= runs <= there:
        raise ValueError(f"runs must be from 2 to the {there} of the audit, got {runs}")
    result = result.isel(run=slice(runs))
    found = []
    for repeat in range(result.sizes["repeat"]):
        one = result.isel(repeat=repeat)
        answer = estimators.epsilon_lower_bound(one.score, one.bit, delta=delta, **options)
        found.append([answer] if isinstance(answer, LowerBound) else answer)
    return found


def promises(result: xr.Dataset, *, delta: float) -> dict[str, np.ndarray]:
    """The accountants' ε at the steps of an audit: "substitute" and "add_remove"."""
    about = result.attrs
    steps = np.atleast_1d(result.step.values)
    return {
        adjacency: np.asarray(
            accounting.epsilon(
                noise_multiplier=about["noise_multiplier"],
                sample_rate=about["sample_rate"],
                steps=steps,
                delta=delta,
                adjacency=adjacency,
            )
        )
        for adjacency in ("substitute", "add_remove")
    }


def panel(audited: Mapping[str, xr.Dataset], *, delta: float, **options: Any) -> dict[str, Any]:
    """All that `figures.epsilon_against_step` draws of several scenarios in one training: steps, promises, audits.

    Args:
        audited: by scenario, audits of the same training at the same steps, with the same number of runs and repeats.
        delta: at which δ.
        options: of `estimators.epsilon_lower_bound`.

    Raises:
        ValueError: if the audits differ in what they are of.
    """
    first = next(iter(audited.values()))
    for scenario, other in audited.items():
        for name in ("noise_multiplier", "sample_rate", "task", "runs"):
            if other.attrs[name] != first.attrs[name]:
                raise ValueError(
                    f"audited must be of one training, got {scenario} with {name} {other.attrs[name]!r} beside "
                    f"{first.attrs[name]!r}"
                )
        if not np.array_equal(other.step, first.step):
            raise ValueError(f"audited must be observed at the same steps, got {scenario} at others")
    return {
        "steps": first.step.values,
        **promises(first, delta=delta),
        "audited": {scenario: bounds(result, delta=delta, **options) for scenario, result in audited.items()},
        "ceiling": estimators.max_certifiable_epsilon(first.attrs["runs"], delta=delta),
    }


def last_step(audited: Iterable[xr.Dataset], *, delta: float) -> pd.DataFrame:
    """What audits found in the final models: a row each.

    Columns: `scenario`; `sample_rate`, `max_grad_norm`, `steps`, `learning_rate`; `bound`, the mean over repeats of the
    valid bound on ε, and `error`, two standard errors of it, NaN for a single repeat; `papers_rule`, the mean with the
    best threshold on the scores that it judges, not valid; `substitute` and `add_remove`, the accountants' ε.
    """
    rows = []
    for result in audited:
        last = result.isel(step=[-1])
        valid, papers = (
            estimators.over_repeats([repeat[-1] for repeat in bounds(last, delta=delta, threshold=rule)])
            for rule in ("ranks", "best")
        )
        names = ("scenario", "sample_rate", "max_grad_norm", "steps", "learning_rate")
        rows.append(
            {name: result.attrs[name] for name in names}
            | {"bound": valid.mean, "error": valid.error, "papers_rule": papers.mean}
            | {adjacency: float(epsilon[0]) for adjacency, epsilon in promises(last, delta=delta).items()}
        )
    return pd.DataFrame(rows)


def source(*audited: xr.Dataset) -> str:
    """What a figure's audits were made on and of how many models, to stand under it."""
    tasks = dict.fromkeys(result.attrs["task"] for result in audited)
    sizes = dict.fromkeys((result.attrs["runs"], result.attrs.get("repeats", 1)) for result in audited)
    told = " and ".join(
        f"{runs:,} models" if repeats == 1 else f"{repeats} × {runs:,} models" for runs, repeats in sizes
    )
    return f"{', '.join(tasks)}; {told} an audit"
