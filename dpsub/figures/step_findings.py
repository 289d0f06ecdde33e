"""From an audit of steps to a table: every estimator's bound of one step, and of the training."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd
import xarray as xr

from dpsub import accounting, estimators
from dpsub._core import checks
from dpsub.estimators import LowerBound
from dpsub.figures import read_audits

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
    of = read_audits.of_steps("result", result)
    about = {name: read_audits.attribute("result", of, name) for name in ("sample_rate", "steps", "adjacency")}
    protocol = read_audits.attribute("result", of, "protocol")
    delta = checks.probability("delta", delta)
    checks.choice("result's protocol", protocol, ("coins", "two_trainings"))
    rows: dict[str, dict[str, Any]] = {}
    for name, (method, threshold) in STEP_ESTIMATORS.items():
        if threshold == "bets" and protocol != "coins":
            continue
        step = estimators.epsilon_lower_bound(
            of.score, of.bit, delta=delta, method=method, threshold=threshold, alpha=alpha
        )
        assert isinstance(step, LowerBound)
        mu = step.mu if step.mu is not None else accounting.gdp_mu(step.epsilon, delta) if step.epsilon else 0.0
        training = estimators.step_to_training(replace(step, mu=mu, method="gdp"), delta=delta, **about)
        rows[name] = {"step": step.epsilon, "training": training.epsilon, "valid": step.valid}
    return pd.DataFrame.from_dict(rows, orient="index")
