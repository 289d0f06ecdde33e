"""Tables of audits that are kept in the repository."""

import time
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd

from dpsub import audits

MADE = ("seconds", "commit", "date")  # processor seconds


def continued(path, names, cells, measured, *, columns=(), about=""):
    """Append to a table the rows of each cell that it lacks.

    Args:
        path: of the table. A new one begins with the line `about`.
        names: the columns that tell one cell from another.
        cells: their values, a tuple each.
        measured: from a cell, as a dictionary, to a list of rows: the
            other columns of each.
        columns: the other columns, if the first rows do not have them all.
    """
    path, done, began = Path(path), set(), time.process_time()
    kept = read(path) if path.exists() else None
    if kept is not None:
        done = set(kept[[*names]].itertuples(index=False, name=None))
    for cell in cells:
        if cell in done:
            continue
        own = dict(zip(names, cell, strict=True))
        rows = pd.DataFrame([own | row for row in measured(own)])
        ended = time.process_time()
        rows["seconds"] = round(ended - began, 1)
        rows["commit"] = audits.made_here("cpu")["commit"]
        rows["date"] = f"{datetime.now(UTC):%Y-%m-%d}"
        if kept is None:
            path.write_text(f"# {about}\n" if about else "")
            found = [name for name in rows if name not in (*names, *MADE)]
            order = [*names, *(columns or found), *MADE]
            kept = pd.DataFrame(columns=order)
            kept.to_csv(path, mode="a", index=False)
        rows = rows.reindex(columns=kept.columns)
        rows.to_csv(path, mode="a", header=False, index=False)
        done.add(cell)
        print(*cell, rows.seconds[0], flush=True)
        began = ended


def read(path):
    """The table."""
    return pd.read_csv(path, comment="#")
