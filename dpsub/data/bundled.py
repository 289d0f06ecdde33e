"""The tasks that come with scikit-learn and need no download: digits and breast cancer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dpsub._core import checks
from dpsub._core.random_streams import stream
from dpsub.data.tasks import Task, from_arrays

DIGITS_AUX = 500
BREAST_CANCER_AUX = 150
_MEASURES = (
    "radius", "texture", "perimeter", "area", "smoothness", "compactness", "concavity", "concave points", "symmetry",
    "fractal dimension",
)  # fmt: skip
BREAST_CANCER_COLUMNS = tuple(
    name.format(measure) for name in ("mean {}", "{} error", "worst {}") for measure in _MEASURES
)
"""The names of the 30 columns of `breast_cancer`, in order."""


def digits(n_train: int = 500, seed: int = 0) -> Task:
    """Handwritten digits, 8 × 8 pixels: real data that comes with scikit-learn and needs no download.

    500 records are auxiliary and the rest are for testing. Pixels are scaled to [0, 1]. Pixels that are constant over
    the private records are dropped: their parameters would never move, and a canary there would be a worst case.

    Args:
        n_train: number of private records, 2 … 1,296 of the 1,797.
        seed: decides which records are private, auxiliary and test.

    Raises:
        ValueError: if an argument is out of range.

    Source: Alpaydin and Kaynak (1998), *Optical Recognition of Handwritten Digits*, UCI.
    """
    from sklearn.datasets import load_digits  # its import takes a second

    x, y = load_digits(return_X_y=True)
    train, aux, test = _parts(len(y), "digits", DIGITS_AUX, n_train, seed)
    varies = np.ptp(x[train], axis=0) > 0
    x = x[:, varies] / 16
    task = from_arrays(
        x[train], y[train], x_aux=x[aux], y_aux=y[aux], x_test=x[test], y_test=y[test], num_classes=10, name="digits"
    )
    return replace(task, pixels=varies.reshape(8, 8))


def breast_cancer(n_train: int = 300, seed: int = 0) -> Task:
    """Breast cancer in Wisconsin: 30 measurements of cell nuclei a person. It comes with scikit-learn, like `digits`.

    The label is 0 for a malignant tumour and 1 for a benign one. 150 records are auxiliary and the rest are for
    testing. Each feature is standardised by its mean and standard deviation over the auxiliary records, so the scale
    says nothing about the private ones. `data.BREAST_CANCER_COLUMNS` names the columns.

    Args:
        n_train: number of private records, 2 … 418 of the 569.
        seed: decides which records are private, auxiliary and test.

    Raises:
        ValueError: if an argument is out of range.

    Source: Wolberg, Mangasarian, Street and Street (1995), *Breast Cancer Wisconsin (Diagnostic)*, UCI.
    """
    from sklearn.datasets import load_breast_cancer

    x, y = load_breast_cancer(return_X_y=True)
    train, aux, test = _parts(len(y), "records", BREAST_CANCER_AUX, n_train, seed)
    x = (x - x[aux].mean(axis=0)) / x[aux].std(axis=0)
    return from_arrays(
        x[train], y[train], x_aux=x[aux], y_aux=y[aux], x_test=x[test], y_test=y[test], num_classes=2,
        name="breast cancer",
    )  # fmt: skip


def _parts(count: int, things: str, n_aux: int, n_train: int, seed: int) -> list[NDArray[np.int64]]:
    """The indices of the private, auxiliary and test records."""
    n_train = checks.whole("n_train", n_train, at_least=2)
    seed = checks.whole("seed", seed, at_least=0)
    most = count - n_aux - 1
    if n_train > most:
        raise ValueError(
            f"n_train must be <= {most} of the {count} {things}, which leaves some to test on, got {n_train}"
        )
    return np.split(stream(seed, "data").permutation(count), [n_train, n_train + n_aux])
