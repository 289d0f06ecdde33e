"""Tables that are continued."""

import pytest
from own_code import kept_tables


def test_a_table_is_continued(tmp_path):
    path, made = tmp_path / "table.csv", []

    def measured(cell):
        made.append(cell["canary"])
        return [{"part": part, "epsilon": 0.5} for part in ("all", "half")[: cell["seed"] + 1]]

    columns = {"names": ("canary", "seed"), "measured": measured}
    kept_tables.continued(path, cells=[("S2", 0)], **columns, about="of nothing")
    before = path.read_text()
    kept_tables.continued(path, cells=[("S2", 0), ("S3", 1)], **columns)
    assert made == ["S2", "S3"]
    assert path.read_text().startswith(before)
    assert before.startswith("# of nothing\ncanary,seed,part,epsilon,seconds,commit,date\n")
    table = kept_tables.read(path)
    assert table.part.tolist() == ["all", "all", "half"]
    assert table[["commit", "date"]].notna().all(axis=None)


def test_columns_that_the_first_rows_lack_are_there(tmp_path):
    path = tmp_path / "table.csv"

    def measured(cell):
        return [{"a": 1} if cell["seed"] == 0 else {"a": 2, "b": 3}]

    kept_tables.continued(path, ("seed",), [(0,), (1,)], measured, columns=("a", "b"))
    assert kept_tables.read(path).b.tolist() == [pytest.approx(float("nan"), nan_ok=True), 3]
