"""What the adversaries find over draws of records, target, canary and noise, and how settings differ."""

import numpy as np
import pandas as pd

from dpsub import accounting
from studies.beyond_membership import draws, varied
from studies.kept import read_table
from studies.tight_auditing import seed_tables
from studies.trainings import DELTA

PANELS = {  # what varies, and the settings
    "sample_rate": ("16", "4", "1"),
    "max_grad_norm": ("C1", "1", "C8"),
    "steps": ("16", "T2500"),
    "learning_rate": ("rate10000", "1", "rate10"),
}


def kept(features):
    """The table of an encoder's draws that have every setting and scenario."""
    table = read_table("beyond_membership/draws.csv")
    table = table[table.features == features]
    cells = len(draws.DATA[features][-1]) * len(draws.SCENARIOS)
    return table[table.groupby("draw").draw.transform("size") == cells]


def each(table, column="final_epsilon"):
    """By what a page calls a setting and by scenario, a number for each draw, in their order."""
    names = {setting: name for name, setting in draws.DATA[table.features.iloc[0]][-1].items()}
    found = {}
    for (*setting, scenario), rows in table.sort_values("draw").groupby([*draws.SETTING, "scenario"]):
        found[names[tuple(setting)], scenario] = rows[column].tolist()
    return found


def summary(table, names):
    """A row for each of some settings and scenarios: the mean estimate with its 95 % interval, and both ε."""
    found = each(table)
    settings = draws.DATA[table.features.iloc[0]][-1]
    rows = {}
    for name in names:
        spec = draws.trained(settings[name])
        limits = {
            a: accounting.epsilon(**spec.mechanism, delta=DELTA, adjacency=a) for a in ("substitute", "add_remove")
        }
        for scenario in draws.SCENARIOS:
            mean, _, high = seed_tables.interval(found[name, scenario])
            own = {"estimate": mean, "error": high - mean, **limits}
            rows[name, scenario] = dict(zip(draws.SETTING, settings[name], strict=True)) | own
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis(["setting", "scenario"])


def figure(table):
    """The mean estimates against each value that varies: a panel each."""
    tables = [summary(table, names).reset_index().set_index([by, "scenario"]) for by, names in PANELS.items()]
    return varied.against_values(*tables, shown="estimate")


def changes(table, pairs):
    """For each pair of settings, the mean difference of estimates by scenario with its 95 % interval."""
    found = each(table)
    rows = {
        label: {s: seed_tables.said(np.subtract(found[b, s], found[a, s])) for s in draws.SCENARIOS}
        for label, (a, b) in pairs.items()
    }
    return pd.DataFrame(rows).T
