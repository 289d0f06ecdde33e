"""An attribute of records: the columns that hold it, and the values that it may take."""

from __future__ import annotations

import numbers
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpsub._core import checks
from dpsub.data import Task

Values = NDArray[np.float32]


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
        one = isinstance(only, numbers.Real)
        both = [only] if one else checks.several("only must be a value, or a pair of values for z and z′", only)
        if not one and len(both) != 2:
            raise ValueError(f"only must be a value, or a pair of values for z and z′, got {len(both)} values")
        checked = [_value("only", value, positions) for value in both]
        if not one and checked[0] == checked[1]:
            raise ValueError(f"only must be two different values, got {both[0]!r} twice")
        return Attribute(indices, group, np.array(checked[-1:]), None if one else checked[0], "only")
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
