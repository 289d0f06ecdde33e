"""S6: one record with two values of one attribute, the columns that hold it, and the values that it may take."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpsub._core import CanaryPair, Pairs, Record, checks
from dpsub.accounting import DPSGD
from dpsub.crafters.reference_model import Geometry, Reference, compare_gradients, crafted_pair, reference
from dpsub.crafters.slots import pairs_of_records, shuffled_slots
from dpsub.data import Task
from dpsub.data.frames import Column
from dpsub.models.interface import Model, check_fits


@checks.checked("spec", "seed")
def attribute(
    task: Task,
    model: Model,
    spec: DPSGD,
    *,
    columns: int | str | Sequence[int] | None = None,
    values: ArrayLike | None = None,
    only: float | tuple[float, float] | None = None,
    seed: int,
    target: int | str | None = None,
) -> CanaryPair:
    r"""S6, the attribute: z = (x, y), and z′ = (x′, y), where x′ is x with another value of one attribute.

    It takes the candidate value whose gradient, clipped to C, is farthest from z's clipped gradient. Both gradients
    are those of a reference model at the end of its training.

    Args:
        task: the private records, which this adversary knows. Its features must be flat, (n, d).
        model, spec, seed: as in `crafted_input`. This adversary also uses `spec.max_grad_norm`, C.
        columns: the attribute: the name of a column, if the task is from `data.from_frame`; by default its sensitive
            one. Or the index of its feature, or the indices of the two or more features of a one-hot group.
        values: candidates for the value in z′. By default those that occur among the private records. For a one-hot
            group, positions within the group, from 0; by default all. Of a named column, values as in its frame.
        only: the values to tell apart, instead of candidates to choose from. One value: z keeps the record's own and z′
            has this one. A pair: z has the first and z′ the second, whatever the record's own is. For a one-hot group,
            positions within the group; of a named column, values as in its frame.
        target: the index of the private record. By default it is the record to whose label the reference gives the
            least probability, as in `crafted_input`. "most_exposed": the record whose z and z′ have clipped gradients
            that are farthest apart, on average over a training without noise. It takes a while for many records.

    Returns:
        A substitute pair of records with the same label, which differ in `columns` alone. Details: `confidence` and
        `norm`, the record's confidence and z's gradient norm; `cosine` and `norm_ratio`, of the gradient of z′ relative
        to z's; `distance` between the clipped gradients in units of C, at most 2; `columns`; `value` and `other`, the
        attribute of z and of z′ (positions, for a one-hot group). In the trace: `value`, `cosine` and `distance`
        (candidates,); `confidence` (n,) of all private records; for the most exposed target `exposure` (n,), each
        record's distance in units of C, and NaN for those that cannot be a target.

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
    sensitive = attribute_of(task, columns, values, only)
    able = [slot for slot, x in enumerate(task.x_train) if len(sensitive.others(x))] or [0]  # which is then refused
    craft = partial(_with_farthest_value, sensitive=sensitive, max_grad_norm=spec.max_grad_norm)
    return crafted_pair(craft, able, target, task, model, spec, seed=seed)


@checks.checked("spec", "seed")
def attribute_pairs(
    task: Task,
    model: Model,
    spec: DPSGD,
    *,
    columns: int | str | Sequence[int] | None = None,
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
    pairs, order = shuffled_slots(task, model, pairs, seed)
    sensitive = attribute_of(task, columns, values, only)
    able = (slot for slot in order if len(sensitive.others(task.x_train[slot])))
    targets = reference(task, model, spec, seed=seed).targets(able)
    crafted = (_with_farthest_value(target, sensitive, spec.max_grad_norm) for target in targets)
    return pairs_of_records(pairs, crafted, {"columns": sensitive.name, "seed": seed}, "distance")


def _with_farthest_value(trained: Reference, sensitive: Attribute, max_grad_norm: float) -> CanaryPair:
    """The target z, and z′ with the candidate value whose clipped gradient is farthest from that of z."""
    x, y = trained.z
    value, others = sensitive.value_of(x), sensitive.others(x)
    if not len(others):
        raise ValueError(
            "columns, values or only must leave a value that differs from the record's own, got only the one that "
            f"private record {trained.slot} has already: give another value, or choose another target"
        )
    trained = trained._replace(z=Record(sensitive.with_value(x, value), y))
    changed = np.stack([sensitive.with_value(x, other) for other in others])
    gradients = compare_gradients(trained, changed, np.full(len(others), y))
    distance = clipped_distance(gradients, max_grad_norm) / max_grad_norm
    chosen = int(distance.argmax())
    details = {**gradients.details(chosen), "distance": float(distance[chosen]), "columns": sensitive.name}
    details |= {"value": sensitive.told(value), "other": sensitive.told(others[chosen])}
    trace = {"value": np.array([*map(sensitive.told, others)]), "cosine": gradients.cosine, "distance": distance}
    return trained.pair("S6", Record(changed[chosen], y), details, trace)


def clipped_distance(gradients: Geometry, max_grad_norm: float) -> NDArray[np.float64]:
    """(k,): the distance of each candidate's gradient from the target's, both clipped to `max_grad_norm`."""
    own = min(gradients.norm, max_grad_norm)
    lengths = np.minimum(gradients.ratio * gradients.norm, max_grad_norm)
    squared = (own - lengths) ** 2 + 2 * own * lengths * (1 - gradients.cosine)
    return np.sqrt(np.maximum(squared, 0))  # rounding may leave equal gradients slightly below 0


class Attribute(NamedTuple):
    """One feature, whose values are numbers; or a one-hot group, whose values are positions within it.

    Attributes:
        columns: the index of the column, (); or of the columns of a one-hot group, (k,).
        candidates: values for z′, each once: float32 for a column, int64 for a group.
        value_in_z: the value for z. None: the record's own.
        column: of the task's frame, if the attribute was asked for by its name.
    """

    columns: NDArray[np.int64]
    candidates: NDArray[Any]
    value_in_z: Any
    column: Column | None = None

    @property
    def name(self) -> int | str:
        """The columns, as `CanaryPair.details` can hold them."""
        if self.column:
            return self.column.name
        return " ".join(map(str, self.columns)) if self.columns.ndim else int(self.columns)

    def value_of(self, x: NDArray[np.float32]) -> Any:
        """The value that z has, for a record with the features x, (d,)."""
        if self.value_in_z is not None:
            return self.value_in_z
        return x[self.columns].argmax() if self.columns.ndim else x[self.columns]

    def told(self, value: Any) -> Any:
        """A value, as `CanaryPair.details` can hold it: of a column of a frame as it is there."""
        return self.column.value(value) if self.column else value.item()

    def with_value(self, x: NDArray[np.float32], value: Any) -> NDArray[np.float32]:
        """The features x, (d,), with another value of the attribute: a copy."""
        changed = x.copy()
        changed[self.columns] = np.arange(self.columns.size) == value if self.columns.ndim else value
        return changed

    def others(self, x: NDArray[np.float32]) -> NDArray[Any]:
        """The candidates that differ from the value that z has, for a record with the features x."""
        others: NDArray[Any] = self.candidates[self.candidates != self.value_of(x)]
        return others


def attribute_of(task: Task, columns: Any, values: Any, only: Any) -> Attribute:
    """The attribute that `columns`, `values` and `only` describe, checked before any training.

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
    column = None
    if columns is None or isinstance(columns, str):
        if not task.columns:
            raise ValueError(f"columns must be indices where a task is not from data.from_frame, got {columns!r}")
        column = task.columns[checks.choice("columns", columns or task.sensitive, list(task.columns))]
        columns = column.places if column.categories is not None else column.places[0]
        values, only = (None if given is None else column.coded(given) for given in (values, only))
    indices = checks.array("columns", columns, kind=np.int64, at_least=0, at_most=x.shape[1] - 1)
    check_values, unit = partial(checks.array, kind=np.float32), ""
    if indices.ndim:
        _check_one_hot(indices, x[:, indices])
        check_values = partial(checks.array, kind=np.int64, at_least=0, at_most=len(indices) - 1)
        unit = " (positions within the one-hot group)"
    if values is not None and only is not None:
        raise ValueError("only and values must not be given together, since only names the values: leave one out")
    if only is not None:
        first, *second = np.atleast_1d(check_values(f"only{unit}", only))
        if len(second) > 1 or first in second:
            raise ValueError(f"only must be a value, or a pair of two different values for z and z′, got {only!r}")
        return Attribute(indices, np.array(second or [first]), first if second else None, column)
    if values is not None:
        return Attribute(indices, np.unique(check_values(f"values{unit}", values, shape=("values",))), None, column)
    candidates = np.arange(len(indices)) if indices.ndim else np.unique(x[:, indices])
    if len(candidates) < 2 or not np.ptp(x[:, indices], axis=0).any():
        raise ValueError(
            f"columns must vary among the private records, got {columns!r} with one value throughout: give values"
        )
    return Attribute(indices, candidates, None, column)


def _check_one_hot(indices: NDArray[np.int64], part: NDArray[np.float32]) -> None:
    if indices.ndim > 1 or len(indices) < 2 or len(np.unique(indices)) < len(indices):
        raise ValueError(
            "columns must be the index of a column, or the different indices of the columns of a one-hot group, two or "
            f"more, got {indices.tolist()}: name a single column by its index alone"
        )
    bad = ~np.isin(part, (0, 1)).all(axis=1) | (part.sum(axis=1) != 1)
    if bad.any():
        raise ValueError(
            "columns must be a one-hot group, with one 1 and otherwise 0 in every private record, got "
            f"{bad.sum()} of {len(part)} records with something else in {indices.tolist()}: make the task without "
            "scaling these columns, or name a single column by its index alone"
        )
