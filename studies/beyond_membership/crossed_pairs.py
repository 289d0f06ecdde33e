"""Pairs of records crafted for one training and audited in another.

A learning rate or a number of steps changes an attack with records in two ways: it changes the training, and the
reference model on which the pair of records is crafted. This study tells the two apart.

python -m studies.beyond_membership.crossed_pairs FIGURE_3 FOLDER PARAMETERS audits the pairs of the folder FIGURE_3 in
the trainings of FOLDER, with three repeats, and keeps the audits in FOLDER/crossed. PARAMETERS is a preset's file: its
section of FOLDER's name names the features.
"""

import sys
from pathlib import Path

from dpsub import audits
from studies.beyond_membership import more_repeats

PAIRS = {"eta=0.1": "q=1", "T=2500": "q=0.0625"}  # at the paper's scale
RECORDS, REPEATS = ("S3", "S4", "S5"), 3


def main(figure_3, folder, parameters):
    figure_3, folder = Path(figure_3), Path(folder)
    task = more_repeats.records(parameters, folder)
    for (other, one), s in ((p, s) for p in PAIRS.items() for s in RECORDS):
        path = folder / f"{other}-{s}.db"
        if not path.exists():
            continue
        trained, crafted = audits.load(path), audits.load(figure_3 / f"{one}-{s}.db")
        how = {"crafted_for": crafted, "repeats": REPEATS}
        more_repeats.repeated(trained, task, trained.attrs["seed"], folder / "crossed" / path.name, **how)


if __name__ == "__main__":
    main(*sys.argv[1:])
