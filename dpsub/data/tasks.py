"""A task: the private, auxiliary and test records of one dataset."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpsub._core import checks
from dpsub._core.frozen import Frozen, fingerprint, read_only
from dpsub._core.random_streams import stream

SHAPE = ("records", "features", ...)
Records = tuple[NDArray[Any], NDArray[Any]]
"""Features (n, …) and labels (n,)."""


@dataclass(frozen=True, repr=False, eq=False)
class Task(Frozen):
    """Records to train on, an auxiliary set that is never trained on, and a test set. Its arrays are read-only.

    Attributes:
        x_train: (n, d) float32, or images (n, channels, height, width): the private records, including the slot's.
        y_train: (n,) int64, in 0 … num_classes − 1.
        x_aux, y_aux: records of the same kind that an adversary may use.
        x_test, y_test: records to measure accuracy on.
        num_classes: how many classes there are.
        name: the task's name in figures and stored results.
        pixels: (height, width) bool, for flat features that are pixels: where they lie in the image. Used by figures.
        columns, sensitive, rows: of a task from `from_frame`: how features hold each column, by name; the name of the
            column that `crafters.attribute` asks about by default; the index of each private record's row.
    """

    CHECKS: ClassVar[Mapping[str, checks.Check]] = {
        "name": checks.text,
        "num_classes": partial(checks.whole, at_least=2),
    }

    x_train: NDArray[np.float32]
    y_train: NDArray[np.int64]
    x_aux: NDArray[np.float32]
    y_aux: NDArray[np.int64]
    x_test: NDArray[np.float32]
    y_test: NDArray[np.int64]
    num_classes: int
    name: str
    pixels: NDArray[np.bool_] | None = None
    columns: Mapping[str, Any] | None = None
    sensitive: str | None = None
    rows: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        shape: tuple[Any, ...] = SHAPE
        for x, y in (("x_train", "y_train"), ("x_aux", "y_aux"), ("x_test", "y_test")):
            self.freeze(x, shape=shape, kind=np.float32)
            n, *features = getattr(self, x).shape
            shape = ("records", *features)
            self.freeze(y, shape=(n,), kind=np.int64, at_least=0, at_most=self.num_classes - 1)
        if len(self.x_train) < 2:
            raise ValueError(f"x_train must hold at least 2 records, got {len(self.x_train)}")
        if self.pixels is not None:
            object.__setattr__(self, "pixels", read_only(self.pixels))

    def pictures(self, x: ArrayLike) -> NDArray[np.float32]:
        """Records (k, …) as images: (k, height, width), or (k, height, width, 3) in colour.

        Raises:
            ValueError: if the records are not shaped like the task's, or its records are not images.
        """
        records = checks.array("x", x, shape=("records", *self.x_train.shape[1:]), kind=np.float32)
        if self.pixels is not None:
            shown = np.zeros((len(records), *self.pixels.shape), dtype=np.float32)
            shown[:, self.pixels] = records
            return shown
        if records.ndim != 4 or records.shape[1] not in (1, 3):
            raise ValueError(f"x must be records of a task of images, got shape {records.shape} for {self!r}")
        shown = np.moveaxis(records, 1, -1)
        return shown[..., 0] if shown.shape[-1] == 1 else shown

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that change with any private record. A canary keeps those of its task."""
        return fingerprint((self.x_train.shape, self.num_classes), self.x_train, self.y_train)

    @property
    def test_fingerprint(self) -> str:
        """16 hexadecimal digits that change with any test record."""
        return fingerprint((self.x_test.shape, self.num_classes), self.x_test, self.y_test)

    def __repr__(self) -> str:
        sizes = f"{len(self.y_train)} private, {len(self.y_aux)} auxiliary, {len(self.y_test)} test"
        return f"Task({self.name!r}: {sizes} records of shape {self.x_train.shape[1:]}, {self.num_classes} classes)"


def from_arrays(
    x_train: ArrayLike,
    y_train: ArrayLike,
    *,
    x_aux: ArrayLike | None = None,
    y_aux: ArrayLike | None = None,
    x_test: ArrayLike | None = None,
    y_test: ArrayLike | None = None,
    num_classes: int | None = None,
    name: str = "custom",
) -> Task:
    """A task from your own arrays.

    Args:
        x_train: (n, …), n ≥ 2; finite numbers, converted to float32. `linear` and `mlp` take features (n, d), `convnet`
            images (n, channels, height, width), and a module of your own whatever shape it can: of token ids
            (n, tokens) it makes whole numbers again.
        y_train: (n,) whole numbers from 0.
        x_aux, y_aux, x_test, y_test: records of the same shape; empty by default.
        num_classes: at least 2; by default the largest label plus one, or 2 if that is larger; it must be given if
            no record has the label 0.
        name: the task's name in figures and stored results.

    Raises:
        ValueError: if shapes do not match, a feature is not finite, a label is not in 0 … num_classes − 1, or
            no label is 0 and num_classes is not given.
    """
    x = checks.array("x_train", x_train, shape=SHAPE, kind=np.float32)
    given: dict[str, Any] = {"x_train": x, "y_train": y_train}
    for part, features, labels in (("aux", x_aux, y_aux), ("test", x_test, y_test)):
        if (features is None) != (labels is None):
            raise ValueError(f"x_{part} and y_{part} must be given together")
        given |= {f"x_{part}": x[:0] if features is None else features, f"y_{part}": () if labels is None else labels}
    if num_classes is None:
        parts = [checks.array(key, given[key], kind=np.int64, at_least=0) for key in given if key[0] == "y"]
        lowest, highest = np.min(np.concatenate(parts)), np.max(np.concatenate(parts))
        if lowest > 0:
            raise ValueError(
                f"labels must count from 0 where num_classes is not given, got labels from {lowest} to {highest}: "
                f"subtract {lowest} from them, or give from_arrays num_classes if classes without records are meant"
            )
        num_classes = max(2, int(highest) + 1)
    return Task(**given, num_classes=num_classes, name=name)


def check_task(task: Task) -> None:
    """Refuse what is no task. The arrays of a task are checked when it is made."""
    if not isinstance(task, Task):
        raise ValueError(f"task must be a dpsub.data.Task, got a {type(task).__name__}: make one with from_arrays")


def features_of(x: NDArray[np.generic]) -> Iterator[bytes]:
    """The bytes of each record's features as float32, −0 as 0: equal for equal features."""
    return (record.tobytes() for record in x.astype(np.float32) + np.float32(0))


def drawn(name: str, num_classes: int, pool: Records, test: Records, n_train: int, n_aux: int, seed: int) -> Task:
    """A task with private and auxiliary records drawn from a pool. No auxiliary record has a private one's features.

    Args:
        name, num_classes, n_train, n_aux: of the task.
        pool, test: features and labels to draw from, and those to test on, which are all in the task.
        seed: of the draw.
    """
    x, y = pool
    order = stream(seed, "data").permutation(len(y))
    train, rest = np.split(order, [n_train])
    private = set(features_of(x[train]))
    aux = list(islice((i for i in rest if next(features_of(x[i : i + 1])) not in private), n_aux))
    if n_train > len(y) or len(aux) < n_aux:
        raise ValueError(
            f"n_train and n_aux must together be no more than the {len(y)} records of {name}, not counting duplicates "
            f"of private records, got {n_train} and {n_aux}"
        )
    return Task(x[train], y[train], x[aux], y[aux], *test, num_classes, name)
