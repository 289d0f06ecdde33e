"""From audits of steps to a table: how far a canary's worlds are apart, what hides it, and its valid bounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from dpsub import accounting, estimators
from dpsub._core import checks
from dpsub.estimators import LowerBound
from dpsub.figures import read_audits
from dpsub.figures.arguments import named

RULES = {"coins": "bets", "two_trainings": "ranks"}


def canary_steps(audited: Mapping[Any, xr.Dataset], *, delta: float, alpha: float = 0.05) -> pd.DataFrame:
    r"""What audits of steps measure of their canaries, and the valid bounds that follow: one row for each audit.

    Args:
        audited: audits by `dpsub.audit_steps` at canary rate 1, by name.
        delta: the δ at which ε is stated.
        alpha: as in `estimators.epsilon_lower_bound`.

    Returns:
        A table by the names of the audits. `apart` is the distance between the mean scores of the two worlds, `noise`
        is σ, and `others` is the standard deviation that the other records add to it: what the scores of z′ spread
        beyond σ. All three are in units of C. Under substitution of records, `others` includes how the distance between
        z and z′ changes from step to step. `step` and `training` are bounds on ε, by bets, and by ranks where worlds
        are not tossed anew at each step; `accountant` is the training's ε.

    Raises:
        ValueError: if an audit is not one of steps, has a canary rate below 1, or is not whole.

    Source: *Tight Auditing*, appendices C.2 and C.3.
    """
    delta = checks.probability("delta", delta)
    rows = []
    for name, result in named("audited", audited).items():
        of, argument = read_audits.of_steps(f"audited[{name!r}]", result), f"audited[{name!r}]"
        rate, steps, sigma, adjacency, protocol = (
            read_audits.attribute(argument, of, one)
            for one in ("sample_rate", "steps", "noise_multiplier", "adjacency", "protocol")
        )
        sigma = checks.real("noise_multiplier", sigma, above=0)
        protocol = checks.choice("the audit's protocol", protocol, tuple(RULES))
        step = estimators.epsilon_lower_bound(of.score, of.bit, delta=delta, alpha=alpha, threshold=RULES[protocol])
        assert isinstance(step, LowerBound)
        about = {"sample_rate": rate, "steps": steps, "adjacency": adjacency, "delta": delta}
        z, z_prime = (of.score.values[of.bit.values == bit].astype(np.float64) for bit in (0, 1))
        rows.append(
            {
                "adjacency": adjacency,
                "apart": z.mean() - z_prime.mean(),
                "noise": sigma,
                "others": np.sqrt(max(0.0, z_prime.var() - sigma**2)),
                "step": step.epsilon,
                "training": estimators.step_to_training(step, **about).epsilon,
                "accountant": accounting.epsilon(noise_multiplier=sigma, **about),
            }
        )
    return pd.DataFrame(rows, index=pd.Index(list(audited)))
