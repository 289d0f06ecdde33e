"""How much less noise a risk needs than the ε that implies it: ``python -m studies.risk.noise_saved``."""

import math

import pandas as pd

from dpsub import accounting
from studies.trainings import HOSPITAL, PUBLISHED

TRAININGS = {"hospital": HOSPITAL, **PUBLISHED}
MEASURES = ("accuracy", "tpr")


def at_most(share, digits=1):
    """A share in percent, rounded up, as text."""
    scale = 10**digits
    return f"{math.ceil(100 * scale * share) / scale:.{digits}f} %"


def implying(measure, target, *, delta, fpr):
    """The largest ε at which (ε, δ)-DP alone bounds a risk by the target; the accuracy is for a prior of ½."""
    if measure == "accuracy":
        return math.log((target - delta) / (1 - target))
    few = math.log((target - delta) / fpr)
    many = math.log((1 - delta - fpr) / (1 - target))
    return max(few, many)


def any_mechanism(epsilon, delta):
    """The largest accuracy, for a prior of ½, of any mechanism that is (ε, δ)-DP."""
    return (math.exp(epsilon) + delta) / (1 + math.exp(epsilon))


def risks(*, delta=1e-5, fpr=0.01):
    """The limits on what attackers reach, one row for each training."""
    rows = {}
    for name, (noise, sample_rate, steps) in TRAININGS.items():
        asked = {"noise_multiplier": noise, "sample_rate": sample_rate, "steps": steps, "adjacency": "substitute"}
        epsilon = accounting.epsilon(**asked, delta=delta)
        half, tenth = (accounting.risk(**asked, delta=delta, fpr=fpr, prior=prior) for prior in (0.5, 0.1))
        rows[name] = {
            "ε": f"{epsilon:.2f}",
            "right, this run": at_most(half.accuracy),
            "right, any": at_most(any_mechanism(epsilon, delta), 2),
            "TPR": at_most(half.tpr),
            "PPV": at_most(tenth.ppv),
            "belief": at_most(tenth.posterior),
        }
    return pd.DataFrame(rows).T


def table(*, trainings=TRAININGS, adjacency="substitute", delta=1e-5, fpr=0.01):
    """One row for each training and measure.

    The target is the training's own risk, so that its own noise is what the risk needs. The column `by_epsilon` is the
    noise for the ε whose guarantee bounds the risk by the same target, and `saved` the share of it that is not needed.
    """
    rows = []
    for name, (noise, sample_rate, steps) in trainings.items():
        asked = {"sample_rate": sample_rate, "steps": steps, "adjacency": adjacency}
        own = accounting.risk(noise_multiplier=noise, fpr=fpr, **asked)
        for measure in MEASURES:
            target = getattr(own, measure)
            epsilon = implying(measure, target, delta=delta, fpr=fpr)
            by_risk = accounting.noise_multiplier(target_risk=target, measure=measure, fpr=fpr, **asked)
            by_epsilon = accounting.noise_multiplier(target_epsilon=epsilon, delta=delta, **asked)
            rows.append(
                {
                    "training": name,
                    "measure": measure,
                    "risk": target,
                    "epsilon": epsilon,
                    "by_epsilon": by_epsilon,
                    "by_risk": by_risk,
                    "saved": 1 - by_risk / by_epsilon,
                }
            )
    return pd.DataFrame(rows)


if __name__ == "__main__":
    for adjacency in ("substitute", "add_remove"):
        print(adjacency)
        print(table(adjacency=adjacency).to_string(index=False))
