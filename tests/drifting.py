"""An audit whose scores drift apart."""

import numpy as np
import xarray as xr


def audited(runs=400, steps=5, **attributes):
    rng = np.random.default_rng(0)
    bit = rng.integers(0, 2, runs).astype(np.int8)
    times = 100 * np.arange(1, steps + 1)
    score = np.sqrt(times) * rng.normal(size=(runs, steps)) + 0.1 * times * (1 - bit[:, None])
    about = {"noise_multiplier": 20.0, "sample_rate": 1.0, "steps": int(times[-1]), "adjacency": "substitute"}
    return xr.Dataset(
        {"score": (("run", "step"), score.astype(np.float32)), "bit": ("run", bit)},
        coords={"step": times},
        attrs=about | attributes,
    )
