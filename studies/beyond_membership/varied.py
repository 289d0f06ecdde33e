"""Sweeps of all adversaries, and the kept audits in which one value of Figure 3's training is changed."""

from functools import cache, partial
from itertools import product
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from dpsub import accounting, audit, crafters, estimators, figures, findings
from studies.beyond_membership import more_repeats
from studies.kept import STUDIES

PAPER = STUDIES.parent / "results/paper"
OBSERVED = 20  # models that the adversary sees along each training
RECORDS = ("S3", "S4", "S5")
VARIED = {  # the value by which the panels of a figure differ, and their labels
    "fig3_natural_data": ("sample_rate", "q = {sample_rate:g}"),
    "fig3_small_network": ("sample_rate", "q = {sample_rate:g}"),  # Figure 3 on another encoder's features
    "figA6_text": ("sample_rate", "q = {sample_rate:g}"),
    "figA2_clipping": ("max_grad_norm", "C = {max_grad_norm:g}"),
    "figA3_steps": ("steps", "T = {steps}"),
    "figA4_learning_rate": ("learning_rate", "η = {learning_rate:g}"),
}
CHANGED = ("figA2_clipping", "figA3_steps", "figA4_learning_rate")  # of which a part is fig3_small_network's
NAMES = {"sample_rate": "sample rate q", "max_grad_norm": "clipping bound C", "steps": "steps T"}
NAMES["learning_rate"] = "learning rate η"


def made(task, model, specs, *, crafting_steps=5_000, observed=OBSERVED, seed=0, results=None, **options):
    """Audits by all four adversaries in each training, for the panels of a figure, by label and scenario.

    `specs` are the trainings by label, such as "q = 0.25". A canary is crafted for each of them and each scenario with
    the `seed` of its audit. `results` is the folder of the stores ("q=0.25-S2.db"), and None stores nothing. All other
    options are those of `dpsub.audit`.
    """
    scenarios = {**crafters.BY_SCENARIO, "S3": partial(crafters.crafted_input, steps=crafting_steps)}
    found = {}
    for (label, spec), (scenario, craft) in product(specs.items(), scenarios.items()):
        name = f"{label}-{scenario}.db".replace(" ", "").replace("η", "eta")
        how = {"store": None if results is None else Path(results).expanduser() / name, "seed": seed, **options}
        how["observe_every"] = max(1, spec.steps // observed)
        found[label, scenario] = audit(task, model, craft(task, model, spec, seed=seed), spec, **how)
    return found


@cache
def complete(figure):
    """The audits that a figure's folder keeps, by label and scenario, the largest q first, with all their repeats."""
    label = VARIED[figure][1]
    return dict(sorted(more_repeats.with_repeats(PAPER / figure, label=label).items(), reverse=True))


def kept(figure):
    """The kept audits of a figure, by label and scenario.

    The value that Figure 3 has is not among those of the folders of Figures A2 to A4: its audits are the first repeats
    of Figure 3's on the small network's features, as many as the folder's audits have. They have the same seeds.
    """
    if figure not in CHANGED:
        return complete(figure)
    (by, label), found = VARIED[figure], dict(complete(figure))
    for scenario, other in {scenario: one for (_, scenario), one in found.items()}.items():
        usual = complete("fig3_small_network")[f"q = {other.sample_rate:g}", scenario]
        same = usual.isel(repeat=slice(other.sizes["repeat"]))
        found[label.format(**same.attrs), scenario] = same
    return dict(sorted(found.items(), key=lambda one: (one[1].attrs[by], one[0])))


def final(figure, audited, *, delta):
    """What the final models of these audits show: a row for each value and scenario."""
    return findings.last_step(audited.values(), delta=delta).set_index([VARIED[figure][0], "scenario"]).sort_index()


def same_repeats(audited):
    """Of each audit as many repeats as the one with the fewest has, as panels need them."""
    fewest = min(one.sizes["repeat"] for one in audited.values())
    return {key: one.isel(repeat=slice(fewest)) for key, one in audited.items()}


def each(audited, label, *, delta):
    """By scenario, the bounds of each repeat in the final models of a training."""
    return {s: more_repeats.bounds(audited[label, s], delta=delta) for s in crafters.BY_SCENARIO}


def early(panels):
    """The first observed step from which on each mean bound exceeds the add/remove ε, and stays above it, by panel."""
    found = {}
    for label, panel in panels.items():
        for scenario, repeats in panel["audited"].items():
            below = estimators.over_repeats(repeats).mean <= panel["add_remove"]
            begin = below[::-1].argmax() if below.any() else len(below)
            left = panel["steps"][len(below) - begin :]
            found[label, scenario] = left[0] if len(left) else None
    return pd.Series(found).unstack()


def above_add_remove(audited, scenario, *, delta):
    """By label, at how many observed steps a scenario's mean bound exceeds the add/remove ε."""
    return {
        label: int((estimators.over_repeats(panel["audited"][scenario]).mean > panel["add_remove"]).sum())
        for label, panel in findings.panels(audited, delta=delta).items()
    }


def apart(one, C):
    """How far apart the two gradients of an audit's pair are on the reference model, clipped to C: a share of 2C."""
    target = one.canary_norm
    u, v = min(C, target), min(C, target * one.canary_norm_ratio)
    return np.sqrt(u**2 + v**2 - 2 * u * v * one.canary_cosine) / (2 * C)


def predicted(audited, bound, *, delta):
    """What the norms and cosines on the reference model predict of each record at the least and the greatest C.

    A share d of the distance 2C that two crafted gradients have at every step makes the mechanism's μ d times as large.
    """
    mu = accounting.gdp_mu(10, delta)
    values, rows = bound.index.unique(0), {}
    for s, C in product(RECORDS, (values[0], values[-1])):
        about = audited[f"C = {values[0]:g}", s]
        share = apart(about, C)
        row = {"norm": about.canary_norm * about.canary_norm_ratio, "cosine": about.canary_cosine, "of 2C": share}
        rows[s, C] = row | {"predicted": accounting.gdp_epsilon(share * mu, delta), "bound": bound[C, s]}
    return pd.DataFrame(rows).T.rename_axis(["record", "C"])


def shares(audited, *, delta):
    """By number of steps, what % of the substitute ε the crafted input finds half way through a training, and after."""
    found = {}
    for T in (500, 2500):
        both = audited[f"T = {T}", "S3"].sel(step=[T // 2, T])
        shown = [[at.epsilon for at in one] for one in findings.bounds(both, delta=delta)]
        found[T] = 100 * np.mean(shown, axis=0) / findings.promises(both, delta=delta)["substitute"]
    return found


def gap_and_spread(audited):
    """The crafted input's mean scores in two worlds apart, and their spread in one, in units of the learning rate."""
    rows = {}
    for (_, scenario), one in audited.items():
        if scenario == "S3":
            score = one.score.values[..., -1] / one.learning_rate
            z, z_prime = (score[one.bit.values == bit] for bit in (0, 1))
            spread = float((z.var() + z_prime.var()) / 2) ** 0.5
            rows[one.learning_rate] = {"gap": float(z.mean() - z_prime.mean()), "spread": spread}
    return pd.DataFrame(rows).T


def against_values(*tables, shown="bound"):
    """What the final models show against each varied value, with its error: a panel for each table, as of `final`."""
    size = (max(4.6, 2.4 * len(tables)), 3.2)
    fig, axes = plt.subplots(1, len(tables), figsize=size, sharey=True, squeeze=False, layout="constrained")
    for ax, table in zip(axes[0], tables, strict=True):
        values = table.index.unique(0)
        for i, scenario in enumerate(crafters.BY_SCENARIO):
            of = table.xs(scenario, level="scenario")
            ax.errorbar(np.arange(len(values)) + 0.06 * (i - 1.5), of[shown], of.error, **figures.looks(scenario))
        for adjacency in ("substitute", "add_remove"):
            ax.plot(range(len(values)), of[adjacency], **figures.looks(adjacency))
        ax.set(xlabel=NAMES[table.index.names[0]], xlim=(-0.4, len(values) - 0.6))
        ax.set_xticks(range(len(values)), [f"{value:g}" for value in values])
    axes[0, 0].set(ylabel="ε in the final models", ylim=(0, None))
    key = dict(zip(*axes[0, 0].get_legend_handles_labels()[::-1], strict=True))
    fig.legend(key.values(), key, loc="outside upper center", ncols=3 if len(tables) > 1 else 2)
    return fig
