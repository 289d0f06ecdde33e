"""What holds between the files rather than in one of them."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import build
import inline
import numpy as np
import pytest
from pybtex.database import parse_file

import dpsub

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "dpsub"

# Imports run from later to earlier in a wing, never across the wings.
FOUNDATION = ["_version", "_checks", "_random", "_dataset"]
STATISTICS = [
    "_gaussian", "_pairs", "_tradeoff", "_steps", "_grid", "_pld", "_prv", "_sums", "_training", "_curves",
    "_calibration", "accounting", "_claims", "_beta_tails", "_one_threshold", "_rank_test", "estimators",
    "validity", "worst_case", "game", "findings", "figures", "pictures", "explorer",
    "widgets",
]  # fmt: skip
BETWEEN = {"opacus": {"_checks", "accounting"}}  # what hangs on both wings, and what it uses
TRAINING = [
    "dpsgd", "_tasks", "_files", "_embeddings", "data", "_layers", "_networks", "models", "canaries", "trainers",
    "_devices", "_reference", "crafters", "_plans", "_layout", "_contents", "_stores", "_cluster", "audits",
]  # fmt: skip


def imported(path):
    """Names of dpsub's own modules that a module imports, at any depth."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "dpsub":
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dpsub."):
            yield node.module.split(".")[1]
        elif isinstance(node, ast.Import):
            yield from (a.name.split(".")[1] for a in node.names if a.name.startswith("dpsub."))


def test_every_module_has_its_place():
    modules = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"}
    assert modules == {*FOUNDATION, *STATISTICS, *TRAINING, *BETWEEN}


@pytest.mark.parametrize("wing", [STATISTICS, TRAINING], ids=["statistics", "training"])
def test_imports_run_one_way_and_stay_in_their_wing(wing):
    order = FOUNDATION + wing
    for module in wing:
        earlier = order[: order.index(module)]
        assert set(imported(PACKAGE / f"{module}.py")) <= set(earlier), module


def test_what_lies_between_the_wings_uses_no_more_than_it_says():
    for module, used in BETWEEN.items():
        assert set(imported(PACKAGE / f"{module}.py")) == used


def test_modules_are_small():
    for path in PACKAGE.glob("*.py"):
        assert len(path.read_text().splitlines()) <= 400, path.name


def test_statistics_import_without_torch_and_dpsub_is_light():
    code = (
        "import sys, dpsub; heavy = {'torch', 'numpy', 'scipy', 'matplotlib', 'xarray'} & set(sys.modules);"
        "assert not heavy, heavy; import dpsub.widgets, dpsub.worst_case; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, cwd=ROOT)


def test_top_level_names_are_there():
    for name in dpsub.__all__:
        assert getattr(dpsub, name) is not None
    assert set(dpsub.__all__) == set(dir(dpsub))
    with pytest.raises(AttributeError, match="module 'dpsub' has no attribute 'nothing'"):
        dpsub.nothing  # noqa: B018


def test_versions_agree():
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"version: {dpsub.__version__}\n" in citation
    assert f"## {dpsub.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_no_pickle_is_read_or_written():
    for path in [*PACKAGE.glob("*.py"), *ROOT.glob("book/*.py"), *ROOT.glob("notebooks/*.ipynb")]:
        assert not re.search(r"pickle|allow_pickle=True|torch\.(save|load)\(", path.read_text()), path.name


NOTEBOOKS = pytest.mark.parametrize("path", sorted(ROOT.glob("notebooks/*.ipynb")), ids=lambda path: path.stem)
# What JupyterLab shows as it should be, with jupyterlab-myst.
RENDERED = {"eval", "prf:ref", "admonition", "prf:algorithm", "exercise", "solution"}
GLUED = "# for other pages of the book, and for the tests\n"


def cells_of(path, kind):
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == kind]


def prose_of(path):
    return "\n\n".join("".join(cell["source"]) for cell in cells_of(path, "markdown"))


@NOTEBOOKS
def test_notebook_sources_have_parameters_and_nothing_of_a_run(path):
    cells = cells_of(path, "code")
    assert sum("parameters" in cell["metadata"].get("tags", []) for cell in cells) == 1
    for cell in cells + cells_of(path, "markdown"):
        assert set(cell["metadata"]) <= {"tags", "mystnb", "jupyter"}
    for cell in cells:
        assert cell["outputs"] == []
        assert cell["execution_count"] is None
        assert "def " not in "".join(cell["source"])


@NOTEBOOKS
def test_notebooks_hold_only_markup_that_jupyterlab_renders(path):
    prose = prose_of(path)
    assert {found[1] for found in re.finditer(r"\{([\w:-]+)\}`", prose)} <= RENDERED
    assert {found[1] for found in re.finditer(r"^[:`]{3,}\{([\w:-]+)\}", prose, re.MULTILINE)} <= RENDERED
    assert not re.findall(r"^\([\w-]+\)=", prose, re.MULTILINE)
    for label in re.findall(r"\{prf:ref\}`([^`]+)`", prose):
        assert f":label: {label}\n" in prose, "an algorithm of another notebook needs a link"


@NOTEBOOKS
def test_notebooks_begin_with_their_title_and_say_where_they_read_best(path):
    first = "".join(json.loads(path.read_text())["cells"][0]["source"])
    assert first.startswith("# ")
    assert first.endswith("\n\n" + build.READS_BEST)


@NOTEBOOKS
def test_expressions_in_prose_are_texts(path):
    for expression in inline.EXPRESSION.findall(prose_of(path)):
        assert isinstance(ast.parse(expression, mode="eval").body, ast.JoinedStr), expression


@NOTEBOOKS
def test_every_figure_has_its_name_its_alternative_text_and_its_caption_below(path):
    cells = json.loads(path.read_text())["cells"]
    captions = ["caption" in cell["metadata"].get("tags", []) for cell in cells]
    figures = [cell["metadata"].get("mystnb", {}) for cell in cells]
    assert captions == [False, *("figure" in about for about in figures[:-1])]
    for about in figures:
        if "figure" in about:
            assert set(about["figure"]) == {"name"}
            assert about["image"]["alt"]
            assert "{eval}" not in about["image"]["alt"]


@NOTEBOOKS
def test_notebooks_glue_in_their_last_cell_alone(path):
    glue = ["glue" in "".join(cell["source"]) for cell in json.loads(path.read_text())["cells"]]
    assert not any(glue[:-1])
    if glue[-1]:
        last = json.loads(path.read_text())["cells"][-1]
        assert "".join(last["source"]).startswith(GLUED)
        assert last["metadata"]["tags"] == ["remove-cell"]


@NOTEBOOKS
def test_links_from_notebooks_lead_somewhere_and_citations_name_their_works(path):
    prose, works = prose_of(path), parse_file(ROOT / "book/references.bib").entries
    for text, target in re.findall(r"\[([^\]]*)\]\(([^)\s]+)\)", prose):
        if re.match(r"https?://|#", target):
            continue
        place, _, key = target.partition("#")
        assert (path.parent / place).resolve().is_file(), target
        if place.endswith("bibliography.md"):
            assert " ".join(text.split()) == as_the_site_cites(works[key])


def as_the_site_cites(work):
    names = ["".join(map(str, person.rich_last_names)) for person in work.persons["author"]]
    authors = " and ".join(names) if len(names) < 3 else f"{names[0]} et al."
    return f"{authors} ({work.fields['year']})"


def test_every_notebook_has_parameters_for_every_preset():
    notebooks = {path.stem for path in ROOT.glob("notebooks/*.ipynb")}
    assert notebooks
    for preset in ("quick", "laptop", "paper"):
        assert {path.stem for path in (ROOT / "notebooks/params" / preset).glob("*.yaml")} == notebooks


def test_no_file_names_a_place_outside_the_project():
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    outside = re.compile(r"\.\./(shared)|/(work|root|farm)/")
    for name in tracked:
        if name not in (".ci/run", "tests/test_layout.py") and not name.endswith((".png", ".svg")):
            assert not outside.search((ROOT / name).read_text(errors="ignore")), name


def test_streams_of_one_seed_are_apart():
    from dpsub._random import stream

    draws = [stream(5, purpose, block).integers(2**60) for purpose in ("data", "crafter", "audit") for block in (0, 1)]
    draws += [np.random.default_rng(5).integers(2**60), stream(5 + 2**32, "audit", 0).integers(2**60)]
    assert len(set(draws)) == len(draws)
