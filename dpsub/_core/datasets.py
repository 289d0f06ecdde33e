"""The dataset of scores and bits, with the attributes that are needed to reproduce them."""

from __future__ import annotations

import numpy as np
import xarray as xr

LONG_NAMES = {"score": "score, higher speaks for z", "bit": "0: trained with z, 1: with z_prime"}


def numbered(made: xr.Dataset) -> xr.Dataset:
    """A dataset with the coordinates `seed` and `number`: what each row was drawn from.

    Rows of one seed and number have the same randomness. The coordinates stay with scores and bits through selections
    and `xr.concat`, so that a bound finds rows that are there twice. Attributes cannot tell: `xr.concat` keeps those of
    the first dataset.
    """
    dims, shape = made.bit.dims, made.bit.shape
    rows = shape[1:] if "repeat" in dims else shape
    seed = np.array(made.attrs.get("seeds", made.attrs["seed"]))
    seeds = np.broadcast_to(seed.reshape(seed.shape + (1,) * len(rows)), shape)
    numbers = np.arange(np.prod(rows, dtype=np.int64)).reshape(rows)
    return made.assign_coords(seed=(dims, seeds), number=(dims, np.broadcast_to(numbers, shape)))
