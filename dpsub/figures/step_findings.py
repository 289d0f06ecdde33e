"""From audits of steps to tables: every estimator's bounds, and what is measured of canaries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import xarray as xr

from dpsub import accounting, estimators
from dpsub._core import checks
from dpsub.estimators import LowerBound
from dpsub.figures import read_audits
from dpsub.figures.arguments import named

PROTOCOLS = ("coins", "two_trainings")
# By the name of a row: method and threshold. The last five are the paper's.
STEP_ESTIMATORS = {
    "GDP, bets": ("gdp", "bets"),
    "GDP, ranks": ("gdp", "ranks"),
    "GDP, Clopper–Pearson": ("gdp", "best"),
    "GDP, Bayesian": ("bayes_gdp", "best"),
    "(ε, δ), Clopper–Pearson": ("dp", "best"),
    "(ε, δ), Bayesian": ("bayes_dp", "best"),
    "ε, Katz": ("katz", "best"),
}


class Steps(NamedTuple):
    """An audit of steps, the law of its training, and whether its worlds were tossed anew at each step."""

    score: xr.DataArray
    bit: xr.DataArray
    law: dict[str, Any]
    tossed: bool


def _read(argument: str, result: Any) -> Steps:
    of = read_audits.of_steps(argument, result)
    law = {name: read_audits.attribute(argument, of, name) for name in ("sample_rate", "steps", "adjacency")}
    protocol = read_audits.attribute(argument, of, "protocol")
    return Steps(of.score, of.bit, law, checks.choice(f"{argument}'s protocol", protocol, PROTOCOLS) == "coins")


def step_bounds(result: xr.Dataset, *, delta: float, alpha: float = 0.05) -> pd.DataFrame:
    """The bounds that every estimator of *Tight Auditing*, and ours, make of an audit of steps.

    Args:
        result: an audit by `dpsub.audit_steps` at canary rate 1.
        delta: the δ at which ε is stated.
        alpha: as in `estimators.epsilon_lower_bound`.

    Returns:
        A table with a row for each estimator. `step` and `training` are the bounds on ε of one step and of the whole
        training, `valid` says whether they may be trusted. Bounds of (ε, δ) and of Katz are converted as the paper
        does: to the noise of the Gaussian mechanism with that ε, and from there to the training's ε. Under protocol
        "two_trainings" there is no row for bets.

    Raises:
        ValueError: if the result is no audit of steps, or has a canary rate below 1.

    Source: *Tight Auditing*, section 5.5 and Table 1.
    """
    of = _read("result", result)
    delta = checks.probability("delta", delta)
    rows: dict[str, dict[str, Any]] = {}
    for name, (method, threshold) in STEP_ESTIMATORS.items():
        if threshold == "bets" and not of.tossed:
            continue
        step = estimators.epsilon_lower_bound(
            of.score, of.bit, delta=delta, method=method, threshold=threshold, alpha=alpha
        )
        assert isinstance(step, LowerBound)
        mu = step.mu if step.mu is not None else accounting.gdp_mu(step.epsilon, delta) if step.epsilon else 0.0
        training = estimators.step_to_training(replace(step, method="gdp").with_details(mu=mu), delta=delta, **of.law)
        rows[name] = {"step": step.epsilon, "training": training.epsilon, "valid": step.valid}
    return pd.DataFrame.from_dict(rows, orient="index")


def canary_steps(audited: Mapping[Any, xr.Dataset], *, delta: float, alpha: float = 0.05) -> pd.DataFrame:
    r"""What audits of steps measure of their canaries, and the bounds that follow: one row for each audit.

    Args:
        audited: audits by `dpsub.audit_steps` at canary rate 1, by name.
        delta: the δ at which ε is stated.
        alpha: as in `estimators.epsilon_lower_bound`.

    Returns:
        A table by the names of the audits. `apart` is the distance between the mean scores of the two worlds, `noise`
        is σ, and `others` is the standard deviation that the other records add to it: what the scores of z′ spread
        beyond σ. All three are in units of C. Under substitution of records, `others` includes how the distance between
        z and z′ changes from step to step. `step` and `training` are bounds on ε, by bets, and by ranks where worlds
        are not tossed anew at each step; `valid` says whether they hold, as those by ranks do not. `accountant` is the
        training's ε.

    Raises:
        ValueError: if an audit is not one of steps, has a canary rate below 1, or is not whole.

    Source: *Tight Auditing*, appendices C.2 and C.3.
    """
    delta = checks.probability("delta", delta)
    rows = []
    for name, result in named("audited", audited).items():
        argument = f"audited[{name!r}]"
        of = _read(argument, result)
        sigma = checks.real("noise_multiplier", read_audits.attribute(argument, result, "noise_multiplier"), above=0)
        rule = "bets" if of.tossed else "ranks"
        step = estimators.epsilon_lower_bound(of.score, of.bit, delta=delta, alpha=alpha, threshold=rule)
        assert isinstance(step, LowerBound)
        z, z_prime = (of.score.values[of.bit.values == bit].astype(np.float64) for bit in (0, 1))
        rows.append(
            {
                "adjacency": of.law["adjacency"],
                "apart": z.mean() - z_prime.mean(),
                "noise": sigma,
                "others": np.sqrt(max(0.0, z_prime.var() - sigma**2)),
                "step": step.epsilon,
                "training": estimators.step_to_training(step, delta=delta, **of.law).epsilon,
                "valid": step.valid,
                "accountant": accounting.epsilon(noise_multiplier=sigma, delta=delta, **of.law),
            }
        )
    return pd.DataFrame(rows, index=pd.Index(list(audited)))
