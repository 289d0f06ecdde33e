"""What each ε that a hospital may promise costs in accuracy, and what it leaves to an attacker."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from dpsub import accounting, crafters, figures
from studies.trainings import calibrated, final_models


def weigh(task, model, promises, *, sample_rate, steps, max_grad_norm, learning_rate, delta, false_alarms, runs, seed):
    """A row for each promised substitute ε, and its audit: models of which half have the first record's other label."""
    rows, audits = [], {}
    for promise in promises:
        spec = calibrated(promise, "substitute", max_grad_norm, sample_rate, steps, learning_rate, delta=delta)
        pair = crafters.mislabeled(task, model, spec, seed=seed, target=0)
        audits[promise] = final_models(task, model, pair, spec, runs=runs, metrics=("accuracy",), seed=seed)
        right = audits[promise].accuracy.values
        found, of_presence = (
            1 - float(accounting.tradeoff([false_alarms], **spec.mechanism, adjacency=adjacency)[0])
            for adjacency in ("substitute", "add_remove")
        )
        rows.append(
            {
                "ε": promise,
                "σ": spec.noise_multiplier,
                "ε of presence": accounting.epsilon(**spec.mechanism, delta=delta, adjacency="add_remove"),
                "found": found,
                "found of presence": of_presence,
                "right": right.mean(),
                "worst": np.quantile(right, 0.05),
                "best": np.quantile(right, 0.95),
            }
        )
    return pd.DataFrame(rows).set_index("ε"), audits


def draw(weighed, *, chosen, false_alarms):
    """Two panels against the promised ε: how often models are right, and what an attacker finds at most."""
    fig, (left, right) = plt.subplots(1, 2, figsize=figures.DOUBLE, sharex=True)
    percent = 100 * weighed
    left.plot(percent.index, percent["right"], "o-", color=figures.COLORS[0])
    left.fill_between(percent.index, percent["worst"], percent["best"], color=figures.COLORS[0], alpha=0.2, lw=0)
    left.set_ylabel("tumours judged right (%)")
    right.plot(percent.index, percent["found"], "s-", color=figures.COLORS[1])
    right.axhline(100 * false_alarms, color="black", lw=0.8, ls=":")
    right.annotate("blind guess", (percent.index[-1], 100 * false_alarms), ha="right", va="bottom")
    right.set_ylabel("diagnoses found, at most (%)")
    right.set_ylim(bottom=0)
    for ax in (left, right):
        ax.set_xscale("log", base=2)
        ax.set_xticks(percent.index, [f"{one:g}" for one in percent.index])
        ax.set_xlabel("promised ε of the diagnosis")
        ax.axvline(chosen, color="0.6", lw=0.8, zorder=0)
    return fig


def table(weighed):
    """The promises as a page shows them."""
    shown = weighed[["σ", "ε of presence"]].round(2).astype(str)
    shown["found, at most"] = [f"{100 * one:.0f} %" for one in weighed["found"]]
    shown["judged right"] = [f"{100 * one:.1f} %" for one in weighed["right"]]
    return shown.rename_axis(index=None, columns="promised ε")
