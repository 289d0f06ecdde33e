"""Pairs of records crafted for one training and audited in another.

A learning rate or a number of steps changes an attack with records in two ways: it changes the training, and the
reference model on which the pair of records is crafted. This study tells the two apart, on the draws of `draws`. In the
training "T2500 slow" η is so small that 2,500 steps go as far as 500 steps of Figure 3.

``python -m studies.beyond_membership.crossed_pairs studies/beyond_membership/crossed_pairs.csv 20`` audits 20 draws.
Pairs in the training that they were crafted for are in ``draws.csv``. A file that exists is continued.
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

TRAININGS = IMAGES | {"T2500 slow": (0.0625, 2_500, 2.0, 2e-4)}
CRAFTED_FOR = {  # by the training that is audited and the scenario
    ("T2500", "S3"): "16",
    ("T2500 slow", "S3"): "16",
    ("rate10", "S3"): "1",
    ("rate10", "S4"): "1",
    ("rate10", "S5"): "1",
}
CELL = ("draw", "setting", "scenario")


def measured(cell):
    """What a pair finds in another training than that of its reference model."""
    torch.set_num_threads(1)
    task, slot = drawn("ImageNet", cell["draw"])
    setting, scenario, model = cell["setting"], cell["scenario"], models.linear(task)
    guess, spec = (trained(TRAININGS[name]) for name in (CRAFTED_FOR[setting, scenario], setting))
    pair = crafters.BY_SCENARIO[scenario](task, model, guess, seed=cell["draw"], target=slot)
    return [found(task, model, pair, spec, slot, cell["draw"])]


def estimates():
    """By the training that is audited and the scenario, the estimate of ε in the final models for each draw."""
    table = read_table("beyond_membership/crossed_pairs.csv").sort_values("draw")
    return {key: rows.final_epsilon.tolist() for key, rows in table.groupby(["setting", "scenario"])}


def summary():
    """What a change of training adds to the mean estimate with the pair that was there, and what the new pair adds."""
    own, crossed = over_draws.each(over_draws.kept("ImageNet")), estimates()
    rows = {}
    for (setting, s), crafted_for in CRAFTED_FOR.items():
        before, there = own[crafted_for, s], crossed[setting, s]
        rows[setting, s] = {"before": f"{np.mean(before):.2f}", "by the training": said(np.subtract(there, before))}
        if (setting, s) in own:
            after = own[setting, s]
            rows[setting, s] |= {"by the pair": said(np.subtract(after, there)), "after": f"{np.mean(after):.2f}"}
    return pd.DataFrame.from_dict(rows, orient="index").fillna("")


if __name__ == "__main__":
    path, draws = sys.argv[1:]
    cells = [(draw, *audited) for draw in range(int(draws)) for audited in CRAFTED_FOR]
    with ProcessPoolExecutor(os.cpu_count()) as workers:
        continued(path, CELL, cells, measured, about=ABOUT, mapped=workers.map, clock=time.monotonic)
