import sys
from copy import deepcopy
from pathlib import Path

import build
import inline
import made_from
import nbformat
import public_names
import pytest
import run
import yaml

ROOT = Path(__file__).parent.parent


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


def test_what_it_was_made_from_is_not_published():
    notebook = executed()
    notebook.metadata[made_from.KEY] = {"device": "cpu"}
    assert not {"papermill", made_from.KEY} & build.clean(notebook).metadata.keys()


def test_widgets_leave_nothing_on_the_page():
    notebook = executed()
    notebook.metadata.widgets = {"state": {}}
    notebook.cells[2].outputs.append(nbformat.v4.new_output("display_data", {build.WIDGET: {}, "text/plain": "0%|"}))
    cleaned = build.clean(notebook)
    assert "widgets" not in cleaned.metadata
    assert [output["data"] for output in cleaned.cells[2].outputs] == [{"text/plain": "3"}]


def test_the_builders_paths_do_not_show_on_the_page():
    notebook = executed()
    used = f'# Parameters\nresults = "{ROOT}/results/laptop/page"\n'
    notebook.cells[1] = nbformat.v4.new_code_cell(used, metadata={"tags": ["injected-parameters"]})
    cleaned = build.clean(notebook)
    assert 'results = "../results/laptop/page"' in cleaned.cells[1].source
    assert str(ROOT) not in nbformat.writes(cleaned)


PROSE = """# Title

The bound is {eval}`f"{found:.2f}"` for *{eval}`f"{name}"`, {eval}`f"{found:.2f}"` again, after
[Pradhan et al.
(2026)](../book/bibliography.md#pradhan2026beyond) and [the theory](../book/theory.md)."""
ON_THE_SITE = r"""# Title

The bound is 1.20 for *a\*b\_c, 1.20 again, after
{cite:t}`pradhan2026beyond` and [the theory](../book/theory.md)."""
KEYS = {"pradhan2026beyond"}


def with_prose():
    """A notebook whose expressions were evaluated, with a figure and its caption."""
    figure = nbformat.v4.new_code_cell("plot()", metadata={"mystnb": {"figure": {"name": "fig-page"}}})
    caption = nbformat.v4.new_markdown_cell('Of {eval}`f"{runs}"` runs.', metadata={"tags": ["caption"]})
    first = nbformat.v4.new_markdown_cell(f"{PROSE}\n\n{build.READS_BEST}")
    cells = [first, evaluated(first, {'f"{found:.2f}"': "1.20", 'f"{name}"': "a*b_c"})]
    cells += [figure, caption, evaluated(caption, {'f"{runs}"': "2,500"})]
    return nbformat.v4.new_notebook(cells=cells)


def evaluated(cell, texts):
    standing_behind = inline.evaluating(inline.expressions(cell))
    standing_behind.outputs = [nbformat.v4.new_output("display_data", {inline.TEXTS: texts})]
    return standing_behind


def test_the_site_shows_texts_for_expressions_citations_for_links_and_captions_with_their_figures():
    page = build.in_site_notation(with_prose(), "page", KEYS)
    assert [cell.source for cell in page.cells] == [ON_THE_SITE, "plot()"]
    assert page.cells[1].metadata.mystnb.figure == {"name": "fig-page", "caption": "Of 2,500 runs."}


def test_an_expression_that_was_not_evaluated_is_refused():
    for found, missing in ((1, "found"), (4, "runs")):
        notebook = with_prose()
        notebook.cells[found].outputs = []
        with pytest.raises(build.NotReady, match=rf"page: .eval.`.*{missing}.*` has no executed value"):
            build.in_site_notation(notebook, "page", KEYS)
        del notebook.cells[found]
        with pytest.raises(build.NotReady, match=rf"page: .eval.`.*{missing}.*` has no executed value"):
            build.in_site_notation(notebook, "page", KEYS)


def test_a_caption_needs_a_figure_above_it():
    without, twice = with_prose(), with_prose()
    del without.cells[2].metadata["mystnb"]
    twice.cells += deepcopy(twice.cells[3:])
    for notebook in (without, twice):
        with pytest.raises(build.NotReady, match="page: this caption has no figure of its own above it: 'Of 2,500"):
            build.in_site_notation(notebook, "page", KEYS)


def test_only_works_in_the_bibliography_are_cited():
    with pytest.raises(build.NotReady, match=r"page: it cites 'pradhan2026beyond', which book/references.bib lacks"):
        build.in_site_notation(with_prose(), "page", set())
    assert build.citation_keys() >= KEYS


def test_the_cells_that_evaluate_do_not_count_as_a_change():
    notebook = executed()
    notebook.cells.insert(1, inline.evaluating(["f''"]))
    notebook.cells[1].execution_count = 1
    build.check(notebook, source(), "page")


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
    rooms = {f"book/api/{room}" for room in public_names.PAGES if room != "dpsub"}  # made when the book is staged
    assert listed == pages | notebooks | rooms
