"""Pairs of records crafted for one training and audited in another.

A learning rate or a number of steps changes an attack with records in two ways: it changes the training, and the
reference model on which the pair of records is crafted. This study tells the two apart, on the draws of `draws`. In the
training "T2500 slow" η is so small that 2,500 steps go as far as 500 steps of Figure 3.

``python -m studies.beyond_membership.crossed_pairs studies/beyond_membership/crossed_pairs.csv ImageNet=20 "small
network=10"`` audits draws of each encoder's features. With ImageNet's, pairs in the training that they were crafted for
are in ``draws.csv``. A file that exists is continued.
"""

import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pandas as pd
import torch

from dpsub import crafters, models
from studies.beyond_membership import over_draws
from studies.beyond_membership.draws import ABOUT, IMAGES, drawn, found, trained
from studies.kept import continued, read_table
from studies.tight_auditing.seed_tables import said

# the settings of `draws`, by what varies: names of digits alone would be read from a table as numbers
CALLED = {name: name for name in IMAGES} | {"16": "T500", "1": "rate1000"}
TRAININGS = {CALLED[name]: setting for name, setting in IMAGES.items()} | {"T2500 slow": (0.0625, 2_500, 2.0, 2e-4)}
PAIRS = {  # the training that is audited, the scenario, and the training that the pair was crafted for
    "ImageNet": [
        ("T2500", "S3", "T500"),
        ("T2500 slow", "S3", "T500"),
        ("rate10", "S3", "rate1000"),
        ("rate10", "S4", "rate1000"),
        ("rate10", "S5", "rate1000"),
    ],
    "small network": [
        ("T500", "S3", "T500"),
        ("T2500", "S3", "T500"),
        ("T2500 slow", "S3", "T500"),
        ("T2500", "S3", "T2500"),
    ],
}
CELL = ("features", "draw", "setting", "scenario", "crafted_for")


def measured(cell):
    """What a pair finds in a training."""
    torch.set_num_threads(1)
    task, slot = drawn(cell["features"], cell["draw"])
    guess, spec = (trained(TRAININGS[cell[name]]) for name in ("crafted_for", "setting"))
    model = models.linear(task)
    pair = crafters.BY_SCENARIO[cell["scenario"]](task, model, guess, seed=cell["draw"], target=slot)
    return [found(task, model, pair, spec, slot, cell["draw"])]


def estimates(features):
    """By audited training, scenario and the training that the pair was crafted for, the estimate of ε in each draw."""
    own = over_draws.kept(features)
    own = over_draws.each(own) if len(own) else {}
    table = read_table("beyond_membership/crossed_pairs.csv").sort_values("draw")
    table = table[table.features == features]
    crossed = {key: rows.final_epsilon.tolist() for key, rows in table.groupby([*CELL[2:]])}
    return {(CALLED[name], s, CALLED[name]): values for (name, s), values in own.items()} | crossed


def summary(features):
    """What a change of training adds to the mean estimate with the pair that was there, and what the new pair adds."""
    found = estimates(features)
    rows = {}
    for setting, s, crafted_for in PAIRS[features]:
        if setting == crafted_for:
            continue
        before, there = found[crafted_for, s, crafted_for], found[setting, s, crafted_for]
        rows[setting, s] = {"before": f"{np.mean(before):.2f}", "by the training": said(np.subtract(there, before))}
        if (setting, s, setting) in found:
            after = found[setting, s, setting]
            rows[setting, s] |= {"by the pair": said(np.subtract(after, there)), "after": f"{np.mean(after):.2f}"}
    return pd.DataFrame.from_dict(rows, orient="index").fillna("")


if __name__ == "__main__":
    path, *asked = sys.argv[1:]
    with ProcessPoolExecutor(os.cpu_count()) as workers:
        for features, _, draws in (one.partition("=") for one in asked):
            cells = [(features, draw, *pair) for draw in range(int(draws)) for pair in PAIRS[features]]
            continued(path, CELL, cells, measured, about=ABOUT, mapped=workers.map, clock=time.monotonic)
