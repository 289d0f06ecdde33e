"""S6: one record with two values of one attribute, the columns that hold it, and the values that it may take."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpsub._core import DPSGD, CanaryPair, Pairs, Record, checks
from dpsub.crafters.private_records import slots_of, together
from dpsub.crafters.reference_model import Geometry, Reference, compare_gradients, reference
from dpsub.data import Task
from dpsub.models import Model, check_fits

Values = NDArray[np.float32]


@checks.checked("spec", "seed")
def attribute(
    task: Task,
    model: Model,
    spec: DPSGD,
    *,
    columns: int | Sequence[int],
    values: ArrayLike | None = None,
    only: float | tuple[float, float] | None = None,
    seed: int,
    target: int | None = None,
) -> CanaryPair:
    r"""S6, the attribute: z = (x, y), and z′ = (x′, y), where x′ is x with another value of one attribute.

    Of all candidate values the one is taken whose gradient, clipped to C, lies farthest from z's clipped gradient. Both
    gradients are those of a reference model at the end of its training.

    Args:
        task: the private records, which this adversary knows. Its features must be flat, (n, d).
        model, spec, seed: as in `crafted_input`. This adversary also uses `spec.max_grad_norm`, C.
        columns: the attribute: the index of its column, or the indices of the two or more columns of a one-hot group.
        values: candidates for the value in z′. By default those that occur among the private records. For a one-hot
            group, positions within the group, from 0; by default all.
        only: the values to tell apart, instead of candidates to choose from. One value: z keeps the record's own and z′
            has this one. A pair: z has the first and z′ the second, whatever the record's own is. For a one-hot group,
            positions within the group.
        target: the index of the private record. By default it is the record to whose label the reference gives the
            least probability, as in `crafted_input`.

    Returns:
        A substitute pair of records with the same label, which differ in `columns` alone. Details: `confidence` and
        `norm`, the record's confidence and z's gradient norm; `cosine` and `norm_ratio`, of the gradient of z′ relative
        to z's; `distance` between the clipped gradients in units of C, at most 2; `columns`; `value` and `other`, the
        attribute of z and of z′ (positions, for a one-hot group). In the trace: `value`, `cosine` and `distance`
        (candidates,); `confidence` (n,) of all private records.

    Raises:
        ValueError: if an argument is out of range, if the columns do not vary or are no one-hot group, if no candidate
            differs from the record's own value, or if the reference's training diverges.

    Source: dpsub's own, after section 3.2.2 of *Beyond Membership*.

    >>> from dpsub import DPSGD, crafters, data, models
    >>> task = data.from_arrays([[0.0, 3.0], [1.0, 2.0], [1.0, 5.0]], [0, 1, 1])
    >>> spec = DPSGD(1.0, 1.0, 1.0, 10, 0.1)
    >>> pair = crafters.attribute(task, models.linear(task), spec, columns=0, only=(0.0, 1.0), target=2, seed=0)
    >>> pair.z.x.tolist(), pair.z_prime.x.tolist()
    ([0.0, 5.0], [1.0, 5.0])
    """
    check_fits(model, task)
    if target is not None:
        target = checks.whole("target", target, at_least=0, at_most=len(task.y_train) - 1)
    about = attribute_of(task, columns, values, only)
    for slot in range(len(task.y_train)) if target is None else [target]:
        if len(about.others(task.x_train[slot])):
            break
    else:
        raise _nothing_else(about, target)
    trained = reference(task, model, spec, seed=seed, target=target)
    if not len(about.others(trained.z.x)):
        raise _nothing_else(about, trained.slot)
    return _with_farthest_value(trained, about, task, spec.max_grad_norm, seed)


@checks.checked("spec", "seed")
def attribute_pairs(
    task: Task,
    model: Model,
    spec: DPSGD,
    *,
    columns: int | Sequence[int],
    values: ArrayLike | None = None,
    only: float | tuple[float, float] | None = None,
    pairs: int,
    seed: int,
) -> Pairs:
    """m attribute pairs: private records, each with two values of one attribute, chosen as `attribute` chooses them.

    Args:
        task, model, spec, columns, values, only: as in `attribute`. All pairs are crafted with one reference model.
        pairs: m, from 1 to n − 1. As many private records must have a value that differs from a candidate.
        seed: of the reference, and for the choice of the records.

    Returns:
        Pairs of records. In the trace: `distance` (m,) between the clipped gradients, in units of C.

    Raises:
        ValueError: as in `attribute`, or if too few private records have another value.

    Source: dpsub's own, after section 3.2.2 of *Beyond Membership*; Keinan et al. (2025), Algorithm 1.
    """
    pairs, order = slots_of(task, model, pairs, seed)
    about = attribute_of(task, columns, values, only)
    able = [slot for slot in order if len(about.others(task.x_train[slot]))][:pairs]
    if len(able) < pairs:
        raise ValueError(
            f"pairs must be at most the number of private records that may take another value, {len(able)}, got {pairs}"
        )
    trained = reference(task, model, spec, seed=seed)
    made = (
        _with_farthest_value(trained.with_target(task, slot), about, task, spec.max_grad_norm, seed) for slot in able
    )
    return together(made, {"columns": about.name, "seed": seed}, "distance")


def _with_farthest_value(
    trained: Reference, about: Attribute, task: Task, max_grad_norm: float, seed: int
) -> CanaryPair:
    """The target with two values of an attribute: the other one's clipped gradient lies farthest from the first's."""
    own = trained.z.x
    others = about.others(own)
    value = about.value_of(own) if about.first is None else about.first
    trained = trained._replace(z=Record(about.with_value(own, value), trained.z.y))
    changed = np.stack([about.with_value(own, other) for other in others])
    gradients = compare_gradients(trained, changed, np.full(len(others), trained.z.y))
    distance = clipped_distance(gradients, max_grad_norm) / max_grad_norm
    chosen = int(distance.argmax())
    return trained.pair(
        task,
        "S6",
        Record(changed[chosen], trained.z.y),
        seed=seed,
        details={
            **gradients.details(chosen),
            "distance": float(distance[chosen]),
            "columns": about.name,
            "value": about.told(value),
            "other": about.told(others[chosen]),
        },
        trace={"value": others, "cosine": gradients.cosine, "distance": distance},
    )


def clipped_distance(gradients: Geometry, max_grad_norm: float) -> NDArray[np.float64]:
    """(k,): the distance of each candidate's gradient from the target's, both clipped to `max_grad_norm`."""
    own = min(gradients.norm, max_grad_norm)
    lengths = np.minimum(gradients.ratio * gradients.norm, max_grad_norm)
    squared = (own - lengths) ** 2 + 2 * own * lengths * (1 - gradients.cosine)
    return np.sqrt(np.maximum(squared, 0))  # rounding may leave equal gradients slightly below 0


def _nothing_else(about: Attribute, slot: int | None) -> ValueError:
    whose = "every private record has already" if slot is None else f"private record {slot} has already"
    return ValueError(
        f"{about.given} must hold a value that differs from the record's own, got only the one that {whose}: give "
        "another value, or choose another target"
    )


class Attribute(NamedTuple):
    """One column, whose values are numbers; or a one-hot group, whose values are positions within it.

    Attributes:
        columns: the columns' indices.
        group: whether they are a one-hot group.
        candidates: (k,) values for z′, each once.
        first: the value for z. None: the record's own.
        given: the argument that names the candidates, for messages.
    """

    columns: tuple[int, ...]
    group: bool
    candidates: Values
    first: np.float32 | None
    given: str

    @property
    def name(self) -> int | str:
        """The columns, as `CanaryPair.details` can hold them."""
        return " ".join(map(str, self.columns)) if self.group else self.columns[0]

    def value_of(self, x: Values) -> np.float32:
        """The value of a record with the features x, (d,)."""
        part: Values = x[list(self.columns)]
        return np.float32(part.argmax()) if self.group else part[0]

    def with_value(self, x: Values, value: np.float32) -> Values:
        """The features x, (d,), with another value of the attribute: a copy."""
        changed: Values = x.copy()
        changed[list(self.columns)] = np.arange(len(self.columns)) == value if self.group else value
        return changed

    def others(self, x: Values) -> Values:
        """The candidates that differ from the value that z has, for a record with the features x."""
        value = self.value_of(x) if self.first is None else self.first
        others: Values = self.candidates[self.candidates != value]
        return others

    def told(self, value: np.float32) -> float | int:
        return int(value) if self.group else float(value)


def attribute_of(task: Task, columns: Any, values: Any, only: Any) -> Attribute:
    """Check what was given about an attribute, before any training.

    Args:
        task: a checked task.
        columns, values, only: as in `dpsub.crafters.attribute`.

    Raises:
        ValueError: if one of them does not fit the task's private records.
    """
    x = task.x_train
    if x.ndim != 2:
        raise ValueError(
            f"task must have flat features (n, d) for columns to index, got records of shape {x.shape[1:]}: make a "
            "task of flattened features"
        )
    indices, group = _columns(columns, x.shape[1])
    part = x[:, indices]
    if group:
        _check_one_hot(indices, part)
    if values is not None and only is not None:
        raise ValueError("only and values must not be given together, since only names the values: leave one out")
    positions = len(indices) if group else None
    if only is not None:
        single = isinstance(only, numbers.Real)
        both = [only] if single else checks.several("only must be a value, or a pair of values for z and z′", only)
        if not single and len(both) != 2:
            raise ValueError(f"only must be a value, or a pair of values for z and z′, got {len(both)} values")
        checked = [_value("only", value, positions) for value in both]
        if not single and checked[0] == checked[1]:
            raise ValueError(f"only must be two different values, got {both[0]!r} twice")
        return Attribute(indices, group, np.array(checked[-1:]), None if single else checked[0], "only")
    if values is not None:
        listed = checks.several("values must be a sequence of candidate values", values)
        if not listed:
            raise ValueError("values must be one candidate value or more, got none")
        candidates = np.unique(np.array([_value("values", value, positions) for value in listed]))
        return Attribute(indices, group, candidates, None, "values")
    if not np.ptp(part, axis=0).any():
        raise ValueError(
            f"columns must vary among the private records, got {columns!r} with one value throughout: give values"
        )
    candidates = np.arange(len(indices), dtype=np.float32) if group else np.unique(part)
    return Attribute(indices, group, candidates, None, "columns")


def _columns(columns: Any, count: int) -> tuple[tuple[int, ...], bool]:
    if isinstance(columns, numbers.Real):
        return (checks.whole("columns", columns, at_least=0, at_most=count - 1),), False
    expected = "columns must be the index of a column, or the indices of the columns of a one-hot group"
    indices = tuple(
        checks.whole("columns", i, at_least=0, at_most=count - 1) for i in checks.several(expected, columns)
    )
    if len(indices) < 2:
        raise ValueError(f"{expected}, two or more, got {columns!r}: name a single column by its index alone")
    if len(set(indices)) < len(indices):
        raise ValueError(f"columns must name each column of a one-hot group once, got {columns!r}")
    return indices, True


def _check_one_hot(indices: tuple[int, ...], part: Values) -> None:
    top = part == part.max(axis=0)
    bad = ~np.isin(part, (0, 1)).all(axis=1) | (part.sum(axis=1) != 1)
    if not bad.any():
        return
    scaled = ((part == part.min(axis=0)) | top).all() and (top.sum(axis=1) == 1).all()
    raise ValueError(
        "columns must be a one-hot group, with one 1 and otherwise 0 in every private record, got "
        f"{int(bad.sum())} of {len(part)} records with something else in {list(indices)}: "
        + ("make the task without scaling these columns" if scaled else "name a single column by its index alone")
    )


def _value(name: str, value: Any, positions: int | None) -> np.float32:
    """A value in float32, as records hold it, −0 as 0."""
    if positions is not None:
        try:
            return np.float32(checks.whole(name, value, at_least=0, at_most=positions - 1))
        except ValueError as error:
            raise ValueError(f"{error}; for a one-hot group, {name} must be positions within it") from None
    number = checks.real(name, value)
    with np.errstate(over="ignore"):
        narrow = np.float32(number) + np.float32(0)
    if not np.isfinite(narrow):
        raise ValueError(f"{name} must be finite in float32, got {number:g}")
    return narrow
