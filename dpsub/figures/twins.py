"""How far apart two worlds are, from models that were each trained twice: `findings.separation`."""

from __future__ import annotations

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import NDArray

from dpsub import accounting
from dpsub.figures.read_audits import ONE_TRAINING, arranged, differing, numbered, steps

# Two audits that agree in `ONE_TRAINING` and in these train twins.
ONE_RANDOMNESS = (
    "scenario", "slot", "runs", "repeats", "seed", "block_size", "trained_coordinates", "matmul_precision",
    "device", "cpu_capability", "version_torch",
)  # fmt: skip


def separation(result: xr.Dataset, exchanged: xr.Dataset, *, delta: float) -> pd.DataFrame:
    """Estimate how far apart the two worlds' scores lie, from models that were each trained twice. Not a bound.

    Each model of `result` has a twin in `exchanged`: the same start, batches and noise, with the other canary in its
    slot. A few models are therefore enough to estimate the distance between the worlds. The spread within a world is
    less precise: with twelve models its standard error is at least 20 %.

    Args:
        result: an audit by `dpsub.audit`, for a linear head with coordinates="all": in the coordinates that its records
            span, twins do not share their noise.
        exchanged: the same audit with `canary.exchanged()`. That it was this pair, and not a third canary, is not
            checked. The two may hold the same selection of runs, if both have their numbers as the coordinate run.
        delta: the δ at which ε is stated.

    Returns:
        One row for each step. `gap`: the mean difference between twins. `spread`: the standard deviation within a
        world. `mu`: gap over spread, corrected for the bias that few models cause (Hedges, 1981). `error`: two standard
        errors of mu (jackknife over pairs of twins). `epsilon`: the ε of μ-GDP at mu, or 0 if mu is negative; an audit
        of very many models would approach it if scores were Gaussian and equally spread in both worlds. `epsilon_low`
        and `epsilon_high`: the same at mu − error and mu + error.

    Raises:
        ValueError: if the two audits differ in training, randomness, runs or steps, or have the same canary; if a
            linear head trained in the coordinates that its records span; if they have repeats or fewer than 4 runs; if
            a score is missing, or if scores do not differ between models.
    """
    for argument, audited in (("result", result), ("exchanged", exchanged)):
        arranged(argument, audited)
        if set(audited.score.dims) != {"run", "step"} or audited.sizes["run"] < 4:
            raise ValueError(
                f"{argument} must have the dimensions run, of 4 or more, and step, got {dict(audited.score.sizes)}"
            )
        if audited.score.dtype.kind not in "iuf":
            raise ValueError(f"{argument} must have scores that are real numbers, got dtype {audited.score.dtype}")
        steps(argument, audited)
        if "canary_fingerprint" not in audited.attrs:
            raise ValueError(
                f"{argument} must be of dpsub.audit, with its attributes, got one without canary_fingerprint"
            )
    if name := differing(result, exchanged, (*ONE_TRAINING, *ONE_RANDOMNESS)):
        mine, its = result.attrs.get(name), exchanged.attrs.get(name)
        raise ValueError(
            f"exchanged must be the same audit with canary.exchanged(), got one with {name} {its!r} beside {mine!r}"
        )
    about = result.attrs
    in_span = about.get("trained_coordinates") == "span" and about.get("optimizer") == "sgd"
    if in_span and str(about.get("model")).startswith("Linear("):
        raise ValueError("result must be audited with coordinates='all', got 'span': twins must share their noise")
    if about["canary_fingerprint"] == exchanged.attrs["canary_fingerprint"]:
        raise ValueError("exchanged must be of canary.exchanged(), got an audit of the same canary as result")
    result, exchanged = _paired(result, exchanged)
    if not np.array_equal(result.bit, exchanged.bit) or not np.array_equal(result.step, exchanged.step):
        raise ValueError("exchanged must have the bits and steps of result: run both with the same seed and options")
    scores = np.asarray(result.score.transpose("run", "step"), float)
    opposite = -np.asarray(exchanged.score.transpose("run", "step"), float)
    if not np.isfinite([scores, opposite]).all():
        raise ValueError("result and exchanged must be whole, got scores that are not finite or not there yet")
    saw_z = result.bit.values[:, None] == 0
    worlds = np.stack([np.where(saw_z, scores, opposite), np.where(saw_z, opposite, scores)])  # (world, run, step)

    def of(runs: NDArray[np.bool_]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        here = worlds[:, runs]
        return here[0].mean(axis=0) - here[1].mean(axis=0), np.sqrt(here.var(axis=1, ddof=1).mean(axis=0))

    count = len(scores)
    gap, spread = of(np.ones(count, dtype=bool))
    left_out = [of(np.arange(count) != run) for run in range(count)]
    if not (np.stack([spread, *(other for _, other in left_out)]) > 0).all():
        raise ValueError("result must have scores that differ between models, got all, or all but one, alike at a step")
    few = 1 - 3 / (4 * (count - 1) - 1)
    mu = few * gap / spread
    error = 2 * few * np.sqrt((count - 1) * np.var([other / its for other, its in left_out], axis=0))
    at = {"epsilon": mu, "epsilon_low": mu - error, "epsilon_high": mu + error}
    return pd.DataFrame(
        {"gap": gap, "spread": spread, "mu": mu, "error": error}
        | {name: [accounting.gdp_epsilon(max(0.0, value), delta) for value in values] for name, values in at.items()},
        index=pd.Index(result.step.values, name="step"),
    )


def _paired(result: xr.Dataset, exchanged: xr.Dataset) -> tuple[xr.Dataset, xr.Dataset]:
    """Both audits, with their runs in the order of the first."""
    one, other = numbered("result", result), numbered("exchanged", exchanged)
    if set(one.run.values.tolist()) != set(other.run.values.tolist()):
        raise ValueError("exchanged must hold the runs of result, got other numbers in the coordinate run")
    return one, other.sel(run=one.run)
