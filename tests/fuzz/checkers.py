"""What functions of several rooms promise of their results."""

import numpy as np
import xarray as xr

from dpsub import CanaryPair
from dpsub.estimators import LowerBound

ADJACENCIES = ("substitute", "add_remove", "zero_out")


def anything(result, /, **_):
    """The function promises only to return."""


def of(kind):
    """A checker of the result's type alone."""

    def fine(result, /, **_):
        assert isinstance(result, kind), type(result)

    return fine


def number(low=-np.inf, high=np.inf, *, finite=True):
    """A checker of one number, or of an array of them."""

    def fine(result, /, **_):
        values = np.asarray(result)
        assert values.dtype.kind == "f", values.dtype
        assert np.isfinite(values).all() or not finite, result
        assert not np.isnan(values).any(), result
        assert ((values >= low) & (values <= high)).all(), result

    return fine


def is_bound(bound):
    assert isinstance(bound, LowerBound)
    assert type(bound.epsilon) is float
    assert 0 <= bound.epsilon < np.inf
    assert bound.mu is None or 0 <= bound.mu < np.inf
    assert all(0 <= bound.details.get(rate, 0) <= 1 for rate in ("fpr_upper", "fnr_upper"))
    assert not np.isnan(bound.details.get("threshold", 0))
    assert bound.noise_multiplier is None or bound.noise_multiplier > 0
    assert bound.epsilon > 0 or bound.note


def is_audit(result, /, **_):
    assert isinstance(result, xr.Dataset)
    score, bit = result.score, result.bit
    assert score.dims[-2:] == ("run", "step")
    assert score.dtype == np.float32
    assert bit.dtype == np.int8
    assert np.isin(bit, (0, 1)).all()
    assert np.isfinite(score).all()
    assert result.step.dtype == np.int64
    assert result.attrs["adjacency"] in ADJACENCIES


def is_pair(result, /, **_):
    assert isinstance(result, CanaryPair)
    worlds = [result.z, *([] if result.z_prime is None else [result.z_prime])]
    for world in worlds:
        x = world.x if isinstance(world, tuple) else world
        assert x.dtype == np.float32
        assert np.isfinite(x).all()
        assert not x.flags.writeable
    assert len(result.fingerprint) == 16
    assert result.slot >= 0
