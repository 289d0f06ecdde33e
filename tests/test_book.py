"""From executed copies to a built book: what may be published, how the site has it, and what it weighs."""

import re
import shutil
import sys
from copy import deepcopy
from pathlib import Path

import build
import claims
import copies
import joining
import look
import matplotlib.pyplot as plt
import nbformat
import numpy as np
import pandas as pd
import presets
import pytest
import run
import slim
import tables
from bs4 import BeautifulSoup
from fontTools.pens.recordingPen import RecordingPen
from fontTools.svgLib.path import parse_path
from fontTools.ttLib import TTFont
from scipy.spatial import KDTree

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


def test_a_whole_execution_is_published():
    copies.check(executed(), source(), "page")


ERROR = nbformat.v4.new_output("error", ename="E", evalue="v", traceback=[])
SPOILT = {
    "a cell failed": lambda notebook: notebook.metadata.papermill.update(exception=True),
    "it was not executed to its end": lambda notebook: notebook.metadata.papermill.update(end_time=None),
    "it was not executed to its": lambda notebook: notebook.metadata.pop("papermill"),
    "cell 2 shows an error": lambda notebook: notebook.cells[2].update(outputs=[ERROR]),
    "cell 2 was not executed": lambda notebook: notebook.cells[2].update(execution_count=None),
    "notebooks/page.ipynb has changed since": lambda notebook: notebook.cells[0].update(source="# Another title"),
}


@pytest.mark.parametrize("told", SPOILT)
def test_anything_less_is_refused(told):
    notebook = executed()
    SPOILT[told](notebook)
    with pytest.raises(copies.NotReady, match=rf"page: {told}.*make notebooks"):
        copies.check(notebook, source(), "page")


def injected(values):
    cell = nbformat.v4.new_code_cell(f"# Parameters\n{values}\n", metadata={"tags": ["injected-parameters"]})
    cell.execution_count = 2
    return cell


def test_the_page_has_one_block_of_parameters_with_the_values_used():
    notebook = executed()
    notebook.cells.insert(2, injected("runs = 7"))
    copies.check(notebook, source(), "page")
    assert [cell.source for cell in copies.clean(notebook).cells] == ["# Title", "runs = 7", "runs"]


def test_used_values_take_the_place_of_the_defaults_and_leave_the_comments():
    block = 'runs = 3  # R\nrates = [\n    1.0,\n    0.5,\n]  # q\nδ = 1e-5; kind = "é"  # a kind\nseed = 0'
    used = '# Parameters\nrates = [0.25]\nkind = "head"\nseed = None\n'
    assert copies.with_values(block, used) == (
        'runs = 3  # R\nrates = [0.25]  # q\nδ = 1e-5; kind = "head"  # a kind\nseed = None'
    )


def test_what_it_was_made_from_is_not_published():
    notebook = executed()
    notebook.metadata[copies.KEY] = {"device": "cpu"}
    assert not {"papermill", copies.KEY} & copies.clean(notebook).metadata.keys()


def test_widgets_leave_nothing_on_the_page():
    notebook = executed()
    notebook.metadata.widgets = {"state": {}}
    notebook.cells[2].outputs.append(nbformat.v4.new_output("display_data", {copies.WIDGET: {}, "text/plain": "0%|"}))
    cleaned = copies.clean(notebook)
    assert "widgets" not in cleaned.metadata
    assert [output["data"] for output in cleaned.cells[2].outputs] == [{"text/plain": "3"}]


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
    told = [[cell.get_text() for cell in row(["th", "td"])] for row in shown("tr")]
    assert told == [["audit", "steps", "found", "bound"], ["Dirac", "18", "yes", "0.5"], ["record", "103", "no", "2.0"]]
    assert [cell.get_text() for cell in shown.select(".prose")] == ["audit", "found", "yes", "no"]


def test_names_of_columns_keep_a_row_of_their_own_and_other_html_stays():
    frame = pd.DataFrame([[1, 2]], index=pd.Index(["a"], name="rule"), columns=pd.Index([1000, 2000], name="runs"))
    shown = BeautifulSoup(tables.readable(frame._repr_html_()), "html.parser")
    heads = [[cell.get_text() for cell in row("th")] for row in shown.thead("tr")]
    assert heads == [["runs", "1,000", "2,000"], ["rule", "", ""]]
    assert tables.readable("<p>1000</p>") == "<p>1000</p>"


def folded(source, *outputs, tag="hide-input"):
    return nbformat.v4.new_code_cell(source, metadata={"tags": [tag]}, outputs=list(outputs))


def test_folded_code_without_an_output_joins_the_next_that_has_one_or_has_no_bar():
    printed = nbformat.v4.new_output("stream", name="stdout", text="3")
    glued = nbformat.v4.new_output("display_data", {"application/papermill.record/text/plain": "3"})
    cells = [
        folded("import numpy"),
        nbformat.v4.new_code_cell("x = 3"),
        folded("y = x"),
        nbformat.v4.new_markdown_cell("text"),
        folded("z = y"),
        folded("print(z)", printed),
        folded("ask()", tag="hide-cell"),
        folded("glue(z)", glued),
    ]
    page = copies.without_idle_bars(nbformat.v4.new_notebook(cells=cells)).cells
    assert [cell.source for cell in page] == [
        *("import numpy", "x = 3", "text", "y = x\n\nz = y\n\nprint(z)", "ask()", "glue(z)")
    ]
    tags = [cell.metadata.get("tags") for cell in page]
    assert tags == [["no-bar"], None, None, ["hide-input"], ["hide-cell"], ["no-bar"]]


def test_the_builders_paths_do_not_show_on_the_page():
    notebook = executed()
    notebook.cells[1].source = "results = None  # a folder"
    notebook.cells.insert(2, injected(f'results = "{ROOT}/results/laptop/page"'))
    cleaned = copies.clean(notebook)
    assert cleaned.cells[1].source == 'results = "../results/laptop/page"  # a folder'
    assert str(ROOT) not in nbformat.writes(cleaned)


PROSE = """# Title

The bound is {eval}`f"{found:.2f}"` for *{eval}`f"{name}"`, {eval}`f"{found:.2f}"` again."""
ON_THE_SITE = r"""# Title

The bound is 1.20 for *a\*b\_c, 1.20 again."""


def with_prose():
    """A notebook whose expressions were evaluated, with a figure and its caption."""
    figure = nbformat.v4.new_code_cell("plot()", metadata={"mystnb": {"figure": {"name": "fig-page"}}})
    caption = nbformat.v4.new_markdown_cell('Of {eval}`f"{runs}"` runs.', metadata={"tags": ["caption"]})
    first = nbformat.v4.new_markdown_cell(f"{PROSE}\n\n{copies.READS_BEST}")
    cells = [first, evaluated(first, {'f"{found:.2f}"': "1.20", 'f"{name}"': "a*b_c"})]
    cells += [figure, caption, evaluated(caption, {'f"{runs}"': "2,500"})]
    return nbformat.v4.new_notebook(cells=cells)


def evaluated(cell, texts):
    standing_behind = copies.evaluating(copies.expressions(cell))
    standing_behind.outputs = [nbformat.v4.new_output("display_data", {copies.TEXTS: texts})]
    return standing_behind


def test_the_site_shows_texts_for_expressions_and_captions_with_their_figures():
    page = copies.as_page(with_prose(), "page")
    assert [cell.source for cell in page.cells] == [ON_THE_SITE, "plot()"]
    assert page.cells[1].metadata.mystnb.figure == {"name": "fig-page", "caption": "Of 2,500 runs."}


def test_what_a_page_found_stands_beneath_its_title():
    notebook = with_prose()
    notebook.cells.insert(2, nbformat.v4.new_markdown_cell("Before it was found."))
    notebook.cells[3].metadata["tags"] = [copies.HERO]
    page = copies.as_page(notebook, "page")
    assert [cell.source for cell in page.cells] == [ON_THE_SITE, "plot()", "Before it was found."]
    assert page.cells[1].metadata.mystnb.figure.caption == "Of 2,500 runs."


def test_an_expression_that_was_not_evaluated_is_refused():
    for found, missing in ((1, "found"), (4, "runs")):
        notebook = with_prose()
        notebook.cells[found].outputs = []
        with pytest.raises(copies.NotReady, match=rf"page: .eval.`.*{missing}.*` has no executed value"):
            copies.as_page(notebook, "page")
        del notebook.cells[found]
        with pytest.raises(copies.NotReady, match=rf"page: .eval.`.*{missing}.*` has no executed value"):
            copies.as_page(notebook, "page")


def test_a_caption_needs_a_figure_above_it():
    without, twice = with_prose(), with_prose()
    del without.cells[2].metadata["mystnb"]
    twice.cells += deepcopy(twice.cells[3:])
    for notebook in (without, twice):
        with pytest.raises(copies.NotReady, match="page: this caption has no figure of its own above it: 'Of 2,500"):
            copies.as_page(notebook, "page")


def test_the_cells_that_evaluate_do_not_count_as_a_change():
    notebook = executed()
    notebook.cells.insert(1, copies.evaluating(["f''"]))
    notebook.cells[1].execution_count = 1
    copies.check(notebook, source(), "page")


def test_the_table_is_found_for_the_terminal(tmp_path):
    nbformat.write(executed(), tmp_path / "page.ipynb")
    assert run.tagged_text(tmp_path / "page.ipynb", "table") == "3"


def test_notebooks_that_are_not_there_are_named(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["run.py", "nothing"])
    with pytest.raises(SystemExit, match="there is no notebook 'nothing' in notebooks/"):
        run.main()


def pages_of(root):
    """The pages and notebooks that there are, and those that the contents list or a page includes."""
    there = [*root.glob("book/*.md"), *root.glob("book/api/*.md"), *root.glob("notebooks/*.ipynb")]
    sections = [f"notebooks/{name}" for name in joining.included(root)]
    listed = [*look.listed(root / "book/_toc.yml"), *sections]
    return sorted(path.relative_to(root).with_suffix("").as_posix() for path in there), sorted(listed)


def test_every_page_and_notebook_is_in_the_contents():
    there, listed = pages_of(ROOT)
    assert there == listed


@pytest.mark.filterwarnings("default")
def test_a_new_notebook_needs_itself_and_a_line_in_the_contents(tmp_path, monkeypatch, capsys):
    for folder in ("book", "notebooks"):
        copy = shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints")
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=copy)
    notebook = nbformat.v4.new_notebook(cells=source().cells)
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, tmp_path / "notebooks/thrown_away.ipynb")
    toc = tmp_path / "book/_toc.yml"
    toc.write_text(toc.read_text().replace("chapters:", "chapters:\n      - file: notebooks/thrown_away", 1))
    there, listed = pages_of(tmp_path)
    assert there == listed

    monkeypatch.setattr(run, "ROOT", tmp_path)
    monkeypatch.setattr(build, "ROOT", tmp_path)
    for module in (run, build):
        monkeypatch.setattr(module, "SOURCES", tmp_path / "notebooks")
        monkeypatch.setattr(module, "EXECUTED", tmp_path / "_build/executed")
    monkeypatch.setattr(build, "STAGED", tmp_path / "_build/src")
    for preset in run.ALL_NOTEBOOKS:
        changes = presets.sections(tmp_path / "notebooks", preset)
        assert "thrown_away" in run.notebooks(preset, changes)
        assert run.parameters("thrown_away", changes, "auto", None) == {}
    monkeypatch.setattr(sys, "argv", ["run.py", "thrown_away", "--show"])
    assert run.main() == 0
    assert re.search(r"\n3\n\n(.|\n)*thrown_away +ran ", capsys.readouterr().out)
    for path in tmp_path.glob("notebooks/*.ipynb"):  # the others were not executed here
        if path.stem != "thrown_away":
            path.unlink()
    for made in (claims, joining):
        monkeypatch.setattr(made, "stage", lambda *staged: None)
    build.stage()
    assert (tmp_path / "_build/src/notebooks/thrown_away.ipynb").exists()


PAGE = """<html><head>
  <script src="../_static/vendor/fontawesome/6.5.2/js/all.min.js?digest=d"></script>
  <link rel="preload" as="font" type="font/woff2" href="../fa-solid-900.woff2" />
<link rel="preload" as="font" type="font/woff2" href="../fa-brands-400.woff2" />
    <script>DOCUMENTATION_OPTIONS.pagename = 'page';</script>
</head><body><pre><span class="kn">import</span><span class="w"> </span><span class="nn">dpsub</span></pre></body>"""
SLIM = """<html><head>
  <link rel="preload" as="font" type="font/woff2" href="../fa-solid-900.woff2" />
    <script>DOCUMENTATION_OPTIONS.pagename = 'page';</script>
</head><body><pre><span class="kn">import</span> dpsub</pre></body>"""


def test_a_site_is_slimmed_once_and_for_all(tmp_path):
    kept = {
        "_static/scripts/theme.js": "a",
        "_static/styles/theme.css": "b { }",
        "_sources/notebooks/page.ipynb": nbformat.writes(source()) + "\n",
        "notebooks/page.html": SLIM,
    }
    unused = [
        "_static/vendor/fontawesome/6.5.2/js/all.min.js",
        "_static/vendor/fontawesome/6.5.2/webfonts/fa-solid-900.ttf",
        "_static/styles/theme.css.map",
        "_static/locales/de/x.mo",
    ]
    written = {"_sources/notebooks/page.ipynb": nbformat.writes(executed()), "notebooks/page.html": PAGE}
    for name, text in (kept | dict.fromkeys(unused, "a") | written).items():
        (tmp_path / "site" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "site" / name).write_text(text)
    glues = source()
    glues.cells.append(nbformat.v4.new_code_cell("from own_code.glue import glue\n\nglue('a', 1)"))
    nbformat.write(glues, tmp_path / "page.ipynb")
    for _ in range(2):
        slim.slim(tmp_path / "site", tmp_path)
        left = {path for path in (tmp_path / "site").rglob("*.*") if path.is_file()}
        assert {path.relative_to(tmp_path / "site").as_posix(): path.read_text() for path in left} == kept


RULES = {
    ".a,.z{x:1}": ".a{x:1}",
    ".a .z{x:1}b{x:1}": "b{x:1}",
    "@media print{.z{x:1}}@media screen{.a{x:1}.z{x:1}}": "@media screen{.a{x:1}}",
    "@font-face{x:url(a.woff2)}.z{x:1}": "@font-face{x:url(a.woff2)}",
    "a:not(.z,.y){x:1}": "a:not(.z,.y){x:1}",
    "/*! license .z */.z{x:1}/* said */.a{x:1.5}": "/*! license .z */.a{x:1.5}",
    ".made-auto{x:1}.made{x:1}": ".made-auto{x:1}",
    "@keyframes k{0%{x:1}100%{x:2}}": "@keyframes k{0%{x:1}100%{x:2}}",
    ".z-1\\/2{x:1}": ".z-1\\/2{x:1}",
}


@pytest.mark.parametrize("style", RULES)
def test_rules_of_classes_that_no_page_has_are_left_out(style):
    assert slim.used_rules(style, {"a", "made-"}) == RULES[style]


def test_fonts_hold_what_is_shown_of_them(tmp_path):
    slim.write_font(slim.mathematical(), {*map(ord, "xy"), slim.PRIME, slim.ROOT}, tmp_path / "small.woff2")
    assert (tmp_path / "small.woff2").stat().st_size < 20_000
    font = TTFont(tmp_path / "small.woff2")
    assert font.getBestCmap().keys() == {*map(ord, "xy"), slim.PRIME, slim.ROOT}
    assert "MATH" in font
    prime = font["glyf"][font.getBestCmap()[slim.PRIME]]
    assert prime.yMax > font["OS/2"].sxHeight
    assert prime.yMin < 100  # on the line, since formulas raise it


def places(path):
    """Where the lines and curves of a path begin and end."""
    pen = RecordingPen()
    parse_path(path, pen)
    return np.array([points[-1] for _, points in pen.value if points])


def test_figures_but_the_first_load_when_they_come_into_view(tmp_path):
    (tmp_path / "_images").mkdir()
    (tmp_path / "_images/a.svg").write_text('<svg version="1.1" viewBox="0 0 300 150.4">')
    image = '<img alt="A" src="_images/a.svg"/>'
    page = slim.with_figures_later(image * 3 + '<img src="b.png"/>', tmp_path)
    later = '<img loading="lazy" width="400" height="201" alt="A" src="_images/a.svg"/>'
    assert page == f'{image}{later}{later}<img src="b.png"/>'
    assert slim.with_figures_later(page, tmp_path) == page
    assert slim.with_figures_later("", tmp_path) == ""


def test_a_figure_is_shorter_and_its_lines_end_where_they_did(tmp_path):
    rng = np.random.default_rng(0)
    fig, ax = plt.subplots()
    ax.plot(rng.normal(size=300).cumsum(), label="a walk")
    ax.plot(rng.normal(size=20), "o--")
    ax.fill_between(range(5), range(5), 1, hatch="//")
    ax.legend()
    (tmp_path / "_images").mkdir()
    figure = tmp_path / "_images/figure.svg"
    fig.savefig(figure)
    plt.close(fig)
    before = figure.read_text()
    slim.slim(tmp_path, tmp_path)
    after = figure.read_text()
    assert len(after) < 0.65 * len(before)
    assert after.count("#fff") == before.count("#ffffff") - 2  # the grounds of the figure and of its axes
    lines = [re.findall(r'<path[^>]* d="([^"]*)"', svg) for svg in (before, after)]
    long, short = (np.concatenate([places(path) for path in paths]) for paths in lines)
    assert KDTree(long).query(short)[0].max() < 0.05  # points, 1/72 inch; places between two on one line may go
    np.testing.assert_allclose([short.min(0), short.max(0)], [long.min(0), long.max(0)], atol=0.05)
    named = set(re.findall(r' id="([^"]+)"', after))
    referred = {one or other for one, other in re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', after)}
    assert named <= referred
    for name in referred - named:  # a blank is drawn by nothing
        assert re.search(rf'<path id="{name}" transform="[^"]*"/>', before)
