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
    table = _Json(path, about or {}) if path.suffix == ".json" else _Csv(path, names, columns, about)
    done = {_key(cell) for cell in table.cells(names)}
    left = [cell for cell in cells if _key(cell) not in done]
    owns = [dict(zip(names, cell, strict=True)) for cell in left]
    began = clock()
    for own, rows in zip(owns, mapped(measured, owns), strict=True):
        ended = clock()
        table.append([own | row for row in rows], ended - began)
        print(*own.values(), f"{ended - began:.1f}", flush=True)
        began = ended


class _Csv:
    def __init__(self, path, names, columns, about):
        self._path, self._names, self._columns, self._about = path, names, columns, about

    def cells(self, names):
        return read_table(self._path)[[*names]].itertuples(index=False, name=None) if self._path.exists() else []

    def append(self, rows, seconds):
        rows = pd.DataFrame(rows)
        rows["seconds"], rows["commit"] = round(seconds, 1), audits.made_here("cpu")["commit"]
        rows["date"] = f"{datetime.now(UTC):%Y-%m-%d}"
        if not self._path.exists():
            others = self._columns or [name for name in rows if name not in (*self._names, *MADE)]
            self._path.write_text(f"# {self._about}\n" if self._about else "")
            pd.DataFrame(columns=[*self._names, *others, *MADE]).to_csv(self._path, mode="a", index=False)
        rows.reindex(columns=read_table(self._path).columns).to_csv(self._path, mode="a", header=False, index=False)


class _Json:
    def __init__(self, path, about):
        self._path, self._about = path, about

    def cells(self, names):
        return [[row[name] for name in names] for row in _entries(self._path).get("rows", [])]

    def append(self, rows, seconds):
        entries = _entries(self._path)
        _write(self._path, self._about | entries | {"rows": entries.get("rows", []) + rows}, seconds)


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


def _key(cell):
    return tuple(json.dumps(value, sort_keys=True) if isinstance(value, dict) else value for value in cell)


def _entries(path):
    return json.loads(path.read_text()) if path.exists() else {}


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
