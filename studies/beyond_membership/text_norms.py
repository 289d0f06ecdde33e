"""Figure A6's embeddings with other norms: estimates from models that were each trained twice."""

import matplotlib.pyplot as plt
import pandas as pd

import dpsub
from dpsub import accounting, audits, crafters, figures, findings
from studies.beyond_membership.tasks import scaled
from studies.beyond_membership.twins import of_twins
from studies.beyond_membership.varied import PAPER, RECORDS

KEPT = PAPER / "figA6_text/norms"
ENDS = ["epsilon", "epsilon_low", "epsilon_high"]


def make(task, model, spec, norms, folder, *, seed, **options):
    """Twins of each record canary with the features of a task scaled to each norm, kept in a folder."""
    for norm in norms:
        longer = scaled(task, norm, f"{task.name}, norm {norm:g}")
        for scenario in RECORDS:
            pair = crafters.BY_SCENARIO[scenario](longer, model, spec, seed=seed)
            for end, canary in (("", pair), ("-exchanged", pair.exchanged())):
                store = folder and folder / f"norm={norm:g}-{scenario}{end}.db"
                how = {"metrics": ("accuracy", "distance"), "seed": seed, "store": store}
                dpsub.audit(longer, model, canary, spec, **how, **options)


def table(*, delta):
    """The kept estimates: a row for each norm and scenario."""
    rows = {}
    for path in KEPT.glob("norm=*-S?.db"):
        one = audits.load(path)
        apart = of_twins(one, audits.load(f"{path.with_suffix('')}-exchanged.db"), delta=delta).iloc[-1]
        row = {"distance": float((one.distance**2).mean() ** 0.5)} | dict(apart[ENDS])
        row |= {"every step": accounting.gdp_epsilon(findings.every_step_mu(one), delta)}
        row |= {"accuracy": findings.accuracy(one)[:, -1].mean(), "pairs": one.sizes["run"]}
        row["gradient of z′"] = one.canary_norm * one.canary_norm_ratio
        rows[float(one.task.rpartition(" ")[2]), one.scenario] = row
    return pd.DataFrame(rows).T.rename_axis(["norm", "scenario"]).sort_index()


def draw(scaled, add_remove):
    """The estimates against the norm, with two standard errors, beside the accountant's ε."""
    fig, ax = plt.subplots(figsize=(4.6, 3.2), layout="constrained")
    norms = scaled.index.unique("norm")
    for i, scenario in enumerate(RECORDS):
        of = scaled.xs(scenario, level="scenario")
        ends = of.epsilon - of.epsilon_low, of.epsilon_high - of.epsilon
        ax.errorbar(norms * 1.04 ** (i - 1), of.epsilon, ends, **figures.looks(scenario))
    for name, value in (("substitute", 10.0), ("add_remove", add_remove)):
        ax.axhline(value, **figures.looks(name))
    ax.set_xscale("log")
    ax.minorticks_off()
    ax.set_xticks(norms, [f"{norm:g}" for norm in norms])
    ax.set(xlabel="norm of the embeddings", ylabel="ε, an estimate", ylim=(0, None))
    fig.legend(loc="outside upper center", ncols=2)
    return fig
