"""A task: the private, auxiliary and test records of one dataset."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from hashlib import sha256
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpsub._core import checks
from dpsub._core.frozen import Frozen, read_only
from dpsub._core.random_streams import stream

MOST_CLASSES = 1_000_000


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
    """

    x_train: NDArray[np.float32]
    y_train: NDArray[np.int64]
    x_aux: NDArray[np.float32]
    y_aux: NDArray[np.int64]
    x_test: NDArray[np.float32]
    y_test: NDArray[np.int64]
    num_classes: int
    name: str
    pixels: NDArray[np.bool_] | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            if isinstance(value := getattr(self, field.name), np.ndarray):
                object.__setattr__(self, field.name, read_only(value))
        check_task(self)

    def pictures(self, x: ArrayLike) -> NDArray[np.float32]:
        """Records (k, …) as images: (k, height, width), or (k, height, width, 3) in colour.

        Raises:
            ValueError: if the records are not shaped like the task's, or its records are not images.
        """
        records = _features("x", x, None)
        if records.ndim == 4 and records.shape[1] in (1, 3) and records.shape[1:] == self.x_train.shape[1:]:
            shown = np.moveaxis(records, 1, -1)
            return shown[..., 0] if shown.shape[-1] == 1 else shown
        if self.pixels is None or records.ndim != 2 or records.shape[1] != self.pixels.sum():
            raise ValueError(f"x must be records of a task of images, got shape {records.shape} for {self!r}")
        shown = np.zeros((len(records), *self.pixels.shape), dtype=np.float32)
        shown[:, self.pixels] = records
        return shown

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that change with any private record. A canary keeps those of its task."""
        return self._digest(self.x_train, self.y_train)

    @property
    def test_fingerprint(self) -> str:
        """16 hexadecimal digits that change with any test record."""
        return self._digest(self.x_test, self.y_test)

    def _digest(self, x: NDArray[np.float32], y: NDArray[np.int64]) -> str:
        digest = sha256(repr((x.shape, self.num_classes)).encode())
        digest.update(x.astype("<f4").tobytes())
        digest.update(y.astype("<i8").tobytes())
        return digest.hexdigest()[:16]

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
    _check_name(name)
    x = _features("x_train", x_train, None)
    if len(x) < 2:
        raise ValueError(f"x_train must hold at least 2 records, got {len(x)}")
    parts = {"train": (x, _labels("y_train", y_train, len(x)))}
    for part, features, labels in (("aux", x_aux, y_aux), ("test", x_test, y_test)):
        if (features is None) != (labels is None):
            raise ValueError(f"x_{part} and y_{part} must be given together")
        here = _features(f"x_{part}", x[:0] if features is None else features, x.shape[1:])
        parts[part] = (here, _labels(f"y_{part}", [] if labels is None else labels, len(here)))
    highest = max(int(labels.max(initial=0)) for _, labels in parts.values())
    lowest = min(int(labels.min(initial=highest)) for _, labels in parts.values())
    if num_classes is None and lowest > 0:
        raise ValueError(
            f"labels must count from 0 where num_classes is not given, got labels from {lowest} to {highest}: subtract "
            f"{lowest} from them, or give from_arrays num_classes if classes without records are meant"
        )
    classes = max(2, highest + 1) if num_classes is None else checks.whole("num_classes", num_classes, at_least=2)
    if highest >= classes:
        raise ValueError(f"num_classes must be greater than every label, got {classes} with a label {highest}")
    return Task(*parts["train"], *parts["aux"], *parts["test"], num_classes=classes, name=name)


def check_task(task: Task) -> None:
    """Check the arrays of a task. A task is checked when it is made, too.

    Raises:
        ValueError: if a shape, dtype, feature or label is one that `from_arrays` does not make.
    """
    if not isinstance(task, Task):
        raise ValueError(f"task must be a dpsub.data.Task, got a {type(task).__name__}: make one with from_arrays")
    _check_name(task.name)
    checks.whole("num_classes", task.num_classes, at_least=2)
    for part in ("train", "aux", "test"):
        x, y = getattr(task, f"x_{part}"), getattr(task, f"y_{part}")
        for name, values, dtype in ((f"x_{part}", x, np.float32), (f"y_{part}", y, np.int64)):
            if not isinstance(values, np.ndarray) or values.dtype != dtype:
                got = getattr(values, "dtype", type(values).__name__)
                raise ValueError(
                    f"{name} must be an array of {dtype.__name__}, got {got}: dpsub.data.from_arrays converts it"
                )
        _features(f"x_{part}", x, task.x_train.shape[1:])
        _labels(f"y_{part}", y, len(x))
        if part == "train" and len(x) < 2:
            raise ValueError(f"x_train must hold at least 2 records, got {len(x)}")
        if y.max(initial=0) >= task.num_classes:
            raise ValueError(f"y_{part} must be labels from 0 to {task.num_classes - 1}, got {y.max()}")
    if (shown := task.pixels) is not None:
        image = isinstance(shown, np.ndarray) and shown.ndim == 2 and shown.dtype == bool
        if not image or (int(shown.sum()),) != task.x_train.shape[1:]:
            raise ValueError(
                "pixels must be an array of bool (height, width), with True for each of a record's features, "
                f"or None, got {getattr(shown, 'shape', shown)} for records of shape {task.x_train.shape[1:]}"
            )


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not checks.drawable(name):
        raise ValueError(f"name must be a text without NUL and halves of characters, got {name!r}")


def _features(name: str, values: ArrayLike, shape: tuple[int, ...] | None) -> NDArray[np.float32]:
    x = _array(name, values)
    if not (np.issubdtype(x.dtype, np.number) or x.dtype == bool) or np.iscomplexobj(x):
        raise ValueError(f"{name} must be real numbers, got dtype {x.dtype}")
    with np.errstate(over="ignore"):
        x = x.astype(np.float32, copy=False)
    if x.ndim < 2:
        raise ValueError(f"{name} must have shape (records, features), got {x.shape}")
    if shape is not None and x.shape[1:] != shape:
        raise ValueError(f"{name} must have records of shape {shape}, as x_train has, got {x.shape[1:]}")
    if not np.isfinite(x).all():
        raise ValueError(f"{name} must be finite, got {int((~np.isfinite(x)).sum())} values that are not, in float32")
    return x


def _array(name: str, values: ArrayLike) -> NDArray[Any]:
    checks.no_mask(name, values)
    try:
        return np.asarray(values)
    except (TypeError, ValueError, RuntimeError):  # the last of tensors that require gradients
        raise ValueError(f"{name} must be an array of numbers, got a {type(values).__name__}") from None


def _labels(name: str, values: ArrayLike, count: int) -> NDArray[np.int64]:
    y = _array(name, values)
    if y.shape != (count,):
        raise ValueError(f"{name} must have shape ({count},), one label a record, got {y.shape}")
    if y.size and not np.issubdtype(y.dtype, np.integer) and not np.issubdtype(y.dtype, np.floating):
        raise ValueError(f"{name} must be whole numbers from 0, got dtype {y.dtype}")
    if y.size and (not np.isfinite(y).all() or (y != np.floor(y)).any() or y.min() < 0 or y.max() > MOST_CLASSES):
        raise ValueError(f"{name} must be whole numbers from 0 to {MOST_CLASSES}, got {y.min()} to {y.max()}")
    return y.astype(np.int64, copy=False)


def features_of(x: NDArray[np.generic]) -> Iterator[bytes]:
    """The bytes of each record's features as float32, −0 as 0: equal for equal features."""
    return (record.tobytes() for record in x.astype(np.float32) + np.float32(0))


@checks.checked("n_train", "n_aux", "seed")
def drawn(
    x: NDArray[np.generic],
    y: NDArray[np.generic],
    *,
    test: tuple[NDArray[np.generic], NDArray[np.generic]],
    n_train: int,
    n_aux: int,
    seed: int,
    num_classes: int | None,
    name: str,
) -> Task:
    """A task with private and auxiliary records drawn from a pool. No auxiliary record has a private one's features."""
    order = stream(seed, "data").permutation(len(y))
    train, rest = np.split(order, [n_train])
    private = set(features_of(x[train]))
    aux = list(islice((i for i in rest if next(features_of(x[i : i + 1])) not in private), min(n_aux, len(y))))
    if n_train > len(y) or len(aux) < n_aux:
        raise ValueError(
            f"n_train and n_aux must together be no more than the {len(y)} records of {name}, not counting duplicates "
            f"of private records, got {n_train} and {n_aux}"
        )
    return from_arrays(
        x[train], y[train], x_aux=x[aux], y_aux=y[aux], x_test=test[0], y_test=test[1], num_classes=num_classes,
        name=name,
    )  # fmt: skip
