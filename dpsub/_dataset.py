"""The dataset that every audit returns: scores, bits, and what it takes to make them again."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from importlib import metadata

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike

from dpsub._version import __version__

LONG_NAMES = {
    "score": "score, higher speaks for z",
    "bit": "0: trained with z, 1: with z_prime",
    "accuracy": "share of the test records that the model labels rightly",
    "distance": "distance of the two canaries' gradients, in units of 2 max_grad_norm",
    "gradient": "privatised sum times z's gradient, in units of max_grad_norm squared",
    "weights": "parameters after the last step",
}


def build(
    score: ArrayLike, bit: ArrayLike, observed: Sequence[int], *, libraries: Sequence[str] = (), **attrs: object
) -> xr.Dataset:
    """score (run, step) and bit (run,), with the attributes given and the versions that made them."""
    return xr.Dataset(
        {
            "score": (("run", "step"), np.asarray(score, dtype=np.float32), {"long_name": LONG_NAMES["score"]}),
            "bit": ("run", np.asarray(bit, dtype=np.int8), {"long_name": LONG_NAMES["bit"]}),
        },
        coords={"step": np.asarray(observed, dtype=np.int64)},
        attrs={**attrs, **{f"version_{name}": version for name, version in versions(*libraries).items()}},
    )


def versions(*libraries: str) -> dict[str, str]:
    """Of Python, dpsub, NumPy, SciPy and the libraries named."""
    found = {"python": platform.python_version(), "dpsub": __version__}
    return found | {name: metadata.version(name) for name in ("numpy", "scipy", *libraries)}
