"""The tasks of pages: one that can do without a file, and records whose features are scaled."""

from dataclasses import replace

from dpsub import data


def scaled(task, factor, name):
    """The same records, with each feature multiplied by a factor."""
    return replace(task, name=name, **{part: factor * getattr(task, part) for part in ("x_train", "x_aux", "x_test")})


def features_or_digits(path, *, n_train=500, seed=0, **options):
    """The task of `data.load_features` if a path is given, else `data.digits`: a notebook then runs without any file.

    `n_aux`, `name` and `stand_in_for` are as in `load_features`. `digits` has no use for them.
    """
    if path is None:
        return data.digits(n_train=n_train, seed=seed)
    return data.load_features(path, n_train=n_train, seed=seed, **options)
