"""What figures and tables are given: axes, numbers, bounds by name, and the datasets of audits."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from math import isclose
from numbers import Real
from typing import Any, get_args

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from numpy.typing import NDArray

from dpsub._core import checks
from dpsub.estimators import LowerBound
from dpsub.estimators.claims import Assumption

Array = NDArray[np.float64]
ONE_TRAINING = (
    "noise_multiplier", "sample_rate", "steps", "max_grad_norm", "learning_rate", "optimizer", "n", "model",
    "task_fingerprint", "adjacency", "sampling",
)  # fmt: skip
DIMENSIONS = ("repeat", "run", "step")


def on_axes(**given: Any) -> None:
    """Refuse what cannot be drawn on."""
    for argument, ax in given.items():
        if not isinstance(ax, Axes):
            raise ValueError(f"{argument} must be matplotlib axes, as plt.subplots makes them, got {_told(ax)}")


def text(argument: str, value: Any) -> str:
    if not isinstance(value, str) or not checks.drawable(value):
        raise ValueError(f"{argument} must be a text without NUL and halves of characters, got {_told(value)}")
    return value


def points(argument: str, values: Any, count: int | None = None, *, finite: bool = True) -> Array:
    """A sequence of numbers, `count` of them or one or more; infinite ones only if `finite` is False."""
    array = numbers(argument, values, finite=finite)
    if array.ndim != 1 or not len(array) or len(array) != (len(array) if count is None else count):
        expected = "(k,), one or more numbers" if count is None else f"({count},), one for each point"
        raise ValueError(f"{argument} must have shape {expected}, got {array.shape}")
    return array


def numbers(argument: str, values: Any, *, finite: bool = True) -> Array:
    """An array of numbers without NaN; infinite ones only if `finite` is False."""
    checks.no_mask(argument, values)
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, RuntimeError):  # the last of tensors that require gradients
        array = np.array(None)
    if array.size and array.dtype.kind not in "iuf":
        raise ValueError(f"{argument} must be numbers, got {_told(values)}")
    array = array.astype(np.float64)
    if np.isnan(array).any() or (finite and np.isinf(array).any()):
        raise ValueError(f"{argument} must be {'finite' if finite else 'no NaN'}, got {array[~np.isfinite(array)][0]}")
    return array


def named(argument: str, values: Any, *, taken: Collection[str] = ()) -> Mapping[Any, Any]:
    """A mapping with one entry or more, whose names can be told from each other and from those that are taken."""
    if not isinstance(values, Mapping):
        raise ValueError(f"{argument} must be a dictionary, by name, got {_told(values)}")
    if not values:
        raise ValueError(f"{argument} must have one entry or more, by name, got none")
    for name in values:
        if not str(name).strip() or not checks.drawable(str(name)) or name in taken:
            others = f", and not {', '.join(map(repr, taken))}" if taken else ""
            raise ValueError(f"{argument} must have names that are not empty{others}, got {name!r}")
    return values


def audits(argument: str, audited: Any, count: int, *, taken: Collection[str]) -> dict[Any, list[list[LowerBound]]]:
    """For each name its repeats, each with `count` bounds."""
    found = {}
    for name, repeats in named(argument, audited, taken=taken).items():
        of = f"{argument}[{name!r}]"
        if not isinstance(repeats, Sequence) or isinstance(repeats, str) or not len(repeats):
            raise ValueError(f"{of} must be a list of repeats, one or more, got {_told(repeats)}")
        for repeat in repeats:
            if not isinstance(repeat, Sequence) or not all(isinstance(bound, LowerBound) for bound in repeat):
                raise ValueError(f"{of} must hold lists of bounds, one list for each repeat, got {_told(repeat)}")
            for bound in repeat:
                if numbers(of, bound.epsilon).ndim or bound.epsilon < 0:
                    raise ValueError(f"{of} must hold bounds with an epsilon >= 0, got {_told(bound.epsilon)}")
                checks.choice(f"{of}: assumes", bound.assumes, get_args(Assumption))
            if len(repeat) != count:
                raise ValueError(f"{of} must have {count} bounds in each repeat, one for each point, got {len(repeat)}")
        found[name] = [list(repeat) for repeat in repeats]
    return found


def _told(value: Any) -> str:
    """What was given, short enough for a sentence."""
    told = repr(value)
    return told if len(told) <= 60 and "\n" not in told else f"{type(value).__name__}"


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
        raise ValueError(
            f"{argument} must have the attributes of an audit, got one without {name}: give it with "
            f"{argument}.assign_attrs({name}=…), or to audit_training in parameters={{…}}; figures.beside_claims "
            "draws bounds of a mechanism that has none"
        )
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
