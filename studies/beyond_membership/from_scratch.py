"""Figure 4 and what is beside it: the kept audits of networks that each have a start of their own."""

from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import xarray as xr

from dpsub import accounting, audits, estimators, figures, findings
from studies.beyond_membership import crafting_seeds, more_records
from studies.beyond_membership.twins import of_twins, of_two_worlds
from studies.kept import STUDIES, read_table

LARGER = STUDIES / "beyond_membership/more_records"
FEW_RECORDS = STUDIES.parent / "results/laptop/fig4_from_scratch"
LOOKED_AT = 128  # pairs of the crafted input's twins, before the others were trained


class Kept(NamedTuple):
    """The kept audits: of the paper's number of records, and of few."""

    gradient: xr.Dataset  # S2 at q = 0.0625
    on_weight: xr.Dataset  # S2 at q = 0.25, where Algorithm 2 puts the canary
    on_bias: xr.Dataset  # the same on the parameter that it finds at q = 0.0625
    alone: xr.Dataset  # S3 at q = 0.0625, models without twins
    twins: dict[tuple[float, int, str], tuple[xr.Dataset, xr.Dataset]]  # by q, n and scenario
    few: dict[tuple[str, str], xr.Dataset]  # 1,000 records, by label and scenario


def kept():
    """The kept audits."""
    at_quarter = LARGER / "q=0.25-n=50000-S2"
    few = audits.load_all(FEW_RECORDS)
    return Kept(
        audits.load(LARGER / "q=0.0625-n=50000-S2.db"),
        audits.load(f"{at_quarter}.db"),
        audits.load(f"{at_quarter}-parameter=89747.db"),
        audits.load(LARGER / "q=0.0625-n=50000-S3-alone=1.db"),
        more_records.twins(LARGER),
        dict(sorted(few.items(), reverse=True)),  # the largest q first
    )


def places():
    """Where Algorithm 2 puts the canary at q = 0.25, by crafting seed."""
    return read_table(LARGER / "places.csv")


def estimates(twins, *, delta):
    """The twins' estimates by number of records and scenario, in the final models; not bounds."""
    rows = {}
    for (_, n, scenario), (one, other) in twins.items():
        row = {"twins": one.sizes["run"], "accuracy": findings.accuracy(one)[:, -1].mean()}
        row["distance"] = float((one.distance**2).mean() ** 0.5)
        rows[n, scenario] = row | dict(of_twins(one, other, delta=delta).iloc[-1])
    return pd.DataFrame(rows).T.rename_axis(["n", "scenario"]).astype({"twins": int})


def figure_4(about, *, delta):
    """Figure 4 at q = 0.0625: bounds of the crafted gradient, and the twins' estimates for the records as lines."""
    figure, ax = plt.subplots(figsize=(5.2, 3.3), layout="constrained")
    figures.epsilon_against_step(ax, **findings.panel({"S2": about.gradient}, delta=delta), legend=False)
    for (_, n, scenario), pair in about.twins.items():
        if n == about.gradient.n:
            look, apart = figures.looks(scenario), of_twins(*pair, delta=delta)
            dash = {"S3": "-", "S4": "--", "S5": "-."}[scenario]
            ax.plot(apart["epsilon"], dash, color=look["color"], label=f"{look['label']}, estimate")
            ends = apart["epsilon_low"], apart["epsilon_high"]
            ax.fill_between(apart.index, *ends, color=look["color"], alpha=0.15, linewidth=0)
    figure.legend(loc="outside upper center", ncols=2)
    figures.name_source(figure, findings.source(about.gradient))
    return figure


def exact(count, epsilon, *, delta):
    """The mean and standard deviation of bounds from so many models of a mechanism whose ε is exact."""
    rng, mu = np.random.default_rng(0), accounting.gdp_mu(epsilon, delta)
    found = []
    for _ in range(200):
        bits = rng.integers(2, size=count)
        scores = rng.standard_normal(count) + mu * (bits == 0)
        found.append(estimators.epsilon_lower_bound(scores, bits, delta=delta).epsilon)
    return float(np.mean(found)), float(np.std(found))


def of_alone(one, *, delta):
    """What the final models of an audit without twins show: an estimate with its interval, and a valid bound."""
    last = one.isel(step=-1)
    bound = findings.last_step([one], delta=delta).bound.item()
    return of_two_worlds(last.score, last.bit, delta=delta) | {"bound": bound}


def of_added(twins, *, delta):
    """The estimate from the twins of the crafted input that were added because the first did not tell."""
    pair = twins[0.0625, 50_000, "S3"]
    added = [each.assign_coords(run=range(each.runs)).isel(run=slice(LOOKED_AT, None)) for each in pair]
    return of_twins(*added, delta=delta).iloc[-1]


def by_place(about, *, delta):
    """What a crafted gradient shows by the parameter that it is on, in the final models."""
    weights, classes, parameters = 128 * 100, 100, int(about.gradient.model.split(" parameters")[0].split()[-1])
    rows = []
    for one in (about.on_weight, about.on_bias, about.few["q = 0.25", "S2"], about.gradient):
        layer = parameters - np.array([weights + classes, classes]) <= one.canary_parameter
        place = ("before it", "weight", "bias")[layer.sum()]
        rows.append({"q": one.sample_rate, "n": one.n, "place": place, "models": one.runs} | of_alone(one, delta=delta))
    columns = ["models", "gap", "spread", "epsilon_low", "epsilon", "epsilon_high", "bound"]
    return pd.DataFrame(rows).set_index(["q", "n", "place"])[columns]


def by_start():
    """Estimates of ε and accuracies on digits by canary and seed, for both optimizers from one start and from many."""
    table = read_table("beyond_membership/crafting_seeds.csv")
    table = table[table.study == "optimizer"]
    return table.pivot_table(["estimate", "accuracy"], ["canary", "seed"], "variant").dropna()


def draw_starts(ax, shown):
    """The mean estimate of each canary with two standard errors, a mark for each training of `by_start`."""
    names = {"sgd": "DP-SGD", "adam": "DP-Adam", "fixed": "one start", "fresh": "own starts"}
    for i, variant in enumerate(crafting_seeds.TRAININGS):
        optimizer, start = variant.split(", ")
        of = shown[variant].groupby("canary").agg(["mean", "sem"])
        look = {"marker": "os"[optimizer == "adam"], "color": figures.COLORS[optimizer == "adam"], "linestyle": "none"}
        look["mfc"] = "white" if start == "fresh" else look["color"]
        place = np.arange(len(of)) + 0.12 * (i - 1.5)
        ax.errorbar(place, of["mean"], 2 * of["sem"], label=f"{names[optimizer]}, {names[start]}", **look)
    ax.axhline(crafting_seeds.EPSILON, **figures.looks("substitute"))
    ax.set_xticks(range(len(of)), [figures.looks(s)["label"].replace(" (", "\n(") for s in of.index])
    ax.set(ylabel="estimate of ε in the final models", ylim=(0, None))
