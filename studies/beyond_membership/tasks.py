"""The task of a page that can do without a file."""

from __future__ import annotations

import os
from typing import Any

from dpsub import data


def features_or_digits(
    path: str | os.PathLike[str] | None, *, n_train: int = 500, seed: int = 0, **options: Any
) -> data.Task:
    """The task of `data.load_features` if a path is given, else `data.digits`: a notebook then runs without any file.

    Args:
        path: as in `load_features`, or None for `digits`.
        n_train, seed: as in both.
        options: `n_aux`, `name` and `stand_in_for`, as in `load_features`. `digits` has no use for them.
    """
    if path is None:
        return data.digits(n_train=n_train, seed=seed)
    return data.load_features(path, n_train=n_train, seed=seed, **options)
