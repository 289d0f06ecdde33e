"""Figures of crafted samples: what they look like, what crafting gains, and what they report at ε = 0."""

import matplotlib.pyplot as plt
import numpy as np

from dpsub import figures
from studies.beyond_membership import pictures
from studies.estimators.validity import with_shares
from studies.final_models.crafting_curve import crafting_curves

WORLDS = {1: "world z′: trained without z", 0: "world z: trained with z"}
PARTS = {"crafted on": {"marker": "o", "ls": "-"}, "judged": {"marker": "s", "ls": "--"}}
# By the names of `learned_at_zero.WAYS`: what the figure calls them, and where it names their curves.
CALLED = {
    "first version": ("first version", (2.4, 0.4)),
    "in sample, ranks": ("in sample", (0.62, 0.2)),
    "second version": ("second version", (0.6, 0.045)),
    "half and half, ranks": ("held out", (0.1, 0.0031)),
    "folds": ("folds", (1.27, 0.0045)),
}


def examples(task, samples, scores, bits):
    """Each sample as a picture, above the losses at it of models of both worlds."""
    fig, axes = plt.subplots(
        2, len(samples), figsize=(6.8, 3.6), height_ratios=(1, 2), squeeze=False, layout="constrained"
    )
    names = [f"{name}, asked as a {sample.y}" for name, sample in samples.items()]
    pictures.row_of_images(list(axes[0]), task.pictures(np.stack([one.x for one in samples.values()])), names)
    for ax, name in zip(axes[1], samples, strict=True):
        low, high = np.quantile(-scores[name], (0.005, 0.995))
        for bit, look in ((1, {"alpha": 0.5}), (0, {"histtype": "step"})):
            seen = np.clip(-scores[name][bits == bit], low, high)
            ax.hist(seen, np.linspace(low, high, 31), density=True, color=figures.COLORS[bit], **look)
        ax.set_xlabel("loss")
        ax.set_yticks([])
    axes[1, 0].set_ylabel("density")
    handles = [
        plt.Rectangle((0, 0), 1, 1, color=figures.COLORS[1], alpha=0.5, label=WORLDS[1]),
        plt.Line2D([], [], color=figures.COLORS[0], label=WORLDS[0]),
    ]
    fig.legend(handles=handles, loc="outside upper center", ncols=2)
    figures.name_source(fig, f"{task.name}; {len(bits):,} models that were not crafted on")
    return fig


def gains(samples, model, weights, bits, half):
    """The curves of crafting, on the models crafted on, the first half, and on those judged."""
    rows = dict(zip(PARTS, (slice(0, half), slice(half, None)), strict=True))
    return {
        (name, part): crafting_curves(sample, model, weights[these], bits[these])
        for name, sample in samples.items()
        for part, these in rows.items()
    }


def draw_gains(curves, source):
    """What each loss minimises, and the separation, by the step of crafting."""
    names = list(dict.fromkeys(name for name, _ in curves))
    fig, axes = plt.subplots(2, len(names), figsize=(6.8, 3.8), sharex=True, layout="constrained")
    for (name, part), found in curves.items():
        color = figures.COLORS[list(PARTS).index(part)]
        for ax, what in zip(axes[:, names.index(name)], ("loss", "separation"), strict=True):
            ax.plot(found["step"], found[what], color=color, label=part, **PARTS[part])
    for ax, name in zip(axes[0], names, strict=True):
        figures.tag(ax, name)
    axes[0, 0].set_ylabel("minimised loss")
    axes[1, 0].set_ylabel("separation")
    for ax in axes[1]:
        ax.set_xlabel("crafting step")
        ax.xaxis.get_major_locator().set_params(integer=True)
    fig.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=2)
    figures.name_source(fig, source)
    return fig


def shares(table):
    """How often the protocols of `learned_at_zero.table` report an ε above 0, with 95 % Clopper–Pearson intervals."""
    return with_shares(table, "above 0").rename(columns={"share": "wrong"})


def draw_zero(table, source):
    """The bounds of `shares` at ε = 0, and how often each protocol's is above 0; dashed what is not valid."""
    fig, (left, right) = plt.subplots(1, 2, figsize=(6.8, 3.0), width_ratios=(3, 2), layout="constrained")
    for place, (name, row) in enumerate(table.iterrows()):
        shown, where = CALLED[name]
        look = {"color": figures.COLORS[place], "marker": "os^Dv"[place], "ms": 4.5}
        ends = np.concatenate([[0], np.sort(row["bounds"][row["bounds"] > 0])])
        above = np.maximum(np.arange(len(ends))[::-1], 1) / row["audits"]
        valid = {"ls": "-" if row["valid"] else "--"}
        left.step(ends, above, where="post", markevery=[0, -1], clip_on=False, **look | valid)
        left.annotate(shown, where, fontsize=9)
        right.plot([row["low"], row["high"]], [place, place], color=look["color"], lw=1.5)
        right.plot(row["wrong"], place, clip_on=False, **look)
        right.plot([row["alpha"]] * 2, [place - 0.4, place + 0.4], color="black", ls=":")
    left.set_xlim(0, 1.05 * table["largest"].max())
    left.set_xlabel("lower bound on ε; the truth is 0")
    left.set_ylabel("share of audits above")
    left.set_yscale("log")
    left.set_ylim(0.5 / table["audits"].max(), 1.1)
    shares = [0.01, 0.1, 1]
    left.set_yticks(shares, [f"{share:g}" for share in shares])
    right.set_yticks(range(len(table)), [CALLED[name][0] for name in table.index])
    right.tick_params(axis="y", length=0)
    right.set_ylim(len(table) - 0.5, -0.5)
    right.set_xlim(0, 1)
    right.set_xlabel("share of audits above 0")
    figures.name_source(fig, source)
    return fig
