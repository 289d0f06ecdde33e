"""Reading the dataset of an audit: its dimensions by their names, and whether it is whole."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from math import isclose
from numbers import Real
from typing import Any

import numpy as np
import xarray as xr

from dpsub._core import checks
from dpsub.estimators import LowerBound

ONE_TRAINING = (
    "noise_multiplier", "sample_rate", "steps", "max_grad_norm", "learning_rate", "optimizer", "n", "model",
    "task_fingerprint", "adjacency",
)  # fmt: skip
DIMENSIONS = ("repeat", "run", "step")


def dataset(argument: str, result: Any) -> xr.Dataset:
    if not isinstance(result, xr.Dataset):
        raise ValueError(f"{argument} must be the dataset of an audit, got {type(result).__name__}")
    return result


def arranged(argument: str, result: Any) -> xr.Dataset:
    """The scores (repeat, run, step) and bits (repeat, run) of an audit; what it has no dimension for has size 1."""
    of = dataset(argument, result)
    for name in ("score", "bit"):
        if name not in of.data_vars:
            raise ValueError(f"{argument} must be the dataset of an audit, with score and bit, got one without {name}")
    for name, dims in (("score", DIMENSIONS), ("bit", DIMENSIONS[:2])):
        there = of[name].dims
        if "run" not in there or set(there) - set(dims) or ("repeat" in there) != ("repeat" in of.score.dims):
            raise ValueError(
                f"{argument} must have a score for each run, and step and repeat if there are several, and a bit for "
                f"each of these runs, got {name} with the dimensions {tuple(map(str, there))}"
            )
        if 0 in of[name].shape:
            raise ValueError(f"{argument} must hold runs, steps and repeats, got {name} with {dict(of[name].sizes)}")
    found = {
        name: of[name].expand_dims([one for one in dims if one not in of[name].dims]).transpose(*dims)
        for name, dims in (("score", DIMENSIONS), ("bit", DIMENSIONS[:2]))
    }
    return xr.Dataset(found, attrs=of.attrs)


def of_steps(argument: str, result: Any) -> xr.Dataset:
    """Refuse what is no audit of steps at canary rate 1."""
    of = dataset(argument, result)
    dims = {name: of[name].dims for name in ("score", "bit") if name in of.data_vars}
    if dims != dict.fromkeys(("score", "bit"), ("observation",)):
        raise ValueError(f"{argument} must be an audit by audit_steps, got one with the variables {dims}")
    rate = attribute(argument, of, "q_c")
    if checks.real(f"{argument}'s q_c", rate) != 1:
        raise ValueError(
            f"{argument} must have a canary rate of 1, got {rate}: below, use epsilon_lower_bound(method='pld', "
            "sample_rate=canary_rate, steps=1, adjacency=…)"
        )
    return of


def whole(argument: str, arranged: xr.Dataset) -> xr.Dataset:
    """Refuse an audit with runs that are not there, as a store has while it is written."""
    missing = int(arranged.score.isnull().sum())
    if missing:
        raise ValueError(
            f"{argument} must be whole, got {missing:,} of {arranged.score.size:,} scores NaN: its store is not "
            "complete, or runs diverged"
        )
    if not bool(arranged.bit.isin((0, 1)).all()):
        raise ValueError(
            f"{argument} must have bits of 0 (trained with z) or 1 (with z_prime), got "
            f"{np.unique(arranged.bit.values).tolist()[:5]}: -1 is a run that is not there yet"
        )
    return arranged


def all_valid(argument: str, bounds: Iterable[LowerBound]) -> None:
    """Refuse an audit whose scores allow no valid bound, where nothing would say so."""
    for bound in bounds:
        if not bound.valid:
            raise ValueError(f"{argument} must have scores that allow a valid bound, got others: {bound.note}")


def steps(argument: str, result: xr.Dataset) -> np.ndarray:
    """(steps,) the observed steps: a selection of one step has one."""
    if "step" not in result.coords:
        raise ValueError(f"{argument} must have the coordinate step, which says when scores were observed")
    found = np.atleast_1d(result.step.values)
    if found.ndim != 1 or not found.size or found.dtype.kind not in "iuf" or not (found >= 1).all():
        raise ValueError(f"{argument} must have steps >= 1, one or more, got the coordinate step {found.tolist()}")
    return found


def attribute(argument: str, result: xr.Dataset, name: str) -> Any:
    if name not in result.attrs:
        raise ValueError(f"{argument} must have the attributes of an audit, got one without {name}")
    return result.attrs[name]


def numbered(argument: str, result: xr.Dataset) -> xr.Dataset:
    """The dataset with the numbers of its runs as a coordinate: its own, or else the places in the whole audit."""
    runs = result.sizes["run"]
    if "run" in result.coords:
        if len(np.unique(result.run.values)) < runs:
            raise ValueError(f"{argument} must hold each run once, got some twice in the coordinate run")
        return result
    if result.attrs.get("runs", runs) != runs:
        raise ValueError(
            f"{argument} must say which runs it holds, got {runs} of {result.attrs['runs']} without the coordinate "
            "run: select runs after assign_coords(run=range(…))"
        )
    return result.assign_coords(run=np.arange(runs))


def differing(one: xr.Dataset, other: xr.Dataset, names: Iterable[str]) -> str | None:
    """The first of these attributes that differs. σ may differ by rounding, as between two machines."""
    for name in names:
        mine, its = one.attrs.get(name), other.attrs.get(name)
        same = bool(its == mine)
        if not same and name == "noise_multiplier" and isinstance(mine, Real) and isinstance(its, Real):
            with suppress(OverflowError):  # of whole numbers beyond the largest float
                same = isclose(mine, its, rel_tol=1e-6)
        if not same:
            return name
    return None
