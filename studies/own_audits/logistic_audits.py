"""Audits of `private_logistic` on tumours: their pairs and their truth."""

from functools import partial

import numpy as np

from dpsub import audit_training, data, figures
from studies.own_training import private_logistic as logistic

COLUMNS = ("worst radius", "worst concave points")
NOISE = {"as proved": logistic.PrivateLogisticRegression, "half the noise": logistic.HalfTheNoise}


def tumours(n_train, seed):
    """Rows (n − 1, 2) of norm 1 at most, and labels of −1 and 1.

    The unit is ten standard deviations. The slot, the last record, is
    left to the pair.
    """
    task = data.breast_cancer(n_train=n_train, seed=seed)
    x = task.x_train[:, [task.columns[name].places[0] for name in COLUMNS]].astype(float) / 10
    x /= np.maximum(1, np.linalg.norm(x, axis=1, keepdims=True))
    return x[:-1], 2 * task.y_train[:-1] - 1


def pairs_of(x, y, strength):
    """Two records that move the minimum far, and one with either label.

    The guarantee is for any record of norm 1. Gradients are long if the
    model is wrong about both records, and point apart if one lies to the
    left of w and one to the right. Several angles are tried.
    """
    weights = logistic.minimum(x * y[:, None], strength)
    toward = weights / np.linalg.norm(weights)
    aside = np.array([-toward[1], toward[0]])
    tried = [
        [(way * np.cos(t) * aside - np.sin(t) * toward, 1) for way in (1, -1)]
        for t in np.linspace(0, 1.25, 26)  # angles, to the wrong side
    ]
    return {"records": max(tried, key=lambda pair: distance(x, y, pair, strength)), "labels": [(aside, 1), (aside, -1)]}


def distance(x, y, pair, strength):
    """How far the minimum moves from z to z′."""
    one, other = logistic.minima(x, y, pair, strength)
    return float(np.linalg.norm(one - other))


def audited(x, y, pairs, *, epsilon, strength, **options):
    """By noise and pair: the audit, and the true ε between its worlds."""
    found = {}
    for how, kind in NOISE.items():
        make = partial(kind, epsilon, strength)
        noise = make(seed=0).sensitivity(len(x) + 1) / epsilon
        for what, pair in pairs.items():
            known = {"x": x, "y": y, "pair": pair, "solutions": logistic.minima(x, y, pair, strength)}
            audit = audit_training(
                partial(logistic.attacked, make=make, **known),
                adjacency="substitute",
                name=f"logistic regression, {how}, {what}",
                parameters={"epsilon": epsilon, "strength": strength},
                progress=False,
                **options,
            )
            found[how, what] = audit, distance(x, y, pair, strength) / noise
    return found


def rows(ax, bounds, limits, epsilon):
    """A row for each audit: its bound, the true ε, and the stated one."""
    ax.plot(list(limits.values()), range(len(limits)), "|", color="0.4", ms=14, label="true ε")
    named = {f"{how},\n{what}": bound for (how, what), bound in bounds.items()}
    figures.beside_claims(ax, named, claimed=epsilon)
    ax.figure.legend(loc="outside upper center", ncols=2)
