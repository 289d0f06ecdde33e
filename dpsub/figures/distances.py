"""How far apart two worlds are: by the scores of an audit, and by the gradients of its canaries at every step."""

from __future__ import annotations

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike

from dpsub._core import checks
from dpsub.estimators.scores import scores_and_bits
from dpsub.figures import read_audits

MOST_STEPS = 10**9


def d_prime(scores: ArrayLike | xr.DataArray, bits: ArrayLike | xr.DataArray) -> float:
    """The distance of the worlds' mean scores in standard deviations: μ, if scores are Gaussian of one width.

    The standard deviation is the root of the mean of the worlds' variances. It is a point estimate, and no bound.

    Args:
        scores: (runs,), higher speaks for z.
        bits: (runs,): 0 if z, 1 if z_prime, two or more of each.

    Returns:
        It is positive if scores speak for z. Of scores without any spread it is 0 if the worlds are alike, and else
        infinite.

    Raises:
        ValueError: if the scores are not finite, or are not one for each bit.

    >>> d_prime([4.0, 2.0, 1.0, -1.0], [0, 0, 1, 1])
    2.1213203435596424
    """
    columns, in_z, several = scores_and_bits(scores, bits)
    if several:
        raise ValueError(f"scores must have shape (runs,), got {columns.shape}: choose a step")
    if not np.isfinite(columns).all():
        raise ValueError("scores must be finite, got some that are infinite: look for diverged runs")
    with_z, others = columns[in_z, 0], columns[~in_z, 0]
    if min(len(with_z), len(others)) < 2:
        raise ValueError(f"bits must hold two runs or more of each world, got {len(with_z)} and {len(others)}")
    gap = float(with_z.mean() - others.mean())
    spread = float(np.sqrt((with_z.var(ddof=1) + others.var(ddof=1)) / 2))
    return gap / spread if spread else float(np.sign(gap)) * np.inf if gap else 0.0


def every_step_mu(result: xr.Dataset) -> float:
    r"""The μ of an adversary who watches every step: about the most that any look at the final model can show.

    At sample rate 1 the canary is in every batch. Who knows all other records sees its clipped gradient, that of z or
    of z′, beside Gaussian noise. If the two are 2C·d apart, all steps together have μ² = Σ (2d/σ)². The distances
    depend on the models, so this is a mean of μ² over models.

    Args:
        result: an audit with the metric "distance", of one repeat. If it observed only some steps, the others count as
            these on average.

    Raises:
        ValueError: if the audit has no distances, several repeats, or a sample rate below 1.

    >>> import xarray as xr
    >>> found = xr.Dataset({"distance": (("run", "step"), [[1.0, 0.5]])})
    >>> every_step_mu(found.assign_attrs(noise_multiplier=2.0, sample_rate=1.0, steps=4))
    1.5811388300841898
    """
    of = read_audits.dataset("result", result)
    if "distance" not in of.data_vars or of.distance.dims != ("run", "step"):
        raise ValueError(
            'result must have distances (run, step): audit(..., metrics=("distance",)), and isel(repeat=0) of several '
            f"repeats, got {dict(of.distance.sizes) if 'distance' in of.data_vars else 'none'}"
        )
    sigma, q, steps = (read_audits.attribute("result", of, one) for one in ("noise_multiplier", "sample_rate", "steps"))
    sigma = checks.real("noise_multiplier", sigma, above=0)
    if checks.real("sample_rate", q, above=0, at_most=1) < 1:
        raise ValueError(f"result must be of sample rate 1, where each step is a Gaussian mechanism, got {q}")
    distances = of.distance.values
    if not distances.size or distances.dtype.kind != "f" or not (distances >= 0).all():
        raise ValueError("result must have distances >= 0 of one run and step or more: is its store complete?")
    with np.errstate(over="ignore"):
        mean = np.square(2 * distances.astype(np.float64) / sigma).mean()
        mu = float(np.sqrt(np.float64(checks.whole("steps", steps, at_most=MOST_STEPS)) * mean))
    if not np.isfinite(mu):
        raise ValueError(f"result must have distances that are finite, and not of too little noise, got μ = {mu}")
    return mu
