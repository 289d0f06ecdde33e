"""How far apart a record's gradient and its target's are in the models that Figure 3 audits.

``python -m studies.beyond_membership.distances studies/beyond_membership/distances.csv`` trains a few more models of
each kept audit with records, on both encoders' features. A file that exists is continued.
"""

import sys
from itertools import product

import dpsub
from dpsub import audits, crafters, models
from studies.beyond_membership import more_repeats, varied
from studies.kept import STUDIES, continued, read_table
from studies.trainings import ON_A_CPU

SECTIONS = {"fig3_natural_data": "fig3_natural_data", "fig3_small_network": "figA2_clipping"}  # that name the features
CELL = ("audits", "sample_rate", "scenario")
CELLS = [*product(SECTIONS, (1.0, 0.25, 0.0625), varied.RECORDS)]
RUNS, OBSERVED, SEED = 32, 5, 1  # another seed than the audits'
ABOUT = "distance: of the two clipped gradients, a share of 2C, the root of the mean square over models and steps"


def measured(cell):
    """A row for an audit: the distance in models of its own, and the cosine on the reference model."""
    folder, q, scenario = (cell[name] for name in CELL)
    one = audits.load(varied.PAPER / folder / f"q={q:g}-{scenario}.db")
    task = more_repeats.records(STUDIES.parent / "notebooks/params/paper.yaml", SECTIONS[folder])
    if task.fingerprint != one.task_fingerprint:
        raise ValueError(f"paper.yaml must name the records of {folder} in the section {SECTIONS[folder]}")
    model, spec = models.linear(task), more_repeats.spec_of(one)
    pair = crafters.BY_SCENARIO[scenario](task, model, spec, seed=one.canary_seed)
    how = {"runs": RUNS, "observe_every": spec.steps // OBSERVED, "metrics": ("distance",), "seed": SEED}
    found = dpsub.audit(task, model, pair, spec, **how, **ON_A_CPU)
    distance = float((found.distance**2).mean() ** 0.5)
    return [{"runs": RUNS, "slot": pair.slot, "cosine": pair.details["cosine"], "distance": distance}]


def kept(folder):
    """The distances in the models of a folder's audits, by sample rate and scenario."""
    table = read_table("beyond_membership/distances.csv")
    return table[table.audits == folder].set_index(["sample_rate", "scenario"]).distance


if __name__ == "__main__":
    continued(sys.argv[1], CELL, CELLS, measured, about=ABOUT)
