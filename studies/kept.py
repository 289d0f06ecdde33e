"""Results that are kept in files, and continued after an interruption."""

import json
import platform
import time
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd

from dpsub import audits

STUDIES = Path(__file__).parent
MADE = ("seconds", "commit", "date")  # processor seconds


def read_table(path):
    """A table of comma-separated values. Its path may begin in studies/."""
    return pd.read_csv(STUDIES / path, comment="#")


def read_json(path):
    """What a JSON file holds. Its path may begin in studies/."""
    path = STUDIES / path
    if not path.exists():
        raise FileNotFoundError(f"no results at {path}: studies/README.md says which program makes them")
    return json.loads(path.read_text())


def continued(path, names, cells, measured, *, columns=(), about="", mapped=map, clock=time.process_time):
    """Append to a table the rows of each cell that it lacks, and write it after each cell.

    Args:
        path: of the table, .csv or .json.
        names: the columns that tell one cell from another.
        cells: their values, a tuple each.
        measured: from a cell, as a dictionary, to a list of rows: the other columns of each.
        columns: the other columns of a .csv, if the first rows do not have them all.
        about: the first line of a new .csv; of a .json the entries beside `made` and `rows`.
        mapped: in place of `map`, to measure several cells at once.
    """
    path = Path(path).absolute()
    done = {_key(row, names) for row in _rows(path)}
    every = (dict(zip(names, cell, strict=True)) for cell in cells)
    left = [own for own in every if _key(own, names) not in done]
    began = clock()
    for own, rows in zip(left, mapped(measured, left), strict=True):
        ended = clock()
        rows = [own | row for row in rows]
        if path.suffix == ".json":
            _write(path, (about or {}) | _entries(path) | {"rows": _rows(path) + rows}, ended - began)
        else:
            _append(path, names, rows, columns, about, ended - began)
        print(*own.values(), f"{ended - began:.1f}", flush=True)
        began = ended


def _append(path, names, rows, columns, about, seconds):
    """Append rows to a .csv, with how they were made."""
    made = [round(seconds, 1), audits.made_here("cpu")["commit"], f"{datetime.now(UTC):%Y-%m-%d}"]
    rows = pd.DataFrame(rows).assign(**dict(zip(MADE, made, strict=True)))
    if not path.exists():
        others = columns or [name for name in rows if name not in (*names, *MADE)]
        path.write_text(f"# {about}\n" if about else "")
        pd.DataFrame(columns=[*names, *others, *MADE]).to_csv(path, mode="a", index=False)
    table = read_table(path)
    if missing := [name for name in rows if name not in table]:
        raise ValueError(f"{path} must have the columns {', '.join(missing)}, got a table without: begin a new one")
    rows.reindex(columns=table.columns).to_csv(path, mode="a", header=False, index=False)


def remembered(path, name, compute):
    """An entry of a JSON file; computed and written into it if it is not there. Without a path it is only computed."""
    if path is None:
        return compute()
    path = Path(path).absolute()
    if name not in _entries(path):
        began = time.process_time()
        entry = compute()
        _write(path, _entries(path) | {name: entry}, time.process_time() - began)
    return _entries(path)[name]


def _key(row, names):
    values = (row[name] for name in names)
    return tuple(json.dumps(value, sort_keys=True) if isinstance(value, dict) else value for value in values)


def _entries(path):
    return json.loads(path.read_text()) if path.exists() else {}


def _rows(path):
    if path.suffix == ".json":
        return _entries(path).get("rows", [])
    return read_table(path).to_dict("records") if path.exists() else []


def _write(path, entries, seconds):
    """Replace a JSON file by these entries, a row a line. `made` says how, with the seconds of all runs."""
    entries["made"] = how_made(seconds + entries.get("made", {}).get("seconds", 0))
    rows = ",\n".join(map(json.dumps, entries.pop("rows", [])))
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(f'{json.dumps(entries)[:-1]},\n"rows": [\n{rows}\n]}}\n')
    partial.replace(path)


def how_made(seconds):
    """Date, machine, commit, seconds, and the versions of libraries."""
    here = audits.made_here("cpu")
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "machine": f"{platform.machine()}, {platform.system()}",
        "commit": here["commit"],
        "seconds": round(seconds, 1),
        **{name: here[f"version_{name}"] for name in ("numpy", "scipy", "torch")},
    }
