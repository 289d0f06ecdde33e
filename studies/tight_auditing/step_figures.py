"""Figures and tables of single steps: of a training run that was watched, and of stored simulations."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from scipy.stats import norm

from dpsub import accounting, estimators, figures
from studies.estimators.known_truths import Drifting, Gaussian, SortedByLuck, strongest_scores
from studies.tight_auditing import step_tables

# Claim and rule, by the name of a line.
WAYS = {
    "μ-GDP, ranks": ("gdp", "ranks"),
    "μ-GDP, bets": ("gdp", "bets"),
    "μ-GDP, best threshold": ("gdp", "best"),
    "(ε, δ)-DP, ranks": ("dp", "ranks"),
    "(ε, δ)-DP, best threshold": ("dp", "best"),
}
PAST = {"independent": Gaussian(0.1), "drifting": Drifting(0.1), "sorted by luck": SortedByLuck(0.1)}
OF_PAST = 640  # observations
FAULT_FINDERS = {
    "bets": "μ-GDP, bets",
    "ranks": "μ-GDP, ranks",
    "gdp_cp": "f-DP (CP), paper",
    "gdp_zb": "f-DP (ZB), paper",
    "dp_zb": "(ε, δ) (ZB), paper",
    "katz": "Katz, paper",
}
MARKS = "oPs^vD"


def watched(audited, *, delta):
    """The scores of an audit in both worlds, and the training's ε that its first observations prove."""
    fig, (left, right) = plt.subplots(1, 2, figsize=(6.8, 3.0), layout="constrained")
    sigma, center = audited.noise_multiplier, -1 if audited.adjacency == "substitute" else 0
    x = np.linspace(center - 3.5 * sigma, 1 + 3.5 * sigma, 200)
    for bit, (world, mean, style) in enumerate((("z", 1, "-"), ("z′", center, "--"))):
        look = {"color": figures.COLORS[bit]}
        left.hist(audited.score[audited.bit == bit], bins=40, density=True, alpha=0.3, **look)
        left.plot(x, norm.pdf(x, mean, sigma), ls=style, label=world, **look)
    left.set(xlabel="score of a step, in units of C", ylabel="density")
    left.legend(title="slot holds")
    counts = np.linspace(0, audited.sizes["observation"], 26).astype(int)[1:]
    law = step_tables.training_law(audited)
    bounds = [
        step_tables.of_training(estimators.epsilon_lower_bound(score, bit, delta=delta), law, delta=delta)
        for score, bit in ((audited.score[:count], audited.bit[:count]) for count in counts)
    ]
    right.plot(counts, bounds, "o-", ms=3.5, color=figures.COLORS[0], label="proved by bets")
    stated = accounting.epsilon(noise_multiplier=sigma, delta=delta, **law)
    right.axhline(stated, **figures.looks(audited.adjacency, label="accountant"))
    right.set(xlabel="steps seen", ylabel="ε of the training run", ylim=(0, 1.1 * stated))
    right.legend(loc="lower right")
    return fig


def proved(audits, *, delta):
    """Beside what the noise allows, what bets prove of a step's μ and of the training's ε: a row for each audit."""
    rows = {}
    for audited in audits:
        law, distance = step_tables.training_law(audited), 2 if audited.adjacency == "substitute" else 1
        step = estimators.epsilon_lower_bound(audited.score, audited.bit, delta=delta)
        rows[audited.adjacency] = {
            "μ of a step": distance / audited.noise_multiplier,
            "μ, proved": step.mu,
            "ε of the training run": accounting.epsilon(noise_multiplier=audited.noise_multiplier, delta=delta, **law),
            "ε, proved": step_tables.of_training(step, law, delta=delta),
        }
    return pd.DataFrame(rows).T.rename_axis("adjacency")


def by_epsilon(rows):
    """From rows of `validity.stored`: bounds as shares of a whole ε, by ε, claim, rule and number of observations."""
    whole = rows["truth"].round()
    rows = rows[(rows["truth"] - whole).abs() < 1e-6].assign(ε=whole.astype(int))
    return rows.set_index(["ε", "method", "threshold", "runs"]).sort_index()[["mean", "spread", "wrong", "audits"]]


def _line(ax, line, number, **look):
    look = {"color": figures.COLORS[number], "marker": MARKS[number], "ms": 4} | look
    ax.plot(line.index, line["mean"], **look)
    low, high = (line["mean"] + k * line["spread"] for k in (-1, 1))
    ax.fill_between(line.index, low, high, color=look["color"], alpha=0.15, lw=0)


def _of_shares(axes):
    for ax in axes:
        ax.axhline(1, color="black", ls="--", lw=1)
        ax.set(xscale="log", ylim=(0, 1.15), xlabel="observations of both worlds")
        ax.label_outer()
    axes[0].set_ylabel("bound / truth")


def enough(cells):
    """How much of ε bounds prove by the number of observations: by claims of μ-GDP and bets, and of (ε, δ)-DP."""
    fig, axes = plt.subplots(1, 2, figsize=(6.8, 3.2), layout="constrained", sharex=True, sharey=True)
    for ax, (name, way) in zip(axes, (("μ-GDP", ("gdp", "bets")), ("(ε, δ)-DP", ("dp", "ranks"))), strict=True):
        for number, epsilon in enumerate((1, 2, 4, 8)):
            _line(ax, cells.loc[(epsilon, *way)], number, label=f"ε = {epsilon}")
        figures.tag(ax, name)
    _of_shares(axes)
    fig.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=4)
    return fig


def observations(cells):
    """The same by all ways, a panel for each of four values of ε."""
    fig, axes = plt.subplots(2, 2, figsize=(6.8, 5.0), layout="constrained", sharex=True, sharey=True)
    for ax, epsilon in zip(axes.flat, (1, 2, 4, 6), strict=True):
        for number, (name, way) in enumerate(WAYS.items()):
            hollow = {"ls": "--", "mfc": "white"} if way[1] == "best" else {}
            _line(ax, cells.loc[(epsilon, *way)], number, label=name, **hollow)
        figures.tag(ax, f"ε = {epsilon}")
    for row in axes:
        _of_shares(row)
    fig.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return fig


def lucky_audits(seed):
    """Scores and coins of an audit of each kind in `PAST`, and of one whose truth is μ = 1."""
    rng = np.random.default_rng(seed)
    audits = {}
    for name, truth in (PAST | {"false claim": Gaussian(1.0)}).items():
        bits = rng.integers(0, 2, OF_PAST)
        audits[name] = strongest_scores(truth, bits, rng), bits
    return audits


def wealths(audits, *, delta):
    """The wealth of bets after each observation: against the true claim, and of the last audit against ε = 2."""
    epsilons = [accounting.gdp_epsilon(0.1, delta)] * len(PAST) + [2.0]
    return {
        name: np.exp(estimators.wealth_of_bets(*one, epsilon=epsilon, delta=delta))
        for (name, one), epsilon in zip(audits.items(), epsilons, strict=True)
    }


def luck(audits, paths):
    """How an audit that is sorted by luck looks to ranks, and how wealth grows."""
    fig, (left, right) = plt.subplots(1, 2, figsize=(6.8, 3.2), layout="constrained")
    scores, bits = audits["sorted by luck"]
    order = scores.reshape(-1, 16).mean(axis=1).argsort()
    left.plot(100 * (bits.reshape(-1, 16) == 0).mean(axis=1)[order], "o", color=figures.COLORS[0], ms=4)
    left.axhline(50, color="black", ls=":", lw=0.9)
    left.set(xlabel="groups of 16, ordered by score", ylabel="z in the group (%)")
    for number, (name, path) in enumerate(paths.items()):
        label = name if name == "false claim" else f"true claim, {name}"
        right.plot(path, color=figures.COLORS[number], ls=("-", "--", "-.", (0, (5, 1)))[number], label=label)
    right.axhline(20, color="black", ls=":", lw=1)
    right.annotate("refuted", (0, 20), (2, 3), textcoords="offset points", va="bottom")
    right.set(xlabel="observations", ylabel="wealth, from 1 at the start", yscale="log", ylim=(1e-3, 1e4))
    fig.legend(loc="outside upper center", ncols=2)
    return fig


def promises(rows):
    """How often bounds by ranks and by bets refute a true claim, with Clopper and Pearson's interval."""
    past = rows[rows["runs"].eq(OF_PAST)]
    names = {type(truth).__name__: name for name, truth in PAST.items()}
    found = past.assign(observations=past["truth.kind"].map(names)).rename(columns={"threshold": "rule"})
    return found.set_index(["observations", "rule"])[["wrong", "audits", "low", "high"]]


def costs(rows):
    """The mean bound on μ as a share of μ, by rule and number of observations, where they are independent."""
    near = rows[rows["truth.mu"].isin([0.5, 1.0, 2.0]) & rows["truth.kind"].eq("Gaussian")]
    return near.set_index(["truth.mu", "threshold", "runs"])[["mean_mu", "mean", "spread", "audits"]]


def faults_found(by_fault, faults):
    """The share of audits that refute the claim by the number of observations, a panel for each fault."""
    fig, axes = plt.subplots(1, len(faults), figsize=(6.8, 3.4), layout="constrained", sharey=True)
    for ax, fault in zip(axes, faults, strict=True):
        for number, (name, label) in enumerate(FAULT_FINDERS.items()):
            line = by_fault.loc[fault, name]["found"]
            look = {"marker": MARKS[number], "ms": 4, "color": [*figures.COLORS, "0.5"][number]}
            if "paper" in label:
                look |= {"ls": "--", "mfc": "white"}
            ax.plot(line.index, 100 * line, label=label, **look)
        ax.axhline(5, color="black", ls=":", lw=1)
        ax.set(xscale="log", xlabel="observations")
        figures.tag(ax, fault)
    axes[0].set_ylabel("audits that refute the claim (%)")
    fig.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return fig
