"""Tables of audits that are kept in the repository, a row each."""

import time
from pathlib import Path

import pandas as pd

from own_code.provenance import how_made


def continued(path, names, cells, measured):
    """Give a table a row for each cell that it lacks, one at a time.

    Args:
        path: of the table. Its first line says how it was made.
        names: the columns that tell one cell from another.
        cells: their values, a tuple each.
        measured: from a cell, as a dictionary, to the row's other columns.
    """
    path, began = Path(path), time.monotonic()
    rows = read(path).to_dict("records") if path.exists() else []
    done = [tuple(row[name] for name in names) for row in rows]
    for cell in cells:
        if cell in done:
            continue
        started = time.monotonic()
        row = dict(zip(names, cell, strict=True))
        row |= measured(row)
        row["seconds"] = round(time.monotonic() - started, 1)
        rows.append(row)
        print(row, flush=True)
        made = how_made(round(time.monotonic() - began))
        told = ", ".join(f"{name} {value}" for name, value in made.items())
        path.write_text(
            f"# {told}\n{pd.DataFrame(rows).to_csv(index=False)}"
        )


def read(path):
    """The table."""
    return pd.read_csv(path, comment="#")
