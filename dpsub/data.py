"""The tasks that models are trained on."""

from __future__ import annotations

import os
from zipfile import BadZipFile

import numpy as np
from sklearn.datasets import load_digits

from dpsub import _checks
from dpsub._files import local
from dpsub._random import stream
from dpsub._tasks import Task, check_task, drawn, from_arrays

__all__ = ["Task", "check_task", "digits", "from_arrays", "load_features"]

DIGITS_AUX = 500


def digits(n_train: int = 500, seed: int = 0) -> Task:
    """Handwritten digits, 8 × 8 pixels: real data that comes with scikit-learn, so that it needs no download.

    500 records are auxiliary and the rest is for testing. Pixels are scaled to [0, 1]; those that are constant over
    the private records are dropped, since a parameter that never moves would make the worst-case dataset of any model.

    Args:
        n_train: private records, 2 … 1,296 of the 1,797.
        seed: which records are private, auxiliary and test.

    Raises:
        ValueError: if there are not so many records.

    Source: Alpaydin and Kaynak (1998), *Optical Recognition of Handwritten Digits*, UCI.
    """
    n_train = _checks.whole("n_train", n_train, at_least=2)
    seed = _checks.whole("seed", seed, at_least=0)
    x, y = load_digits(return_X_y=True)
    most = len(y) - DIGITS_AUX - 1
    if n_train > most:
        raise ValueError(f"n_train must be <= {most} of the {len(y)} digits, so that some are left, got {n_train}")
    order = stream(seed, "data").permutation(len(y))
    train, aux, test = np.split(order, [n_train, n_train + DIGITS_AUX])
    varies = np.ptp(x[train], axis=0) > 0
    x = x[:, varies] / 16
    return from_arrays(
        x[train], y[train], x_aux=x[aux], y_aux=y[aux], x_test=x[test], y_test=y[test], num_classes=10, name="digits"
    )


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
    file = local(path)
    try:
        arrays = dict(np.load(file))
    except (ValueError, OSError, BadZipFile, AttributeError, TypeError) as error:
        raise ValueError(f"path must be an .npz file of plain arrays, got {file}: {error}") from None
    pool = next((part for part in ("train", "private") if f"x_{part}" in arrays), "train")
    needed = [f"{array}_{part}" for part in (pool, "test") for array in "xy"]
    if missing := [array for array in needed if array not in arrays]:
        raise ValueError(f"path must hold {', '.join(needed)}, got {file} without {', '.join(missing)}")
    x, y, x_test, y_test = (arrays[array] for array in needed)
    if len(x) != len(y):
        raise ValueError(f"path must hold one label a record, got {len(x)} records and {len(y)} labels in {file}")
    classes = 1 + int(max(y.max(initial=1), y_test.max(initial=1)))
    name = file.stem if name is None else name
    name += "" if stand_in_for is None else f" (stand-in for {stand_in_for})"
    return drawn(x, y, test=(x_test, y_test), n_train=n_train, n_aux=n_aux, seed=seed, num_classes=classes, name=name)
