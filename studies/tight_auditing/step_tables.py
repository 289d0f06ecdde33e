"""Tables of audits of steps, and a figure of canaries.

``python -m studies.tight_auditing.step_tables FOLDER`` writes the bounds that follow from a folder's audits,
results/laptop/steps_table1, into its bounds.csv.
"""

import sys
from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from dpsub import accounting, audits, figures
from dpsub.estimators import epsilon_lower_bound, step_to_training
from studies.trainings import DELTA

# By the name of a row: claim and rule. The last five are the paper's.
ESTIMATORS = {
    "GDP, bets": ("gdp", "bets"),
    "GDP, ranks": ("gdp", "ranks"),
    "GDP, Clopper–Pearson": ("gdp", "best"),
    "GDP, Bayesian": ("bayes_gdp", "best"),
    "(ε, δ), Clopper–Pearson": ("dp", "best"),
    "(ε, δ), Bayesian": ("bayes_dp", "best"),
    "ε, Katz": ("katz", "best"),
}
INDEX = ["task", "adjacency", "ε", "estimator"]
SPELT = {"cifar10": "CIFAR-10", "mnist": "MNIST"}
PANELS = {"add_remove": "add/remove", "zero_out": "zero-out", "substitute": "substitute"}


def training_law(result):
    """What the bound of a step needs to become that of a training."""
    return {name: result.attrs[name] for name in ("sample_rate", "steps", "adjacency")}


def canary_of(result):
    """What an audit measures of its canary, in units of C.

    `apart` is the distance between the mean scores of the two worlds, `noise` is σ, and `others` is the standard
    deviation that the other records add to it: what the scores of z′ spread beyond σ. Under substitution of records it
    includes how the distance between z and z′ changes from step to step.
    """
    z, z_prime = (result.score.values[result.bit.values == bit].astype(float) for bit in (0, 1))
    others = np.sqrt(max(0.0, z_prime.var() - result.noise_multiplier**2))
    return {"apart": z.mean() - z_prime.mean(), "noise": result.noise_multiplier, "others": others}


def step_bound(result, way, *, delta, alpha=0.05):
    """The bound on the ε of a step by a claim and a rule."""
    claim, rule = way
    return epsilon_lower_bound(result.score, result.bit, delta=delta, claim=claim, rule=rule, alpha=alpha)


def of_training(step, law, *, delta):
    """The ε of the training that follows from a bound of one step."""
    mu = step.mu
    if mu is None:
        mu = accounting.gdp_mu(step.epsilon, delta) if step.epsilon > 0 else 0.0
    return step_to_training(replace(step, claim="gdp", mu=mu), delta=delta, **law).epsilon


def step_bounds(result, *, delta):
    """The bounds of an audit of steps at canary rate 1 by the estimators of *Tight Auditing*, and ours: a row for each.

    `step` and `training` are the bounds on ε of one step and of the whole training, `valid` says whether they may be
    trusted. Bounds of (ε, δ) and of Katz are converted as the paper does: to the noise of the Gaussian mechanism with
    that ε, and from there to the training's ε. Under protocol "two_trainings" there is no row for bets.

    Source: *Tight Auditing*, section 5.5 and Table 1.
    """
    law, rows = training_law(result), {}
    for name, way in ESTIMATORS.items():
        if way[1] == "bets" and result.protocol != "coins":
            continue
        step = step_bound(result, way, delta=delta)
        rows[name] = {"step": step.epsilon, "training": of_training(step, law, delta=delta), "valid": step.valid}
    return pd.DataFrame.from_dict(rows, orient="index")


def canary_steps(audited, *, delta, alpha=0.05):
    """What audits of steps at canary rate 1, by name, measure of their canaries (`canary_of`): a row for each.

    `step` and `training` are bounds on ε, by bets, and by ranks where worlds are not tossed anew at each step; `valid`
    says whether they hold, as those by ranks do not. `accountant` is the training's ε.

    Source: *Tight Auditing*, appendices C.2 and C.3.
    """
    rows = []
    for result in audited.values():
        law = training_law(result)
        rule = "bets" if result.protocol == "coins" else "ranks"
        step = step_bound(result, ("gdp", rule), delta=delta, alpha=alpha)
        training = step_to_training(step, delta=delta, **law)
        accountant = accounting.epsilon(noise_multiplier=result.noise_multiplier, delta=delta, **law)
        row = {"adjacency": law["adjacency"]} | canary_of(result)
        row |= {"step": step.epsilon, "training": training.epsilon, "valid": step.valid, "accountant": accountant}
        rows.append(row)
    return pd.DataFrame(rows, index=pd.Index(list(audited)))


def canary_panels(table):
    """A training's bounds as dots, a panel for each adjacency, and a row for each canary of a table by `canary_steps`.

    Where audits have tuples for names, rows go by the last entry. The accountant's ε is a line at each row.

    Source: *Tight Auditing*, Figures 15, 16, 18 and 19.
    """
    names = [str(name[-1] if isinstance(name, tuple) else name) for name in table.index]
    rows = {name: i for i, name in enumerate(dict.fromkeys(names))}
    shown = [one for one in PANELS if one in set(table.adjacency)]
    size = 6.8, 1.2 + 0.24 * len(rows)
    figure, axes = plt.subplots(1, len(shown), figsize=size, sharey=True, squeeze=False, layout="constrained")
    places, handles = np.array([rows[name] for name in names]), {}
    for ax, adjacency in zip(axes[0], shown, strict=True):
        here = (table.adjacency == adjacency).to_numpy()
        bounds, limits, at = table.training[here], table.accountant[here], places[here]
        line = figures.looks("substitute" if adjacency == "substitute" else "add_remove")
        handles[adjacency] = ax.vlines(limits, at - 0.5, at + 0.5, **line)
        (handles["bound"],) = ax.plot(bounds, at, "o", color=figures.COLORS[0], label="bound, assumes GDP")
        ax.set_xlim(0, 1.08 * max(bounds.max(), limits.max()) or 1.0)
        ax.set_xlabel("ε of the training run")
        figures.tag(ax, PANELS[adjacency])
    axes[0][0].set_yticks(range(len(rows)), [name.replace("dirac", "Dirac") for name in rows])
    axes[0][0].set_ylim(len(rows) - 0.5, -0.5)
    figure.legend(handles=list(handles.values()), loc="outside upper center", ncols=len(handles))
    return figure


def figure_6(bounds, order, at):
    """The bounds on one ε, a panel for each adjacency, a row for each estimator and a mark for each task."""
    figure, axes = plt.subplots(1, 2, figsize=(6.8, 3.2), sharex=True, sharey=True, layout="constrained")
    places = range(len(order) - 1, -1, -1)
    for ax, adjacency in zip(axes, ("add_remove", "substitute"), strict=True):
        ax.axvline(at, color="black", ls="--", label="accountant's ε")
        tasks = bounds.index.unique("task")
        for name, mark, color in zip(tasks, "os^Dv", figures.COLORS, strict=False):
            part = bounds.xs((name, adjacency, at)).reindex(order)
            ax.plot(part, places, mark, color=color, ms=5, label=SPELT.get(name, name))
        ax.set_xlim(left=0)
        ax.set_xlabel(f"ε, {PANELS[adjacency]}")
    axes[0].set_yticks(places, order)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return figure


def shares(bounds, order, least):
    """By estimator, the least and the largest share of ε from `least` on, and how many bounds exceed it at any ε."""
    of = bounds / bounds.index.get_level_values("ε")
    large = of[of.index.get_level_values("ε") >= least].groupby(level="estimator")
    above = (of > 1).groupby(level="estimator").sum()
    found = pd.DataFrame({"least": large.min(), "largest": large.max(), "above ε": above})
    return found.loc[order]


def computed(folder, paths=None):
    """Every estimator's bounds, of a folder's audits "task-adjacency-ε" or of some of them."""
    rows = {}
    for path in sorted(paths or Path(folder).glob("*.db")):
        name, adjacency, epsilon = path.name.split(".db")[0].split("-")
        rows[name, adjacency, float(epsilon)] = step_bounds(audits.load(path), delta=DELTA)
    return pd.concat(rows, names=INDEX)


def stored(folder):
    """The table as it is stored beside the audits."""
    return pd.read_csv(Path(folder, "bounds.csv")).set_index(INDEX)


if __name__ == "__main__":
    computed(sys.argv[1]).to_csv(Path(sys.argv[1], "bounds.csv"))
