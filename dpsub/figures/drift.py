"""An animation of an audit: the scores of the two worlds drift apart while models train, and the bound rises."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from dpsub._core import checks
from dpsub.figures import findings, read_audits
from dpsub.figures.pages import Page, filled

__all__ = ["drifting_scores"]

MOST_STEPS = 40  # shown; of more, as many at even distances
NEAR, FAR = 0.0005, 0.9995  # quantiles of the scores that the histograms hold; the others go into the outer bars


def drifting_scores(result: xr.Dataset, *, delta: float, bins: int = 40, alpha: float = 0.05) -> Page:
    """Histograms of an audit's scores in the two worlds, and the bound on ε, from step to step.

    A page of HTML that needs no kernel and loads nothing. It plays once when it is asked to, and has a slider for the
    step. If the reader's system asks for reduced motion, it shows the last step and has no button. The scores of each
    step are centred, and divided by their standard deviation within a world.

    Args:
        result: an audit with scores at two steps or more, in one repeat, with both worlds.
        delta: the δ at which ε is stated.
        bins: 8 to 80; the histograms' bars.
        alpha: as in `estimators.epsilon_lower_bound`; each bound holds for its own step.

    Raises:
        ValueError: if `result` is no such audit, or if an argument is out of range.

    Source: *Beyond Membership*, Algorithm 1.
    """
    bins = checks.whole("bins", bins, at_least=8, at_most=80)
    audit = read_audits.arranged("result", result)
    if audit.sizes["repeat"] > 1:
        raise ValueError(
            f"result must have one repeat, got {audit.sizes['repeat']}: choose one by result.isel(repeat=0)"
        )
    if audit.sizes["step"] < 2:
        raise ValueError("result must have scores at two steps or more, got 1: audit with a smaller observe_every")
    count = audit.sizes["step"]
    places = np.linspace(0, count - 1, min(MOST_STEPS, count)).round().astype(int)
    chosen = result.isel(step=places)
    panel = findings.panel({"audit": chosen}, delta=delta, alpha=alpha)
    [bounds] = panel["audited"]["audit"]
    read_audits.all_valid("result", bounds)
    score, bit = audit.score.values[0][:, places], audit.bit.values[0]
    standard = np.stack([_standardised(one, bit) for one in score.T])
    low, high = np.quantile(standard, (NEAR, FAR))
    edges = np.linspace(low, high, bins + 1)
    kept = np.clip(standard, low, high)
    frames: list[dict[str, Any]] = [
        {
            "step": int(step),
            "bound": round(bound.epsilon, 3),
            "substitute": round(float(substitute), 3),
            "add_remove": round(float(add_remove), 3),
            "z": np.histogram(row[bit == 0], edges)[0].tolist(),
            "z_prime": np.histogram(row[bit == 1], edges)[0].tolist(),
        }
        for step, bound, substitute, add_remove, row in zip(
            panel["steps"], bounds, panel["substitute"], panel["add_remove"], kept, strict=True
        )
    ]
    runs = {"z": int((bit == 0).sum()), "z_prime": int((bit == 1).sum())}
    return filled("drift.html", frames=frames, runs=runs, confidence=float(f"{100 * (1 - alpha):.4g}"))


def _standardised(score: np.ndarray, bit: np.ndarray) -> np.ndarray:
    """The scores of one step about the middle between the two worlds' means, over the standard deviation in a world."""
    with_z, with_z_prime = score[bit == 0].astype(float), score[bit == 1].astype(float)
    if not (len(with_z) and len(with_z_prime)):
        raise ValueError("result must have runs in both worlds, got runs of one world only")
    middle = (with_z.mean() + with_z_prime.mean()) / 2
    spread = np.sqrt((with_z.var() * len(with_z) + with_z_prime.var() * len(with_z_prime)) / len(score))
    return np.asarray((score - middle) / (spread or 1.0))
