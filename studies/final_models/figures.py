"""The figures of the adversarial-sample paper, drawn from kept tables."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from dpsub import figures
from studies.final_models.attacks import BEST_STEP, BY_RECORD, TWO
from studies.final_models.audits import USUAL

ATTACKS = ("canary", "ude", "ade", "fisher", "bhattacharyya")
NAMES = {"canary": "canary", "ude": "UDE", "ade": "ADE", "fisher": "Fisher", "bhattacharyya": "Bhattacharyya"}
TWO_LABELS = {f"{one}{TWO}": f"{NAMES[one]}{TWO}" for one in ATTACKS[1:]}
MARKERS = dict(zip(ATTACKS, "os^Dv", strict=True))
COLORS = dict(zip(ATTACKS, figures.COLORS, strict=True))
DATA = {"digits": "digits", "mnist": "MNIST", "cifar10": "CIFAR-10"}
DATA = {f"{one}{step}": f"{name}{step}" for one, name in DATA.items() for step in ("", BY_RECORD)}
# What the first version of the paper states, by figure, data, abscissa and attack.
PAPER = {
    (3, "mnist", 10.0): {"canary": 4.11, "ude": 5.61, "ade": 6.68},
    (3, "cifar10", 10.0): {"canary": 0.30, "ude": 1.05, "ade": 4.10},
    (4, "mnist", 10.0): {"canary": 4.11, "ude": 4.40, "ade": 4.51},
    (5, "mnist", 10.0): {"canary": 0.00, "ude": 4.05, "ade": 4.33},
    (6, "mnist", "in-distribution"): {"canary": 0.00, "ade": 3.03},
    (6, "mnist", "blank"): {"canary": 1.29, "ade": 3.94},
    (6, "mnist", "mislabeled"): {"canary": 0.93, "ade": 3.96},
    (6, "mnist", "ClipBKD"): {"canary": 1.56, "ade": 3.91},
    (7, "mnist", "average"): {"canary": 4.11},
    (7, "mnist", "worst"): {"canary": 6.83, "ade": 9.90},
    (7, "cifar10", "average"): {"canary": 0.41},
    (7, "cifar10", "worst"): {"canary": 5.31, "ade": 9.93},
    (8, "mnist", 0.1): {"canary": 5.90, "ude": 7.81, "ade": 7.85},
    (8, "mnist", 1.0): {"ade": 4.24},
    (8, "mnist", 10.0): {"canary": 0.00, "ude": 0.59, "ade": 0.87},
}
# Table 1 of the first version: CIFAR-10 at ε = 4, ADE by its margin α.
TABLE_1 = {0.05: (1.90, 0.51), 0.10: (1.84, 0.32), 0.15: (1.83, 0.34), 0.20: (1.87, 0.21), 0.25: (2.03, 0.24)}


def chosen(rows, **wanted):
    """The rows whose columns have these values."""
    for name, value in wanted.items():
        rows = rows[rows[name] == value]
    return rows


def of_figure(rows, figure):
    """The rows that a figure shows. Figure 4 is of black boxes."""
    usual = USUAL | {5: {"canary": "in-distribution"}, 6: {"theory": 10.0}, 8: {"theory": 10.0}}.get(figure, {})
    usual.pop({6: "canary", 7: "start", 8: "max_grad_norm"}.get(figure), None)
    rows = rows[rows.learning_rate == rows.groupby("data").learning_rate.transform("max")]
    if figure == 4:
        rows = rows[rows.cell.isin(rows.cell[rows.box == "black"])]
        best = rows.cell[rows.way == BEST_STEP]
        last = (rows.box == "black") & (rows.way == "first version") & rows.cell.isin(best)
        rows = rows[~last & ((rows.box == "black") | (rows.attack == "canary"))].assign(box="white")
        rows = rows.replace({"way": {BEST_STEP: "first version"}})
    return chosen(rows, margin=0.2, models=256, box="white", size="small", **usual)


def summary(rows, *by):
    """Mean, standard deviation and number of the audits' bounds."""
    grouped = rows.groupby([*by, "attack", "way"], sort=False)
    found = grouped.bound.agg(["mean", "std", "count"])
    return found.join(grouped.agg({"judged": "mean", "separation": "mean"}))


def two_ways(rows):
    """The rows by the paper's protocol, and those by a valid one."""
    papers = rows[rows.way == "first version"]
    learned = (rows.way == "held out") & (rows.attack != "canary")
    fixed = (rows.way == "all models") & (rows.attack == "canary")
    return {"papers": papers, "valid": rows[learned | fixed]}


def draw(ax, rows, by, order, *, attacks=("canary", "ude", "ade"), paper=None):
    """The bounds of one data set by a column, in this order of its values: hollow by the paper's protocol, else filled.

    The numbers of the figure `paper` of PAPER are crosses.
    """
    ways = two_ways(rows)
    shifts = np.linspace(-0.28, 0.28, len(attacks))
    for shift, attack in zip(shifts, attacks, strict=True):
        look = {"color": COLORS[attack], "linestyle": "none", "ms": 5}
        own = look | {"marker": MARKERS[attack], "elinewidth": 1}
        for way, offset in (("papers", -0.045), ("valid", 0.045)):
            here = chosen(ways[way], attack=attack).groupby(by).bound
            mean, spread = (one.reindex(order).to_numpy(float) for one in (here.mean(), here.std()))
            places = np.arange(len(order)) + shift + offset
            ax.errorbar(places, mean, yerr=np.nan_to_num(spread), mfc="white" if way == "papers" else None, **own)
        for i, at in enumerate(order):
            told = PAPER.get((paper, rows.data.iloc[0], at), {})
            if attack in told:
                ax.plot(i + shift, told[attack], marker="x", **look)
    for i, limit in enumerate(rows.groupby(by).theory.max().reindex(order)):
        ax.plot([i - 0.45, i + 0.45], [limit, limit], **figures.looks("substitute", label=None))
    ax.set_xticks(range(len(order)), [one if isinstance(one, str) else f"{one:g}" for one in order])
    ax.set_ylim(bottom=-0.3)


def legend(fig, attacks=("canary", "ude", "ade"), crosses=True):
    """One legend for all panels."""
    looks = {NAMES[one]: {"color": COLORS[one], "marker": MARKERS[one]} for one in attacks}
    looks |= {"valid": {"marker": "o"}, "the paper's protocol; not valid": {"marker": "o", "mfc": "white"}}
    looks |= {"the paper's number": {"marker": "x"}} if crosses else {}
    looks |= {"accounting": {"linestyle": "--"}}
    usual = {"linestyle": "none", "color": "black"}
    handles = [plt.Line2D([], [], label=label, **(usual | look)) for label, look in looks.items()]
    fig.legend(handles=handles, loc="outside upper center", ncols=3)


def panels(rows, figure, by, order, *, attacks=("canary", "ude", "ade")):
    """A figure of the paper with one panel for each data set at hand.

    A data set with one value of `by` alone has no panel, except of a single ε: the paper's number is beside it.
    """
    shown = of_figure(rows, figure)
    if by != "theory":
        shown = shown[shown.groupby("data")[by].transform("nunique") > 1]
    names = [name for name in DATA if name in set(shown.data)]
    columns = len(names) if len(names) < 4 else 2
    lines = -(-len(names) // columns)
    size = (min(3.4 * max(columns, 1.4), 6.8), 0.8 + 2.4 * lines)
    fig, axes = plt.subplots(lines, columns, figsize=size, squeeze=False, layout="constrained")
    axes, unused = np.split(axes.flat, [len(names)])
    for ax in unused:
        ax.remove()
    for ax, name in zip(axes, names, strict=True):
        own = chosen(shown, data=name)
        there = [one for one in order if one in set(own[by])]
        draw(ax, own, by, there, attacks=attacks, paper=figure)
        figures.tag(ax, f"{DATA[name]}, n = {own.n_train.iloc[0]:,}")
    for ax in axes[::columns]:
        ax.set_ylabel(r"lower bound on $\varepsilon$")
    legend(fig, attacks, crosses=any(key[0] == figure and key[1] in names for key in PAPER))
    audits_of = shown.groupby(["data", "cell"]).audit.nunique()
    counts = []
    for name in names:
        least, most = audits_of[name].min(), audits_of[name].max()
        counts.append(f"{DATA[name]} {most}" if least == most else f"{DATA[name]} {least} to {most}")
    figures.name_source(fig, f"256 models an audit; audits of a setting: {', '.join(counts)}")
    return fig, axes, shown


def orderings(rows, pairs):
    """By how much one attack's bounds exceed another's in the same audits, for pairs (attack, than).

    A row for each cell, pair and protocol: the mean difference, its standard error, and in how many audits it is
    positive.
    """
    found = []
    for protocol, own in two_ways(rows).items():
        wide = own.pivot_table(index=["cell", "audit"], columns="attack", values="bound")
        for attack, than in pairs:
            if not {attack, than} <= set(wide):
                continue
            apart = (wide[attack] - wide[than]).dropna()
            for cell, each in apart.groupby(level="cell"):
                found.append(
                    {
                        "cell": cell,
                        "claim": f"{NAMES[attack]} > {NAMES[than]}",
                        "protocol": protocol,
                        "difference": each.mean(),
                        "error": each.std(ddof=1) / np.sqrt(len(each)),
                        "more": int((each > 0).sum()),
                        "audits": len(each),
                    }
                )
    return pd.DataFrame(found)


SHORT = {
    "first version": "first",
    BEST_STEP: "best",
    "second version": "second",
    "held out": "held",
    "held out, second crafting": "held_second",
    "folds": "folds",
    "all models": "all",
}


def key(cell):
    """A cell's name as other pages quote it."""
    for one, other in (("-add_remove", ""), ("-", "_"), (".", "_")):
        cell = cell.replace(one, other)
    return cell


def named(rows):
    """The audits' bounds in all cells, by the names that other pages quote.

    Names of audits of more than 256 models begin with "one_canary". And how far the worlds are apart, in standard
    deviations; of held-out samples by how much the AUC is ahead of the canary's; of a single audit the ends of that
    interval.
    """
    rows = rows[rows.margin == 0.2]
    by = ["cell", "models", "box", "way", "attack"]
    found = {}
    for (cell, models, box, way, attack), one in rows.groupby(by):
        attack = attack.replace(",", "").replace(" ", "_")
        name = f"{key(cell)}_{SHORT[way]}_{attack}"
        name += "_black" if box == "black" else ""
        name = f"one_canary_{name}_{models}" if models > 256 else name
        found[name] = one.bound.tolist()
        found[f"{name}_apart"] = one.separation.tolist()
        if "held out" in way and one.ahead.notna().all():
            found[f"{name}_ahead"] = one.ahead.tolist()
            if len(one) == 1:
                for end in ("ahead_low", "ahead_high"):
                    found[f"{name}_{end}"] = one[end].item()
    return found
