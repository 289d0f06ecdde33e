"""Tasks from files of features."""

from __future__ import annotations

import os

import numpy as np

from dpsub.data import downloads
from dpsub.data.catalogue import digits
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
    """Private and auxiliary records drawn from a file of features, such as a network's penultimate layer.

    Args:
        path: an .npz file, as it is named here or in the data folder (`DPSUB_DATA`), with `x_train` (n, d), `y_train`
            (n,), or `x_private` and `y_private`, the pool to draw from; and `x_test`, `y_test`. Other arrays in it are
            not used.
        n_train: private records.
        n_aux: auxiliary records, none of them with the features of a private one.
        seed: which records are which.
        name: what figures and stored results call it; by default the file's name.
        stand_in_for: what the features are used in place of, if they are; it becomes part of the name.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file is of another layout, or holds too few records.
    """
    file = downloads.local(path)
    try:
        with open(file, "rb") as opened, np.load(opened) as found:
            arrays = dict(found)
    except (TypeError, *downloads.DAMAGED) as error:
        raise ValueError(f"path must be an .npz file of plain arrays, got {file}: {error}") from None
    pool = next((part for part in ("train", "private") if f"x_{part}" in arrays), "train")
    needed = [f"{array}_{part}" for part in (pool, "test") for array in "xy"]
    if missing := [array for array in needed if array not in arrays]:
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
    """A file of features where there is one, else handwritten digits: what a notebook runs on anywhere.

    Args:
        path: of `load_features`; None for `digits`, which need no file.
        n_train, n_aux, seed, name, stand_in_for: of `load_features`; digits take `n_train` and `seed` alone.
    """
    if path is None:
        return digits(n_train=n_train, seed=seed)
    return load_features(path, n_train=n_train, n_aux=n_aux, seed=seed, name=name, stand_in_for=stand_in_for)
