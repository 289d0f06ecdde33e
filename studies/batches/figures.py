"""What the way of drawing batches changes: the ε of trainings, one step, and audits of five canaries."""

import math

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from scipy.stats import norm

from dpsub import accounting, figures
from studies.batches import audits
from studies.kept import read_table

LOOKS = {
    "poisson": {"marker": "o", "color": "0.6", "label": "Poisson"},
    "without_replacement": {"marker": "s", "color": "black", "label": "fixed size"},
    "epochs": {"marker": "^", "color": "black", "markerfacecolor": "white", "label": "shuffled"},
}
NAMES = {
    "S2": "S2, a gradient",
    "mean gradient": "mean gradient",
    "S3": "S3, crafted input",
    "S4": "S4, another label",
    "S5": "S5, natural",
}


def by_loader(trainings, *, delta):
    """The ε of trainings, each σ, q and T by its name, for each way to draw batches; all but the first for content."""
    rows = {}
    for name, (noise_multiplier, sample_rate, steps) in trainings.items():
        asked = {"noise_multiplier": noise_multiplier, "sample_rate": sample_rate, "steps": steps, "delta": delta}
        content = {**asked, "adjacency": "substitute"}
        fixed = accounting.epsilon_interval(**content, sampling="without_replacement")
        rows[name] = {
            "σ": noise_multiplier,
            "presence": accounting.epsilon(**asked, adjacency="add_remove"),
            "Poisson": accounting.epsilon(**content),
            "fixed ≥": fixed.lower,
            "fixed ≤": fixed.upper,
            "shuffled ≤": accounting.epsilon(
                **{**content, "sample_rate": 1 / math.ceil(1 / sample_rate)}, sampling="epochs"
            ),
        }
    return pd.DataFrame(rows).T


def one_step(sigma, q):
    """One step's densities in the two worlds on the worst data set, with batches of three kinds."""
    x = np.linspace(-4.2, 4.2, 400)
    bell = {shift: norm.pdf(x, shift, sigma) for shift in (-1, 0, 1, 2)}
    hidden = (1 - q) * bell[0]
    worlds = {
        "Poisson": (hidden + q * bell[1], hidden + q * bell[-1]),
        "fixed size": (hidden + q * bell[2], bell[0]),
        "shuffled, at its step": (bell[2], bell[0]),
    }
    fig, axes = plt.subplots(1, 3, figsize=(6.8, 2.2), sharey=True, layout="constrained")
    for ax, (name, (z, z_prime)) in zip(axes, worlds.items(), strict=True):
        [with_z] = ax.plot(x, z, color="black", label="world with z")
        [with_z_prime] = ax.plot(x, z_prime, color="0.55", linestyle="--", label="world with z′")
        ax.set_xlabel("sum of a batch, in C")
        figures.tag(ax, name)
    axes[0].set_ylabel("density")
    fig.legend(handles=[with_z, with_z_prime], loc="outside lower center", ncols=2)
    return fig


def kept():
    """The audits in `audits.csv`, one row for each sample rate, task, canary and way of drawing."""
    return read_table("batches/audits.csv").set_index(list(audits.CELL)).sort_index()


def times_poisson(sample_rate, task, canaries, sampling):
    """How many times Poisson's bound each canary's final models yield with other batches."""
    final = kept().final.unstack("sampling").loc[sample_rate, task].loc[list(canaries)]
    return final[sampling] / final["poisson"]


def trained(sample_rate):
    """What final models yield: five canaries and three ways to draw batches, on both data sets."""
    final = kept().final
    rows = np.arange(len(NAMES))
    fig, axes = plt.subplots(1, 2, figsize=(6.8, 3.2), sharex=True, sharey=True, layout="constrained")
    for ax, task in zip(axes, audits.TASKS, strict=True):
        for (sampling, look), offset in zip(LOOKS.items(), (-0.25, 0, 0.25), strict=True):  # so that none hides another
            values = [final[sample_rate, task, canary, sampling] for canary in NAMES]
            ax.plot(values, rows + offset, linestyle="none", **look)
        poisson = audits.accountants(sample_rate)["poisson"]
        ax.axvline(poisson, color="0.6", linewidth=1, zorder=1, label="accountant, Poisson")
        for between in rows[1:] - 0.5:
            ax.axhline(between, color="0.9", linewidth=0.8, zorder=0)
        ax.set_yticks(range(len(NAMES)), NAMES.values())
        ax.set_xlabel("ε that the final models yield")
        figures.tag(ax, f"{task}, q = {sample_rate:g}")
    axes[0].set_ylim(len(NAMES) - 0.5, -0.9)
    axes[0].set_xlim(0, None)
    fig.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return fig
