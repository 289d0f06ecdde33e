import sys
from copy import deepcopy
from pathlib import Path

import nbformat
import pytest
import yaml

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "book"))

import build  # noqa: E402
import run  # noqa: E402


def source():
    cells = [
        nbformat.v4.new_markdown_cell("# Title", id="a"),
        nbformat.v4.new_code_cell("runs = 3", id="b", metadata={"tags": ["parameters"]}),
        nbformat.v4.new_code_cell("runs", id="c", metadata={"tags": ["table"]}),
    ]
    return nbformat.v4.new_notebook(cells=cells)


def executed():
    notebook = deepcopy(source())
    notebook.metadata.papermill = {"exception": None, "end_time": "2026-01-01T00:00:00"}
    for count, cell in enumerate(notebook.cells[1:], start=1):
        cell.execution_count = count
    notebook.cells[2].outputs = [nbformat.v4.new_output("execute_result", {"text/plain": "3"}, execution_count=2)]
    return notebook


def with_failed_cell(notebook):
    notebook.metadata.papermill.exception = True


def interrupted(notebook):
    notebook.metadata.papermill.end_time = None


def never_executed(notebook):
    del notebook.metadata["papermill"]


def with_an_error_output(notebook):
    notebook.cells[2].outputs = [nbformat.v4.new_output("error", ename="E", evalue="v", traceback=[])]


def with_a_cell_left_out(notebook):
    notebook.cells[2].execution_count = None


def of_another_source(notebook):
    notebook.cells[0].source = "# Another title"


def test_a_whole_execution_is_published():
    build.check(executed(), source(), "page")


@pytest.mark.parametrize(
    "spoil",
    [with_failed_cell, interrupted, never_executed, with_an_error_output, with_a_cell_left_out, of_another_source],
)
def test_anything_less_is_refused(spoil):
    notebook = executed()
    spoil(notebook)
    with pytest.raises(build.NotReady, match=r"page: .*make notebooks"):
        build.check(notebook, source(), "page")


def test_injected_parameters_are_shown_and_do_not_count_as_a_change():
    notebook = executed()
    injected = nbformat.v4.new_code_cell("# Parameters\nruns = 7\n", metadata={"tags": ["injected-parameters"]})
    injected.execution_count = 2
    notebook.cells.insert(2, injected)
    build.check(notebook, source(), "page")
    assert build.clean(notebook).cells[2].source == "# the values this page was made with\nruns = 7\n"


def test_widgets_leave_nothing_on_the_page():
    notebook = executed()
    notebook.metadata.widgets = {"state": {}}
    notebook.cells[2].outputs.append(nbformat.v4.new_output("display_data", {build.WIDGET: {}, "text/plain": "0%|"}))
    cleaned = build.clean(notebook)
    assert "widgets" not in cleaned.metadata
    assert [output["data"] for output in cleaned.cells[2].outputs] == [{"text/plain": "3"}]


def test_the_table_is_found_for_the_terminal(tmp_path):
    nbformat.write(executed(), tmp_path / "page.ipynb")
    assert run.tagged_text(tmp_path / "page.ipynb", "table") == "3"


def test_unknown_presets_and_notebooks_are_named(monkeypatch):
    with pytest.raises(SystemExit, match="no parameters for quickstart in the preset 'huge'; there are laptop, paper"):
        run.parameters("quickstart", "huge", "auto", None)
    monkeypatch.setattr(sys, "argv", ["run.py", "nothing"])
    with pytest.raises(SystemExit, match="there is no notebook 'nothing' in notebooks/"):
        run.main()


def test_every_page_and_notebook_is_in_the_table_of_contents():
    toc = yaml.safe_load((ROOT / "book/_toc.yml").read_text())
    listed = {toc["root"], *(chapter["file"] for part in toc["parts"] for chapter in part["chapters"])}
    pages = {f"book/{path.stem}" for path in ROOT.glob("book/*.md")}
    notebooks = {f"notebooks/{path.stem}" for path in ROOT.glob("notebooks/*.ipynb")}
    assert listed == pages | notebooks
