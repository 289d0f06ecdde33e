"""What final models reveal beside every step of the same training, after Figures 11 and 12 of *Tight Auditing*."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from dpsub import audits, bound, estimators, figures

RULES = {
    "ranks": ("gdp", "ranks"),
    "GDP, Clopper–Pearson": ("gdp", "best"),
    "GDP, Bayesian": ("bayes_gdp", "best"),
}
OWN_CURVE = "DP-SGD, Bayesian"  # the paper's f-DP (ZB) where batches are sampled
MARKS = {
    ("mislabeled", "ranks"): ("final model, mislabeled record", {"marker": "o", "mfc": "white"}),
    ("blank", "ranks"): ("final model, blank record", {"marker": "o"}),
    ("blank", "every_step"): ("every step, blank record", {"marker": "s"}),
    ("dirac", "every_step"): ("every step, Dirac gradient", {"marker": "^"}),
}
WORLDS = ("add_remove", "substitute")


def kept(folder):
    """The kept audits of a folder by data, network, canary, adjacency or C, and "steps" where every step is seen."""
    return {
        tuple(path.name.split(".db")[0].split("-")): audits.load(path) for path in sorted(Path(folder).glob("*.db"))
    }


def table(audited, *, delta):
    """The bounds of audits by the names that `kept` gives: a row for each setting, canary and adjacency."""
    rows = []
    for (data, network, canary, world, *watched), one in audited.items():
        row = {"setting": f"{data}/{network}", "canary": canary, "world": world}
        if watched:
            row["every_step"] = bound(one, delta=delta).epsilon
        else:
            row["accuracy"] = float(one.accuracy.values.mean())
            for name, (claim, rule) in RULES.items():
                found = estimators.epsilon_lower_bound(one.score[:, -1], one.bit, delta=delta, claim=claim, rule=rule)
                row[name] = found.epsilon
            if world in WORLDS:  # trainings without noise have no curve
                how = {"claim": "bayes_pld", "rule": "best", "delta": delta}
                law = {"sample_rate": one.sample_rate, "steps": int(one.step[-1]), "adjacency": world}
                row[OWN_CURVE] = estimators.epsilon_lower_bound(one.score[:, -1], one.bit, **how, **law).epsilon
        rows.append(row)
    return pd.DataFrame(rows).groupby(["setting", "canary", "world"], sort=False).first()


def draw(bounds, limits):
    """The bounds of a table by setting and by what is seen, a panel for each adjacency; its limit dashed."""
    fig, axes = plt.subplots(1, 2, figsize=(6.8, 3.2), sharey=True, layout="constrained")
    places = bounds["ranks"].dropna().index.unique("setting")
    for ax, world in zip(axes, WORLDS, strict=True):
        for shift, ((canary, column), (label, mark)) in zip((-0.24, -0.08, 0.08, 0.24), MARKS.items(), strict=True):
            at = bounds[column].xs((canary, world), level=("canary", "world")).reindex(places)
            color = figures.COLORS[0 if column == "ranks" else 1]
            ax.plot(np.arange(len(places)) + shift, at, color=color, linestyle="none", label=label, **mark)
        ax.axhline(limits[world], **figures.looks("substitute", label="accounting"))
        ax.set_xticks(range(len(places)), [place.replace("/", "\n") for place in places])
        figures.tag(ax, world.replace("_", "/"))
    axes[0].set_ylim(bottom=0)
    axes[0].set_ylabel(r"lower bound on $\varepsilon$")
    handles, labels = axes[0].get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside upper center", ncols=3)
    return fig
