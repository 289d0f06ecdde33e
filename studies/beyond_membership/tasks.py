"""The task of a page that can do without a file."""

from dpsub import data


def features_or_digits(path, *, n_train=500, seed=0, **options):
    """The task of `data.load_features` if a path is given, else `data.digits`: a notebook then runs without any file.

    `n_aux`, `name` and `stand_in_for` are as in `load_features`. `digits` has no use for them.
    """
    if path is None:
        return data.digits(n_train=n_train, seed=seed)
    return data.load_features(path, n_train=n_train, seed=seed, **options)
