"""What holds between the files rather than in one of them."""

import ast
import graphlib
import importlib
import io
import json
import re
import subprocess
import sys
import tokenize
import tomllib
from pathlib import Path

import copies
import nbformat
import numpy as np
import pytest
from pybtex.database import parse_file

import dpsub

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "dpsub"

# What each room may import, beside itself. The statistics wing and the training wing import nothing of each other, but
# for accounting, which holds the parameters of a training.
CORE = {"_core", "_version"}
ROOMS = {
    "_core": {"_version"},
    "accounting": CORE,
    "estimators": CORE | {"accounting"},
    "figures": CORE | {"accounting", "estimators"},
    "opacus": CORE | {"accounting", "estimators"},
    "worst_case": CORE | {"accounting"},
    "__main__": CORE | {"accounting", "estimators"},
    "data": CORE,
    "models": CORE | {"data"},
    "trainers": CORE | {"accounting", "data", "models"},
    "crafters": CORE | {"accounting", "data", "models", "trainers"},
    "audits": CORE | {"accounting", "data", "models", "trainers", "crafters", "estimators"},  # whose bets stop audits
}
# Lines of code, without docstrings, comments and blank lines, that all rooms may have together, and what each has: what
# one takes, another has to give.
ALL_LINES = 12_065
BUDGETS = {
    "_core": 613,
    "accounting": 1_817,
    "estimators": 1_998,
    "figures": 483,
    "opacus": 1_004,
    "data": 600,
    "models": 1_241,
    "trainers": 638,
    "crafters": 1_055,
    "audits": 2_394,
    "__init__": 78,
    "__main__": 87,
    "_version": 1,
    "worst_case": 56,
}
TOP = ("__init__", "__main__", "_version", "worst_case")
BLANK = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
WITHOUT_TORCH = ("_core", "accounting", "estimators", "figures", "worst_case", "__main__")
FILES = sorted(PACKAGE.rglob("*.py"))


def module_of(path):
    """As it is imported: "dpsub.accounting.phases"."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path, *, at_import=False):
    """The modules that a file imports, anywhere in it or only while it is imported itself."""
    tree = ast.parse(path.read_text())
    for node in tree.body if at_import else ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if node.module.startswith("dpsub") and is_module(inner) else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def is_module(name):
    path = ROOT.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def test_every_room_has_its_place_and_is_packaged():
    assert len(FILES) > 60
    there = {path.stem for path in PACKAGE.glob("*.py")} | {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert there == {*ROOMS, "__init__", "__main__", "_version"}
    packaged = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    assert set(packaged) == {module_of(path) for path in PACKAGE.rglob("__init__.py")}
    assert set(BUDGETS) == there


def test_studies_are_found_by_an_editable_install_and_are_in_no_wheel():
    """setuptools puts the checkout on the path if all packages lie in it: then a notebook runs from any folder."""
    how = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert how["package-dir"] == {"": "."}
    assert all(name.split(".")[0] == "dpsub" for name in how["packages"])
    for path in FILES:
        assert not any(name.split(".")[0] in ("book", "studies") for name in imported(path)), path
    for topic in (ROOT / "studies").glob("*/"):
        assert (topic / "__init__.py").exists() or not list(topic.glob("*.py")), topic


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_import_what_they_may(room):
    for path in FILES:
        if path.relative_to(PACKAGE).parts[0].removesuffix(".py") == room:
            used = {name.split(".")[1] for name in imported(path) if name.startswith("dpsub.")}
            assert used <= ROOMS[room] | {room}, path


def test_no_two_files_of_tests_have_one_name():
    """pytest imports them by it."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert len(names) == len({*names})


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*/__init__.py")), ids=lambda path: path.parent.name)
def test_a_rooms_face_only_re_exports_and_no_file_hides_it(path):
    tree = ast.parse(path.read_text())
    kinds = [type(node) for node in tree.body]
    assert kinds[0] is ast.Expr
    assert set(kinds[1:]) <= {ast.ImportFrom, ast.Assign}
    exported = next(ast.literal_eval(node.value) for node in tree.body if isinstance(node, ast.Assign))
    names = [
        alias.asname or alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names
    ]
    assert sorted(exported) == sorted(names)
    room = importlib.import_module(module_of(path))  # no file has the name of a function
    files = {file.stem for file in path.parent.glob("*.py")}
    for name in files & set(room.__all__):
        assert not callable(getattr(room, name)), name


def test_inside_a_room_there_are_no_circles():
    graph = {module_of(path): {n for n in imported(path, at_import=True) if n.startswith("dpsub.")} for path in FILES}
    order = graphlib.TopologicalSorter({
        name: {other for other in others if other in graph and other.count(".") > 1} for name, others in graph.items()
    })  # fmt: skip
    assert list(order.static_order())


def lines_of_code(path):
    """How many lines of a file are neither blank, nor only a comment, nor part of a docstring."""
    source = path.read_text()
    bodies = [body for node in ast.walk(ast.parse(source)) if isinstance(body := getattr(node, "body", None), list)]
    texts = [
        line for body in bodies for line in body
        if isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant) and isinstance(line.value.value, str)
    ]  # fmt: skip
    docstrings = {number for text in texts for number in range(text.lineno, text.end_lineno + 1)}
    tokens = [token for token in tokenize.generate_tokens(io.StringIO(source).readline) if token.type not in BLANK]
    return len({number for token in tokens for number in range(token.start[0], token.end[0] + 1)} - docstrings)


def test_rooms_keep_the_budget_of_all():
    assert sum(BUDGETS.values()) <= ALL_LINES


@pytest.mark.parametrize("room", BUDGETS)
def test_a_room_keeps_its_budget(room):
    files = [PACKAGE / f"{room}.py"] if room in TOP else [*(PACKAGE / room).rglob("*.py")]
    assert sum(map(lines_of_code, files)) <= BUDGETS[room]


def test_statistics_never_name_torch_and_dpsub_is_light():
    code = (
        "import sys, dpsub; heavy = {'torch', 'numpy', 'scipy', 'matplotlib', 'xarray'} & set(sys.modules);"
        "assert not heavy, heavy; import dpsub.estimators;"
        "heavy = {'torch', 'matplotlib', 'xarray', 'pandas', 'dp_accounting', 'prv_accountant'} & set(sys.modules);"
        "assert not heavy, heavy; import dpsub.figures.findings, dpsub.worst_case;"
        "assert not {'torch', 'IPython'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, cwd=ROOT)
    for path in FILES:
        if path.relative_to(PACKAGE).parts[0].removesuffix(".py") in WITHOUT_TORCH:
            assert not [name for name in imported(path) if name.split(".")[0] == "torch"], path


def test_training_knows_models_by_their_interface_alone():
    for room in ("trainers", "crafters", "audits"):
        for path in (PACKAGE / room).glob("*.py"):
            assert not re.search(r"isinstance\([^)]*\b(Linear|Network)\b", path.read_text()), path


def test_git_is_asked_in_one_place():
    asking = [path.name for path in FILES if '"git"' in path.read_text()]
    assert asking == ["provenance.py"]


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
    for path in [*FILES, *ROOT.glob("book/*.py"), *ROOT.glob("notebooks/*.ipynb")]:
        assert not re.search(r"pickle|allow_pickle=True|torch\.(save|load)\(", path.read_text()), path.name


NOTEBOOKS = pytest.mark.parametrize("path", sorted(ROOT.glob("notebooks/*.ipynb")), ids=lambda path: path.stem)
# What JupyterLab shows as it should be, with jupyterlab-myst.
RENDERED = {"eval", "prf:ref", "admonition", "prf:algorithm", "prf:theorem", "exercise", "solution"}
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
def test_notebooks_have_a_title_headings_that_differ_and_expressions_that_are_texts(path):
    first = "".join(json.loads(path.read_text())["cells"][0]["source"])
    assert first.startswith("# ")
    assert first.endswith("\n\n" + copies.READS_BEST)
    headings = re.findall(r"^#+ .+", prose_of(path), re.MULTILINE)
    assert len(set(headings)) == len(headings)
    for expression in copies.EXPRESSION.findall(prose_of(path)):
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
def test_what_a_readers_copy_lacks_is_missed_in_its_first_cell(path):
    cells = nbformat.read(path, as_version=4).cells
    first, *others = [cell for cell in cells if cell.cell_type == "code" and not cell.source.startswith(GLUED)]
    for name in ("book.", "studies."):
        if any(name in cell.source for cell in others):
            assert name in first.source


@NOTEBOOKS
def test_links_from_notebooks_lead_somewhere_and_citations_name_their_works(path):
    prose = prose_of(path)
    for text, target in re.findall(r"\[([^\]]*)\]\(([^)\s]+)\)", prose):
        if re.match(r"https?://|#", target):
            continue
        place, _, key = target.partition("#")
        assert (path.parent / place).resolve().is_file(), target
        if place.endswith("bibliography.md"):
            assert " ".join(text.split()) == as_the_site_cites(WORKS[key])


WORKS = parse_file(ROOT / "book/references.bib").entries


def as_the_site_cites(work):
    names = [" ".join(map(str, person.rich_last_names)) for person in work.persons["author"]]
    authors = " and ".join(names) if len(names) < 3 else f"{names[0]} et al."
    return f"{authors} ({work.fields['year']})"


def test_no_file_names_a_place_outside_the_project():
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    outside = re.compile(r"\.\./(shared)|/(work|root|farm)/")
    for name in tracked:
        if name not in (".ci/run", "tests/test_layout.py") and not name.endswith((".png", ".svg")):
            assert not outside.search((ROOT / name).read_text(errors="ignore")), name


def test_streams_of_one_seed_are_apart():
    from dpsub._core.random_streams import stream

    draws = [stream(5, purpose, block).integers(2**60) for purpose in ("data", "crafter", "audit") for block in (0, 1)]
    draws += [np.random.default_rng(5).integers(2**60), stream(5 + 2**32, "audit", 0).integers(2**60)]
    assert len(set(draws)) == len(draws)
