"""Tasks from files of features."""

from __future__ import annotations

import os

import numpy as np

from dpsub.data import downloads
from dpsub.data.bundled import digits
from dpsub.data.tasks import Task, drawn, from_arrays


def load_features(
    path: str | os.PathLike[str],
    *,
    n_train: int = 500,
    n_aux: int = 500,
    seed: int = 0,
    name: str | None = None,
    stand_in_for: str | None = None,
) -> Task:
    """A task from a file of features, such as the outputs of a network's penultimate layer.

    Private and auxiliary records are drawn from one pool. No auxiliary record has the features of a private one.

    Args:
        path: an .npz file, relative to the current folder or to the data folder (`DPSUB_DATA`). The pool is `x_train`
            (n, d) and `y_train` (n,), or `x_private` and `y_private`; the test records are `x_test` and `y_test`. Other
            arrays are ignored.
        n_train: number of private records.
        n_aux: number of auxiliary records.
        seed: decides which records are private and which are auxiliary.
        name: the task's name in figures and stored results; by default the file's name without its suffix.
        stand_in_for: the features that these replace, if any; it becomes part of the name.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file has another layout or too few records.
    """
    file = downloads.local(path)
    try:
        with open(file, "rb") as opened, np.load(opened) as found:
            pool = next((part for part in ("train", "private") if f"x_{part}" in found), "train")
            needed = [f"{array}_{part}" for part in (pool, "test") for array in "xy"]
            missing = [array for array in needed if array not in found]
            arrays = {} if missing else {array: found[array] for array in needed}  # each is read when it is asked for
    except (TypeError, *downloads.DAMAGED) as error:
        raise ValueError(f"path must be an .npz file of plain arrays, got {file}: {error}") from None
    if missing:
        raise ValueError(f"path must hold {', '.join(needed)}, got {file} without {', '.join(missing)}")
    whole = from_arrays(*(arrays[array] for array in needed[:2]), x_test=arrays["x_test"], y_test=arrays["y_test"])
    name = file.stem if name is None else str(name)
    name += "" if stand_in_for is None else f" (stand-in for {stand_in_for})"
    return drawn(
        whole.x_train, whole.y_train, test=(whole.x_test, whole.y_test), n_train=n_train, n_aux=n_aux, seed=seed,
        num_classes=whole.num_classes, name=name,
    )  # fmt: skip


def features_or_digits(
    path: str | os.PathLike[str] | None,
    *,
    n_train: int = 500,
    n_aux: int = 500,
    seed: int = 0,
    name: str | None = None,
    stand_in_for: str | None = None,
) -> Task:
    """The task of `load_features` if a path is given, else `digits`: a notebook then runs without any file.

    Args:
        path: as in `load_features`, or None for `digits`.
        n_train, n_aux, seed, name, stand_in_for: as in `load_features`. `digits` uses `n_train` and `seed` only.

    Raises:
        FileNotFoundError, ValueError: as in `load_features` and `digits`.
    """
    if path is None:
        return digits(n_train=n_train, seed=seed)
    return load_features(path, n_train=n_train, n_aux=n_aux, seed=seed, name=name, stand_in_for=stand_in_for)
