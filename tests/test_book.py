"""From executed copies to a built book: what may be published, and how the site has it."""

import re
import shutil
import sys
from copy import deepcopy

import build
import claims
import copies
import nbformat
import one_file
import pandas as pd
import pytest
import run
import tables
from browsing import ROOT, listed
from bs4 import BeautifulSoup
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output


def source():
    return new_notebook(
        cells=[
            new_markdown_cell("# Title", id="a"),
            new_code_cell("runs = 3", id="b", metadata={"tags": ["parameters"]}),
            new_code_cell("runs", id="c", metadata={"tags": ["table"]}),
        ]
    )


def executed():
    notebook = deepcopy(source())
    notebook.metadata.update({copies.KEY: "a digest", "papermill": {"exception": None}})
    notebook.cells[2].outputs = [new_output("execute_result", {"text/plain": "3"}, execution_count=2)]
    return notebook


def test_a_whole_execution_is_published():
    notebook = executed()
    notebook.cells.insert(1, copies.evaluating(["f''"]))  # of the prepared copy only
    copies.check(notebook, source(), "page")


def test_anything_less_is_refused():
    notebook, changed = executed(), source()
    changed.cells[0].source = "# Another title"
    with pytest.raises(copies.NotReady, match="page: notebooks/page.ipynb has changed since.*make notebooks"):
        copies.check(notebook, changed, "page")
    del notebook.metadata[copies.KEY]
    with pytest.raises(copies.NotReady, match="page: it was not executed to its end.*make notebooks"):
        copies.check(notebook, source(), "page")


def test_a_page_shows_the_values_used_and_nothing_of_the_builder():
    notebook = executed()
    used = f'# Parameters\nresults = "{ROOT}/results/laptop/page"\n'
    notebook.cells.insert(2, new_code_cell(used, metadata={"tags": ["injected-parameters"]}, execution_count=2))
    notebook.metadata.widgets = {"state": {}}
    notebook.cells[3].outputs.append(new_output("display_data", {copies.WIDGET: {}, "text/plain": "0%|"}))
    copies.check(notebook, source(), "page")
    page = copies.as_page(notebook, "page")
    assert page.cells[2].source == copies.PRESET_OF_PAGE + '\nresults = "../results/laptop/page"\n'
    assert not {"papermill", "widgets", copies.KEY} & page.metadata.keys()
    assert [output["data"] for output in page.cells[3].outputs] == [{"text/plain": "3"}]
    assert str(ROOT) not in nbformat.writes(page)


@pytest.mark.parametrize(
    ("text", "label", "said"),
    [
        ("add_remove", True, "add/remove"),
        ("digits-blank-add_remove", True, "digits-blank-add_remove"),
        ("True", False, "yes"),
        ("NaN", False, "–"),
        ("50000", True, "50,000"),
        ("0.0625", True, "0.0625"),
        ("1.0000", True, "1"),
        ("1.00", False, "1.00"),
        ("-0.35", False, "−0.35"),
        ("-0.00", False, "0.00"),
        ("1.886e+04", False, "1.886·10⁴"),
        ("2.49e-05", False, "2.49·10⁻⁵"),
    ],
)
def test_cells_say_what_a_reader_understands(text, label, said):
    assert tables.spelt(text, label=label) == said


def test_a_table_has_one_row_of_heads_and_prose_to_the_left():
    frame = pd.DataFrame({"steps": [18.0, 103.0], "found": [True, False], "bound": [0.5, 2.0]})
    frame.index = pd.Index(["Dirac", "record"], name="audit")
    shown = BeautifulSoup(tables.readable(frame._repr_html_()), "html.parser")
    rows = [[cell.get_text() for cell in row(["th", "td"])] for row in shown("tr")]
    assert rows == [["audit", "steps", "found", "bound"], ["Dirac", "18", "yes", "0.5"], ["record", "103", "no", "2.0"]]
    assert [cell.get_text() for cell in shown.select(".prose")] == ["audit", "found", "yes", "no"]
    assert tables.readable("<p>1000</p>") == "<p>1000</p>"


def evaluated(cell, texts):
    following = copies.evaluating(copies.expressions(cell))
    following.outputs = [new_output("display_data", {copies.TEXTS: texts})]
    return following


def with_prose():
    """A notebook whose expressions were evaluated, with a figure and its caption."""
    figure = new_code_cell("plot()", metadata={"tags": ["hero"], "mystnb": {"figure": {"name": "fig-page"}}})
    caption = new_markdown_cell('Of {eval}`f"{runs}"` runs.', metadata={"tags": ["caption"]})
    first = new_markdown_cell('It is {eval}`f"{a}"` for *{eval}`f"{b}"`, {eval}`f"{a}"` again.\n\n' + copies.READS_BEST)
    cells = [first, evaluated(first, {'f"{a}"': "-1.20", 'f"{b}"': "a*b_c"}), new_markdown_cell("Before.")]
    return new_notebook(cells=[*cells, figure, caption, evaluated(caption, {'f"{runs}"': "2,500"})])


def test_the_site_shows_texts_for_expressions_captions_with_their_figures_and_what_was_found_on_top():
    page = copies.as_page(with_prose(), "page")
    assert [cell.source for cell in page.cells] == [r"It is −1.20 for *a\*b\_c, −1.20 again.", "plot()", "Before."]
    assert page.cells[1].metadata.mystnb.figure == {"name": "fig-page", "caption": "Of 2,500 runs."}


@pytest.mark.parametrize(("place", "missing"), [(1, "a"), (5, "runs")])
def test_an_expression_that_was_not_evaluated_is_refused(place, missing):
    notebook = with_prose()
    notebook.cells[place].outputs = []
    with pytest.raises(copies.NotReady, match=rf"page: .eval.`.*{missing}.*` has no executed value"):
        copies.as_page(notebook, "page")


def test_a_caption_needs_a_figure_above_it():
    without, twice = with_prose(), with_prose()
    del without.cells[3].metadata["mystnb"]
    twice.cells += deepcopy(twice.cells[4:])
    for notebook in (without, twice):
        with pytest.raises(copies.NotReady, match="page: this caption has no figure of its own above it: 'Of 2,500"):
            copies.as_page(notebook, "page")


def test_every_page_and_notebook_is_in_the_contents():
    there = [*ROOT.glob("book/*.md"), *ROOT.glob("book/api/*.md"), *ROOT.glob("notebooks/*.ipynb")]
    assert sorted(path.relative_to(ROOT).with_suffix("").as_posix() for path in there) == sorted(listed())


@pytest.mark.filterwarnings("default")
def test_a_new_notebook_is_executed_shown_and_staged(tmp_path, monkeypatch, capsys):
    shutil.copytree(ROOT / "book", tmp_path / "book", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "notebooks/params").mkdir(parents=True)
    (tmp_path / "notebooks/params/quick.yaml").touch()
    notebook = source()
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, tmp_path / "notebooks/new.ipynb")
    for module in (run, build):
        monkeypatch.setattr(module, "ROOT", tmp_path)
        monkeypatch.setattr(module, "SOURCES", tmp_path / "notebooks")
        monkeypatch.setattr(module, "EXECUTED", tmp_path / "_build/executed")
    monkeypatch.setattr(build, "STAGED", tmp_path / "_build/src")
    monkeypatch.setattr(claims, "stage", lambda staged: None)
    with pytest.raises(copies.NotReady, match="new: not executed yet: run .make notebooks"):
        build.stage()
    monkeypatch.setattr(sys, "argv", ["run.py", "--show"])
    assert run.main() == 0
    assert re.search(r"new +ran (.|\n)*\n3\n", capsys.readouterr().out)
    build.stage()
    assert (tmp_path / "_build/src/notebooks/new.ipynb").exists()


def test_a_site_loads_figures_late_leaves_unused_files_out_and_offers_sources(tmp_path):
    files = {
        "_static/vendor/fontawesome/6.5.2/js/all.min.js": "a",
        "_static/vendor/fontawesome/6.5.2/webfonts/fa-solid-900.woff2": "a",
        "_images/a.svg": '<svg version="1.1" viewBox="0 0 300 150.4">',
        "_sources/notebooks/page.ipynb": nbformat.writes(executed()),
        "notebooks/page.html": '<script src="../_static/vendor/fontawesome/6.5.2/js/all.min.js?d"></script>'
        '<img alt="A" src="../_images/a.svg"/><img src="b.png"/>',
    }
    for name, text in files.items():
        (tmp_path / "site" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "site" / name).write_text(text)
    nbformat.write(source(), tmp_path / "page.ipynb")
    build.finish(tmp_path / "site", tmp_path)
    page = (tmp_path / "site/notebooks/page.html").read_text()
    assert page == '<img loading="lazy" width="400" height="201" alt="A" src="../_images/a.svg"/><img src="b.png"/>'
    assert not (tmp_path / "site/_static/vendor/fontawesome/6.5.2/js").exists()
    assert (tmp_path / "site/_static/vendor/fontawesome/6.5.2/webfonts/fa-solid-900.woff2").exists()
    assert (tmp_path / "site/_sources/notebooks/page.ipynb").read_text() == (tmp_path / "page.ipynb").read_text()


def test_a_page_in_one_file_has_its_figures_inside_and_no_links_to_files(tmp_path):
    files = {
        "_static/a.css": "p { color: red } @font-face { src: url(math.woff2) } i { background: url('icons.png') }",
        "_static/math.woff2": "font",
        "_images/a.svg": "<svg/>",
        "page.html": "<title>A page</title><link rel='stylesheet' href='_static/a.css?digest=1'><nav>contents</nav>"
        "<article class='bd-article'><script src='_static/a.js'></script><img src='_images/a.svg'>"
        "<a href='other.html'>another</a> <a href='#here'>here</a> <a href='https://a.org'>there</a></article>",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    page = BeautifulSoup(one_file.alone(tmp_path / "page.html"), "html.parser")
    assert page.img["src"] == "data:image/svg+xml;base64,PHN2Zy8+"
    assert [link["href"] for link in page("a")] == ["#here", "https://a.org"]
    assert "another" in page.article.get_text()
    assert "contents" not in page.get_text()
    assert not page("script")
    assert "url(data:font/woff2;base64,Zm9udA==)" in page.style.get_text()
    assert "icons.png" not in page.style.get_text()
    linked = BeautifulSoup(one_file.alone(tmp_path / "page.html", "https://site.org/book/page.html"), "html.parser")
    assert [link["href"] for link in linked("a")] == ["https://site.org/book/other.html", "#here", "https://a.org"]


def test_a_download_says_what_it_needs_and_leaves_out_what_serves_the_book():
    notebook = source()
    assert copies.as_download(notebook, "page.ipynb") == notebook
    notebook.cells[2].source = "from studies.kept import read_table"
    notebook.cells.append(new_code_cell("from studies.glue import glue\n\nglue('a', 1)"))
    given = copies.as_download(notebook, "page.ipynb")
    assert [cell.source for cell in given.cells[2:]] == ["runs = 3", "from studies.kept import read_table"]
    assert "open notebooks/page.ipynb" in given.cells[1].source


def test_only_the_pages_asked_for_are_built_and_what_is_missing_is_said(tmp_path, monkeypatch, capsys):
    assert build.asked_for(["quickstart", "book/install"]) == ["notebooks/quickstart", "book/install"]
    with pytest.raises(ValueError, match="no page is called 'quikstart': did you mean 'notebooks/quickstart'"):
        build.asked_for(["quikstart"])
    monkeypatch.setattr(build, "EXECUTED", tmp_path)
    monkeypatch.setattr(build, "STAGED", tmp_path / "src")
    assert build.stage(["notebooks/quickstart", "book/install"]) == ["book/install"]
    assert "left out: quickstart: not executed yet" in capsys.readouterr().err
    assert build.stage(["notebooks/quickstart"]) == []  # and no other page in its place
    assert not list((tmp_path / "src/notebooks").iterdir())
