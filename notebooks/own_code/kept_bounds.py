"""The bounds that follow from the kept audits of steps, as tables.

In notebooks/, with the folder of the audits, whose bounds.csv is written:
python -m own_code.kept_bounds ../results/laptop/steps_table1
"""

import sys
from pathlib import Path

import pandas as pd

from dpsub import audits, findings

DELTA = 1e-5
TABLE_1 = ["task", "adjacency", "ε", "estimator"]
CANARIES = ["figure", "adjacency", "canary"]


def table_1(paths):
    """Of audits "task-adjacency-ε": every estimator's bounds."""
    rows = {}
    for path in paths:
        name, adjacency, epsilon = path.name.split(".zarr")[0].split("-")
        bounds = findings.step_bounds(audits.load(path), delta=DELTA)
        rows[name, adjacency, float(epsilon)] = bounds
    return pd.concat(rows, names=TABLE_1)


def canaries(paths):
    """Of audits "figure-adjacency-canary": what their steps measure."""
    rows = {}
    for path in paths:
        name, adjacency, label = path.name.split(".zarr")[0].split("-", 2)
        key = name, adjacency, label.replace("_", " ")
        measured = findings.canary_steps(
            {key: audits.load(path)}, delta=DELTA
        )
        rows[key] = measured.iloc[0].drop(["adjacency", "valid"])
    table = pd.DataFrame(rows).T.astype(float)
    return table.rename_axis(CANARIES)


MAKERS = {
    "steps_table1": (table_1, TABLE_1),
    "steps_canaries": (canaries, CANARIES),
}


def made(folder, paths=None):
    """The table of a folder's audits, or of some of them."""
    make, _ = MAKERS[Path(folder).name]
    return make(sorted(paths or Path(folder).glob("*.zarr.zip")))


def kept(folder):
    """The table as it is stored beside the audits."""
    _, index = MAKERS[Path(folder).name]
    return pd.read_csv(Path(folder, "bounds.csv")).set_index(index)


if __name__ == "__main__":
    made(sys.argv[1]).to_csv(Path(sys.argv[1], "bounds.csv"))
