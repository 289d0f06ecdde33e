"""Values that no argument expects, or that look nearly right."""

from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import numpy as np
import pandas as pd
import torch
import xarray as xr
from hypothesis import strategies as st

HUGE = 10**400
SMALL = [
    0, 1, 2, 3, -1, 0.0, -0.0, 0.5, 1.0, 1.5, -1.5, 0.999, 1e-300, -1e300, 5e-324, -5e-324, -(2**63), -HUGE,
    float("nan"), float("inf"), -float("inf"), np.float32(0.5), np.float64("nan"), np.float16("inf"), np.int8(3),
    np.int64(-1), np.longdouble(2), Fraction(1, 3), Decimal("0.5"), Decimal("sNaN"),
]  # fmt: skip
LARGE = [1e15, 2.0**53, 1e300, 10**15, 2**63, 2**64, HUGE, np.uint64(2**63), Fraction(HUGE, 1)]
THINGS = [
    None, True, False, np.True_, 1 + 0j, np.complex128(1), object(), object, len, lambda *a, **k: None, Ellipsis,
    slice(None), range(3), (), [], {}, set(), frozenset({1}), [None], [[]], [[1], [1, 2]], ("a",), {"a": 1}, {1: 2},
    {"S2": []}, {"S2": [[]]}, {None: None}, b"", b"S2", bytearray(3), memoryview(b"ab"), np.datetime64("2020"),
    np.timedelta64(1), pd.Timestamp(0), pd.NA, Path("missing"), torch.tensor(1.0), torch.ones(3), np.dtype("f4"),
    ValueError("an error"), np.random.default_rng(0),
]  # fmt: skip
TEXTS = ["", " ", "a", "1", "nan", "0.5", "S2", "ranks", "a\0b", "\ud800", "x" * 500, "$", "{x}", "%s", "a\nb", "ε"]
PATHS = [
    "",
    " ",
    ".",
    "..",
    "a\0b",
    "\ud800",
    "x" * 5_000,
    "~nobody-of-this-name/a",
    "missing/a.db",
    "file",
    "folder",
]
PATHS += ["file/a", "http://localhost/a", b"file", 0, 1.5, True, None, object(), [], ["file"], Path("file"), Path("~")]


def _frozen(array):
    array.flags.writeable = False
    return array


ARRAYS = [
    np.array([]), np.array(1.0), np.array(None), np.array([np.nan, 1.0]), np.array([np.inf, 0.0]), np.zeros(3),
    np.ones(2), np.zeros((2, 3)), np.zeros((0, 3)), np.ones((2, 3, 1)), np.ones((1, 1, 4, 4)), np.arange(6),
    np.array(["a", "b"]), np.array([None, 1], dtype=object), np.array([1 + 1j, 2]), np.array([True, False, True]),
    np.array([1e300, -1e300, 5e-324]), np.array([2**63], dtype=np.uint64), np.array([HUGE, 1], dtype=object),
    np.array(["2020"], dtype="datetime64[D]"), np.array([(1, 2.0)], dtype=[("a", int), ("b", float)]),
    np.ma.masked_array([1.0, 2.0, 3.0], mask=[False, True, False]), np.ma.masked_all((2, 3)), np.ma.masked,
    _frozen(np.arange(3.0)), np.arange(12.0).reshape(3, 4)[::-1, ::2], np.arange(3, dtype=">f8"),
    np.ones(3, dtype=np.float16), np.ones(3, dtype=np.int8), np.asfortranarray(np.ones((3, 2))),
    pd.Series([1.0, 2.0, 3.0], index=[5, 6, 7]), pd.Series(["a"]), pd.Series([], dtype=float),
    pd.DataFrame({"a": [1.0]}),
    xr.DataArray(np.ones(3), dims="step"), xr.DataArray(1.0), xr.Dataset(), xr.Dataset({"score": ("run", [1.0, 2.0])}),
    xr.DataArray(np.ones((2, 3)), dims=("run", "step")), torch.zeros(2, 3), torch.ones(2, requires_grad=True),
]  # fmt: skip
GENERATORS = st.builds(lambda values: iter(values), st.sampled_from([[], [1], [1.0, 2.0], ["a"]]))


def among(values):
    """Strategy: one of these. `sampled_from` would hash them, which some refuse."""
    return st.sampled_from(range(len(values))).map(values.__getitem__)


_OTHERS = [*map(among, (THINGS, TEXTS, ARRAYS)), GENERATORS]
# For amounts of work that may be as large as one likes: a number that is not refused takes no time.
LITTLE = st.one_of(among(SMALL), *_OTHERS)
ANYTHING = st.one_of(among(SMALL + LARGE), st.floats(), *_OTHERS)
ANY_PATH = among(PATHS)
