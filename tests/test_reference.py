"""The reference pages: dpsub's public names, the papers' figures, the glossary, the bibliography, the installation."""

import inspect
import re
import subprocess
import sys
from collections import Counter
from importlib import import_module
from types import ModuleType

import claims
import nbformat
import pytest
import reference
from browsing import ROOT, SITE, listed
from bs4 import BeautifulSoup
from pybtex.database import parse_file

import dpsub

GLOSSARY = (ROOT / "book/glossary.md").read_text()
API = [ROOT / "book/api.md", *sorted(ROOT.glob("book/api/*.md"))]
BUILT = pytest.mark.skipif(not (SITE / "book/api.html").exists(), reason="the book is not built: make book")


def documented():
    """The public names that the pages describe, by how users import them, and the module of each."""
    found = {}
    for page in API:
        for module, options in re.findall(r"automodule:: (\S+)\n((?:   :.*\n)*)", page.read_text()):
            chosen = re.search(r":members: (.+)", options)
            names = chosen[1].split(", ") if chosen else reference.public_names(import_module(module))
            left_out = re.findall(r":exclude-members: (\S+)", options)
            found |= {f"{module}.{name}": import_module(module) for name in names if name not in left_out}
    return found


def described():
    """The public names, and the types beside them that the pages describe from their files, and the module of each."""
    types = [full for page in API for full in re.findall(r"autoclass:: (\S+)", page.read_text())]
    return documented() | {full: import_module(full.rpartition(".")[0]) for full in types}


def value_of(full):
    module, _, name = full.rpartition(".")
    return getattr(import_module(module), name)


ROOMS = [name for name in dpsub.__all__ if isinstance(getattr(dpsub, name), ModuleType)]


def named(name):
    """What users write so."""
    value = dpsub
    for part in name.removeprefix("dpsub.").split("."):
        value = getattr(value, part, None)
    return value


def test_no_face_is_forgotten():
    covered = {id(value_of(full)) for full in documented()}
    of_rooms = {f"{room}.{name}" for room in ROOMS for name in getattr(dpsub, room).__all__}
    for name in of_rooms | {*dpsub.__all__} - {*ROOMS, "__version__"}:
        assert id(named(name)) in covered, name


def test_a_name_of_the_package_is_that_of_a_room():
    """The package's face repeats what rooms export, so that a name means one thing."""
    in_rooms = {id(value) for room in ROOMS for value in vars(getattr(dpsub, room)).values()}
    own = {"DPSGD", "CanaryPair", "Pairs", "Record", "audit_worst_case", "__version__"}
    assert {name for name in dpsub.__all__ if name not in ROOMS and id(named(name)) not in in_rooms} <= own


def test_the_index_lists_every_public_name_once_by_what_one_wants():
    rows = re.findall(r"^\| (?!To …|---).*?\| (.*) \|$", API[0].read_text(), re.MULTILINE)
    listed = Counter(name for row in rows for name in re.findall(r"`([^`]+)`", row))
    assert not [name for name, times in listed.items() if times > 1]

    def key(full, value):
        return id(value) if inspect.isfunction(value) or inspect.isclass(value) else full.rpartition(".")[2]

    known = {key(full, value_of(full)): full for full in documented()}
    found = {key(name, named(name)): name for name in listed}
    assert {full for it, full in known.items() if it not in found} == set(), "missing in the table of book/api.md"
    assert {name for it, name in found.items() if it not in known} == set(), "no public name"


def test_every_public_name_and_method_says_what_it_is():
    methods = Counter()
    for full, module in described().items():
        value = value_of(full)
        if inspect.isfunction(value) or (inspect.isclass(value) and not hasattr(value, "__origin__")):
            assert inspect.getdoc(value), full
        else:
            assert reference.texts_below_constants(module)[full.rpartition(".")[2]].strip(), full
        if inspect.isclass(value):
            methods.update(name for name, one in vars(value).items() if getattr(one, "__doc__", None))
    for full in described():
        for name, one in vars(value_of(full)).items() if inspect.isclass(value_of(full)) else ():
            if inspect.isfunction(one) and not name.startswith("_"):
                assert methods[name], f"{full}.{name} has no docstring, and implements none"


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("``a(*b)`` and `f(*x, y)` stay", "``a(*b)`` and `f(*x, y)` stay"),
        (
            "records (n, *shape) and *.bin of *A paper*, section 1",
            r"records (n, \*shape) and \*.bin of *A paper*, section 1",
        ),
        (">>> f(*args, 'x')\n\"a\"", ">>> f(*args, 'x')\n\"a\""),
    ],
)
def test_a_star_of_python_is_no_emphasis(written, shown):
    lines = written.splitlines()
    reference.complete(None, "method", "dpsub.x", None, {}, lines)
    assert "\n".join(lines) == shown


CONF = f"""
import sys
import yaml
sys.path[:0] = [{str(ROOT / "book")!r}, {str(ROOT)!r}]
from site_pages import list_works as setup
extensions = ["sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.napoleon", "sphinx_codeautolink",
              "myst_parser", "sphinxcontrib.bibtex", "reference"]
configured = yaml.safe_load(open({str(ROOT / "_config.yml")!r}))["sphinx"]["config"]
kinds = ("auto", "bibtex_cite", "codeautolink", "default_role", "napoleon", "nitpick", "smartquotes")
globals().update({{name: value for name, value in configured.items() if name.startswith(kinds)}})
bibtex_bibfiles = ["works.bib"]
myst_enable_extensions = ["colon_fence"]
"""
PAGES = {
    "index.md": "# Index\n\n```{toctree}\n:glob:\nbook/*\nnotebooks/*\n```",
    "book/api.md": """# API

```{eval-rst}
.. automodule:: dpsub.accounting
   :members:

.. autoclass:: dpsub.accounting.epsilon_delta.EpsilonInterval

.. automodule:: dpsub.estimators
   :members:
```
""",
    "book/glossary.md": "# Glossary\n\n:::{glossary}\nAUC\n  The area.\n:::",
    "book/bibliography.md": "# Works\n\n:::{bibliography}\n:all:\n:::",
    "works.bib": "@book{curie1900, title={A}, author={Curie, Marie}, year={1900}, publisher={P}}",
    "notebooks/page.md": """# A page

`accounting.epsilon`, `dpsub.accounting.gdp_mu`, `EpsilonInterval`, `epsilon`, [`accounting.delta`](https://x.y),
[`accounting.tradeoff`](../book/api.md).
An [area](../book/glossary.md#term-auc) of [Curie (1900)](../book/bibliography.md#curie1900).

```python
from dpsub import accounting as acc
```

Later:

```python
acc.gdp_delta(1, 2)
```
""",
}


@pytest.fixture(scope="module")
def small_site(tmp_path_factory):
    """A site of two rooms and one page that uses one of them, as the book is configured."""
    folder = tmp_path_factory.mktemp("site")
    for name, text in (PAGES | {"conf.py": CONF}).items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "-n", "-b", "html", str(folder), str(folder / "html")]
    subprocess.run(command, check=True)
    return {
        name: BeautifulSoup((folder / f"html/{name}.html").read_text(), "html.parser")
        for name in ("book/api", "book/bibliography", "notebooks/page")
    }


@pytest.mark.book
def test_names_terms_and_works_in_prose_are_links(small_site):
    links = {link.get_text(): link["href"] for link in small_site["notebooks/page"].find(role="main").find_all("a")}
    at = "../book/api.html#dpsub.accounting."
    assert links["accounting.epsilon"] == f"{at}epsilon"
    assert links["dpsub.accounting.gdp_mu"] == f"{at}gdp_mu"
    assert links["EpsilonInterval"] == f"{at}epsilon_delta.EpsilonInterval"
    assert links["accounting.delta"] == "https://x.y"
    assert links["accounting.tradeoff"] == "../book/api.html"
    assert "epsilon" not in links
    assert links["area"] == "../book/glossary.html#term-AUC"
    assert links["Curie (1900)"] == "../book/bibliography.html#curie1900"
    assert links["acc.gdp_delta"] == f"{at}gdp_delta"


@pytest.mark.book
def test_a_description_has_sections_and_the_pages_that_use_it(small_site):
    page = small_site["book/api"]
    (epsilon,) = page.select("dt[id='dpsub.accounting.epsilon']")
    said = epsilon.parent.get_text()
    for part in ("Parameters", "Returns", "Raises", "Source: "):
        assert part in said, part
    assert "Used in: A page" in page.select("dt[id='dpsub.accounting.gdp_delta']")[0].parent.get_text()
    (names,) = page.select("dt[id='dpsub.estimators.CLAIMS']")
    assert reference.texts_below_constants(dpsub.estimators)["CLAIMS"][:20] in names.parent.get_text()
    summaries = page.find("table").get_text()
    assert all(name in summaries for name in dpsub.accounting.__all__)
    assert not re.search(r":math:|\.\. math::|^ *Args:$", page.get_text(), re.MULTILINE)


@pytest.mark.book
def test_the_list_of_works_has_list_items(small_site):
    works = small_site["book/bibliography"]
    assert len(works.select("[role=list] [role=listitem]")) == 1
    assert not works.select("[role=doc-biblioentry]")


@pytest.mark.book
@BUILT
def test_the_built_pages_describe_every_name_and_say_where_it_is_used():
    html = "\n".join((SITE / page.relative_to(ROOT).with_suffix(".html")).read_text() for page in API)
    for full in described():
        assert f'id="{full}"' in html, full
    assert re.search(r"<strong>Used in</strong>.*?quickstart\.html.*?, and \d+ more", html)
    index = BeautifulSoup((SITE / "book/api.html").read_text(), "html.parser").find("table")
    assert [code.get_text() for code in index.find_all("code") if code.find_parent("a") is None] == ["torch.nn.Module"]


ITEMS = {  # what the papers have, listed from their pages
    "pradhan2026beyond": [
        *(f"Figure {n}" for n in (1, 2, 3, 4, 5, "A1", "A2", "A3", "A4", "A5", "A6")),
        *("Table 1", "Table A1"),
        *(f"Algorithm {n}" for n in range(1, 6)),
    ],
    "nasr2023tight": [*(f"Figure {n}" for n in range(1, 20)), "Table 1", *(f"Algorithm {n}" for n in range(1, 5))],
    "yoon2024adversarial": [*(f"Figure {n}" for n in range(1, 9)), "Table 1", "Algorithm 1", "Algorithm 2"],
}


@pytest.mark.parametrize("paper", claims.papers(), ids=lambda paper: paper.key)
def test_the_claims_figures_pages_and_names_exist(paper):
    pages = listed()
    assert {claims.base(item) for item in paper.items} >= set(ITEMS[paper.key])
    assert paper.page in pages
    for item in paper.items:
        claimed = {"claims", "found", "scale"} if "claims" in item else {"states", "code", "differs"}
        assert set(item) <= {"item", "figure", "notebook", "page"} | claimed
        if "claims" in item or item["item"].startswith(("Figure", "Table", "Algorithm")):
            assert claims.page_of(item) in pages
        if "figure" in item:
            assert item["figure"] in figures_of(item["notebook"])
        for name in item.get("code", ()):
            if "/" in name:
                assert (ROOT / name).exists(), name
            else:
                assert inspect.getdoc(named(name))


def figures_of(notebook):
    cells = nbformat.read(ROOT / f"notebooks/{notebook}.ipynb", as_version=4).cells
    return [cell.metadata.mystnb.figure.name for cell in cells if "figure" in cell.metadata.get("mystnb", {})]


def test_claims_show_the_files_that_the_site_keeps(tmp_path):
    figure = {"figure": {"name": "fig-a", "caption": "A."}, "image": {"alt": 'An "a" < b.'}}
    cell = nbformat.v4.new_code_cell("plot()", metadata={"mystnb": figure})
    cell.outputs = [nbformat.v4.new_output("display_data", {"image/svg+xml": "<svg>\n</svg>"})]
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), tmp_path / "page.ipynb")
    shown = claims.Glued(tmp_path).picture("page", "fig-a")
    assert 'alt="An &quot;a&quot; &lt; b."' in shown
    assert 'href="../notebooks/page.html#fig-a"' in shown
    with pytest.raises(ValueError, match=r"page.ipynb draws, got 'fig-b'"):
        claims.Glued(tmp_path).picture("page", "fig-b")


def test_terms_are_defined_once_in_order_and_linked():
    listed = GLOSSARY.split(":::{glossary}\n")[1].removesuffix(":::\n")
    entries = [entry.split("\n  ", 1) for entry in listed.strip().split("\n\n")]
    defined = [term for terms, _ in entries for term in terms.split("\n")]
    assert len(set(defined)) == len(defined)
    firsts = [terms.split("\n")[0].removeprefix("the ").lower() for terms, _ in entries]
    assert firsts == sorted(firsts)
    for term, page in zip(defined, [re.findall(r"\{doc\}`/([\w/]+)`", text) for _, text in entries], strict=False):
        assert page, f"{term} does not say which page introduces it"
    for target in re.findall(r"\{term\}`(?:[^`<]*<)?([^`<>]+)>?`", GLOSSARY):
        assert target in defined, target


def test_works_in_the_bibliography_are_complete():
    works = parse_file(ROOT / "book/references.bib").entries
    for key, work in works.items():
        has = set(work.fields)
        assert {"title", "year"} <= has, key
        assert has & {"doi", "url"} or work.type == "book", key
        assert has & {"booktitle", "journal", "publisher"} or "arXiv:" in work.fields["note"], key
        assert re.fullmatch(r"https://\S+", work.fields.get("url", "https://x"))
        assert re.fullmatch(r"10\.\d{4,}/\S+", work.fields.get("doi", "10.1000/x"))
        if "note" in has:
            assert work.fields["url"].endswith(work.fields["note"].removeprefix("arXiv:"))


def test_the_installation_is_checked_by_what_it_prints(capsys):
    text = (ROOT / "book/install.md").read_text()
    example = re.search(r"```python\n(.*?)```", text, re.DOTALL)[1]
    printed = re.search(r"```text\n(.*?)```", text, re.DOTALL)[1]
    exec(compile(example, "install.md", "exec"), {})
    assert capsys.readouterr().out == printed


def test_the_installation_names_what_there_is():
    import tomllib

    text = (ROOT / "book/install.md").read_text()
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    assert set(re.findall(r"^\| `(\w+)` \| ", text.split("| Extra |")[1].split("\n\n")[0], re.MULTILINE)) == extras
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"make (?:[A-Z]+=\S+ )?([a-z-]+)", text)) - {"use"} <= targets


@pytest.mark.book
@BUILT
@pytest.mark.parametrize("paper", claims.papers(), ids=lambda paper: paper.key)
def test_the_built_claims_show_figures_that_are_there_and_lead_to_them(paper):
    html = (SITE / f"{paper.page}.html").read_text()
    shown = re.findall(r'<a class="dpsub-thumbnail" href="\.\./([^"#]+)#([^"]+)"><img [^>]*src="\.\./([^"]+)"', html)
    assert sorted(name for _, name, _ in shown) == sorted({i["figure"].lower() for i in paper.items if "figure" in i})
    for page, figure, image in shown:
        assert (SITE / image).exists(), (page, figure)
        assert f'id="{figure}"' in (SITE / page).read_text(), (page, figure)
