"""Pairs of records crafted for one training and audited in another.

A learning rate or a number of steps changes an attack with records in two ways: it changes the training, and the
reference model on which the pair of records is crafted. This study tells the two apart, on the draws of `draws`.

``python -m studies.beyond_membership.crossed_pairs studies/beyond_membership/crossed_pairs.csv 20`` audits 20 draws.
Settings are called as in `draws`, and a pair that was crafted for its own training is in ``draws.csv``. A file that
exists is continued.
"""

import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from itertools import product

import torch

from dpsub import crafters, models
from studies.beyond_membership.draws import ABOUT, IMAGES, drawn, found, trained
from studies.kept import continued, read_table

CRAFTED_FOR = {"T2500": "16", "rate10": "1"}  # by the setting that is audited
RECORDS = ("S3", "S4", "S5")
CELL = ("draw", "setting", "scenario")


def measured(cell):
    """What a pair finds in another training than that of its reference model."""
    torch.set_num_threads(1)
    task, slot = drawn("ImageNet", cell["draw"])
    model, setting = models.linear(task), cell["setting"]
    guess, spec = (trained(IMAGES[name]) for name in (CRAFTED_FOR[setting], setting))
    pair = crafters.BY_SCENARIO[cell["scenario"]](task, model, guess, seed=cell["draw"], target=slot)
    return [found(task, model, pair, spec, slot, cell["draw"])]


def estimates():
    """By setting and record, the estimate of ε in the final models for each draw, in their order."""
    table = read_table("beyond_membership/crossed_pairs.csv").sort_values("draw")
    return {key: rows.final_epsilon.tolist() for key, rows in table.groupby(["setting", "scenario"])}


if __name__ == "__main__":
    path, draws = sys.argv[1:]
    with ProcessPoolExecutor(os.cpu_count()) as workers:
        continued(
            path,
            CELL,
            product(range(int(draws)), CRAFTED_FOR, RECORDS),
            measured,
            about=ABOUT,
            mapped=workers.map,
            clock=time.monotonic,
        )
