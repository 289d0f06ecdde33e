"""Files of results that are continued."""

import json

import pytest

from studies.kept import continued, read_json, read_table, remembered


def test_a_table_is_continued(tmp_path):
    path, asked = tmp_path / "table.csv", []

    def measured(cell):
        asked.append(cell["canary"])
        return [{"part": part, "epsilon": 0.5} for part in ("all", "half")[: cell["seed"] + 1]]

    columns = {"names": ("canary", "seed"), "measured": measured}
    continued(path, cells=[("S2", 0)], **columns, about="of nothing")
    before = path.read_text()
    continued(path, cells=[("S2", 0), ("S3", 1)], **columns)
    assert asked == ["S2", "S3"]
    assert path.read_text().startswith(before)
    assert before.startswith("# of nothing\ncanary,seed,part,epsilon,seconds,commit,date\n")
    table = read_table(path)
    assert table.part.tolist() == ["all", "all", "half"]
    assert table[["commit", "date"]].notna().all(axis=None)


def test_columns_that_the_first_rows_lack_are_there(tmp_path):
    path = tmp_path / "table.csv"

    def measured(cell):
        return [{"a": 1} if cell["seed"] == 0 else {"a": 2, "b": 3}]

    continued(path, ("seed",), [(0,), (1,)], measured, columns=("a", "b"))
    assert read_table(path).b.tolist() == [pytest.approx(float("nan"), nan_ok=True), 3]


def test_a_table_of_other_columns_is_not_continued(tmp_path):
    path = tmp_path / "table.csv"
    continued(path, ("seed",), [(0,)], lambda own: [{"bound": 1.0}])
    with pytest.raises(ValueError, match="table.csv must have the columns bound_90, got a table without"):
        continued(path, ("seed",), [(1,)], lambda own: [{"bound": 1.0, "bound_90": 2.0}])


def test_a_json_file_is_continued_after_an_interruption(tmp_path):
    path, interrupted = tmp_path / "table.json", [True]

    def measured(cell):
        if cell["cell"]["mu"] == 2.0 and interrupted.pop():
            raise KeyboardInterrupt
        return [{"bounds": [cell["cell"]["mu"]] * 2}]

    cells = [({"mu": mu},) for mu in (1.0, 2.0)]
    with pytest.raises(KeyboardInterrupt):
        continued(path, ("cell",), cells, measured, about={"delta": 1e-5})
    [first] = read_json(path)["rows"]
    interrupted.append(False)
    continued(path, ("cell",), cells, measured, about={"delta": 1e-5})
    kept = read_json(path)
    assert kept["rows"] == [first, {"cell": {"mu": 2.0}, "bounds": [2.0, 2.0]}]
    assert kept["delta"] == 1e-5
    assert kept["made"]["commit"]
    with pytest.raises(FileNotFoundError, match="no results at .*nothing.json"):
        read_json(tmp_path / "nothing.json")


def test_an_entry_is_computed_once(tmp_path):
    path = tmp_path / "new" / "entries.json"
    assert [remembered(path, "a", lambda: value) for value in (1.5, 2.5)] == [1.5, 1.5]
    assert remembered(path, "b", lambda: 3.5) == 3.5
    kept = json.loads(path.read_text())
    assert (kept["a"], kept["b"]) == (1.5, 3.5)
    assert remembered(None, "a", lambda: 4.5) == 4.5
