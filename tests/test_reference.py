"""The reference pages: dpsub's public names, the gallery, the glossary, the bibliography, the installation."""

import inspect
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import api
import docstrings
import gallery
import nbformat
import pytest
import reference
import signatures
import used_in
import yaml
from docutils.nodes import make_id
from fuzz import faces
from public_names import PAGES, Name, by_text, documented, home, names, of_place, text_of
from pybtex.database import parse_file

import dpsub

ROOT = Path(__file__).parent.parent
SITE = ROOT / "_build" / "html"
GLOSSARY = (ROOT / "book/glossary.md").read_text()


@pytest.fixture(scope="module")
def staged(tmp_path_factory):
    """The staged pages on dpsub's names."""
    folder = tmp_path_factory.mktemp("staged")
    (folder / "book").mkdir()
    (folder / "book" / "api.md").write_text((ROOT / "book/api.md").read_text())
    api.stage(folder)
    return {
        "dpsub": folder / "book/api.md",
        **{room: folder / f"book/api/{room}.md" for room in PAGES if room != "dpsub"},
    }


def test_every_public_name_is_described_once_under_an_anchor_of_its_own(staged):
    labels = [
        label for page in staged.values() for label in re.findall(r"^\((api-\S+)\)=$", page.read_text(), re.MULTILINE)
    ]
    lowered = [label.lower() for label in labels]
    assert len(set(lowered)) == len(lowered)
    assert {one.anchor for one in names()} <= set(labels)
    assert by_text()["estimators.epsilon_lower_bound"].anchor == "api-estimators-epsilon_lower_bound"


def test_no_face_is_forgotten():
    covered = {one.value for one in names() if documented(one.value)}
    for name in faces.public():
        of_a_class = name.split(".")[-2][0].isupper()
        assert of_a_class or faces.found(name) in covered, name
    for name in dpsub.__all__:
        assert any(one.place == "dpsub" and one.name == name for one in names())


def test_every_public_name_says_what_it_is():
    for one in names():
        assert text_of(one).strip(), one.full


def test_every_method_says_what_it_does(staged):
    for room, page in staged.items():
        for label, said in re.findall(
            r"^\((api-\S+)\)=\n+```python\n.*?\n```\n\n(.*?)$", page.read_text(), re.S | re.M
        ):
            assert re.match(r"(?!\(api-|\*\*File)\S", said), (room, label)


def test_links_between_descriptions_lead_somewhere(staged):
    text = "\n".join(page.read_text() for page in staged.values())
    labels = set(re.findall(r"^\((api-\S+)\)=$", text, re.MULTILINE))
    targets = set(re.findall(r"\]\(#([^)]+)\)", text))
    assert len(targets) > 100
    assert targets <= labels
    for page in re.findall(r"\{doc\}`/notebooks/(\w+)`", text):
        assert (ROOT / f"notebooks/{page}.ipynb").exists(), page


def test_a_signature_has_types_and_defaults_as_the_source_has_them():
    shown = signatures.signature("accounting.epsilon", dpsub.accounting.epsilon)
    assert shown.startswith("accounting.epsilon(\n    *,\n    noise_multiplier: float | None = None,\n")
    assert shown.endswith("    eps_error: float = 0.001,\n) -> float | Array")
    assert 'optimizer: str = "sgd"' in signatures.signature("dpsub.DPSGD", dpsub.DPSGD)
    assert signatures.signature("m.Model", dpsub.models.Model) == "class m.Model(Protocol)"
    assert " at 0x" not in signatures.signature("audits.sweep", dpsub.audits.sweep)


def test_signatures_have_the_parameters_of_the_functions():
    for one in names():
        if inspect.isfunction(one.value):
            shown = [name.strip("*") for name, _, _ in signatures.taken(one.value) if name != "*"]
            assert shown == list(inspect.signature(one.value).parameters), one.full


DOCSTRING = """One line with `CanaryPair` and "gdp".

It is :math:`x^2`, so that a < b [sic].

.. math:: a
    = b

Args:
    runs: R ≥ 1; models
        of both worlds.

        - "one": `steps`.
    steps, seed: more.

Raises:
    ValueError: if runs < 1.

Source: *A paper*, section 1.

>>> 1 + 1
2
"""
ON_THE_SITE = """One line with LINK(CanaryPair) and `"gdp"`.

It is $x^2$, so that a \\< b \\[sic\\].

$$
a = b
$$

**Arguments**

`runs` (`int`)
: R ≥ 1; models
  of both worlds.

  - `"one"`: LINK(steps).

`steps`, `seed`
: more.

**Raises**

`ValueError` (`int`)
: if runs \\< 1.

**Source**: *A paper*, section 1.

```pycon
>>> 1 + 1
2
```"""


def test_a_docstring_becomes_markdown():
    text = inspect.cleandoc(DOCSTRING)
    assert docstrings.markdown(text, lambda code: f"LINK({code})", lambda name: " (`int`)") == ON_THE_SITE


def test_no_docstring_keeps_the_markup_of_another_language(staged):
    for page in staged.values():
        outside = re.sub(r"```.*?```|`[^`\n]+`|\$\$.*?\$\$|\$[^$\n]+\$", "", page.read_text(), flags=re.DOTALL)
        assert not re.search(r":math:|\.\. math::|^ *(Args|Returns|Raises|Source):|>>>", outside, re.MULTILINE), (
            page.name
        )
        assert "\0" not in outside


def test_names_know_the_notebooks_that_use_them(tmp_path):
    cells = ["%matplotlib inline\nfrom dpsub import accounting as acc", "acc.epsilon(steps=1)\nother.delta()"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbformat.write(notebook, tmp_path / "page.ipynb")
    assert used_in.used(tmp_path / "page.ipynb") == {id(dpsub.accounting.epsilon), id(dpsub.accounting)}
    assert used_in.pages()[id(dpsub.audit)][0] == "quickstart"


def test_a_name_is_described_in_its_room_and_named_where_it_is_exported_again(staged):
    again = Name("dpsub", "audit", dpsub.audit)
    assert home(again).full == "dpsub.audits.audit"
    assert "Described at [`dpsub.audits.audit`](#api-audits-audit)." in staged["dpsub"].read_text()
    assert not [
        one for one in of_place("dpsub") if isinstance(one.value, ModuleType) and not one.anchor.startswith("api-")
    ]


def test_sources_are_links_where_there_is_a_repository(monkeypatch):
    assert api.file_of(dpsub.DPSGD) == "**File**: `dpsub/_core/dpsgd.py`"
    monkeypatch.setenv("REPOSITORY_URL", "https://github.com/a/b")
    api.published.cache_clear()
    try:
        assert re.search(r"\(https://github\.com/a/b/blob/main/dpsub/_core/dpsgd\.py#L\d+\)", api.file_of(dpsub.DPSGD))
    finally:
        api.published.cache_clear()


def test_names_in_prose_lead_to_their_descriptions_and_nothing_else_changes():
    text = (
        "`dpsub.audit`, `steps`, [see `dpsub.audit`](x), {doc}`dpsub.audit`\n# `dpsub.audit`\n```\n`dpsub.audit`\n```"
    )
    linked = reference.linked_names(text)
    assert linked == "[`dpsub.audit`](#api-audits-audit)" + text.removeprefix("`dpsub.audit`")


def test_the_table_of_contents_has_the_page_of_every_room():
    rooms = [file.removeprefix("book/api/") for file in in_toc() if file.startswith("book/api/")]
    assert rooms == [room for room in PAGES if room != "dpsub"]
    text = (ROOT / "book/api.md").read_text()
    assert re.findall(r"\{doc\}`\w+ <api/(\w+)>`", text) == [room for room in PAGES if room != "dpsub"]


# What the papers have, listed from their pages.
ITEMS = {
    "pradhan2026beyond": {
        *(f"Figure {n}" for n in (1, 2, 3, 4, 5, "A1", "A2", "A3", "A4", "A5", "A6")),
        *("Table 1", "Table A1"),
        *(f"Algorithm {n}" for n in range(1, 6)),
    },
    "nasr2023tight": {
        *(f"Figure {n}" for n in range(1, 20)), "Table 1", *(f"Algorithm {n}" for n in range(1, 5)),
    },
    "yoon2024adversarial": {*(f"Figure {n}" for n in range(1, 9)), "Table 1", "Algorithm 1", "Algorithm 2"},
}  # fmt: skip


def test_the_gallery_has_every_figure_table_and_algorithm_of_the_papers():
    listed = {paper["paper"]: [item["item"] for item in paper["items"]] for paper in gallery.papers()}
    assert {paper: set(items) for paper, items in listed.items()} == ITEMS
    assert all(len(set(items)) == len(items) for items in listed.values())


@pytest.mark.parametrize("paper", gallery.papers(), ids=lambda paper: paper["paper"])
def test_the_gallerys_figures_pages_and_names_exist(paper):
    pages = {*in_toc(), "book/gallery"}
    for item in [*paper["items"], {"page": paper["claims"], "verdict": "holds", "claim": ".", "item": ""}]:
        assert set(item) <= {"item", "claim", "found", "verdict", "figure", "notebook", "page", "code"}, item
        assert item["verdict"] in gallery.VERDICTS
        assert gallery.page_of(item) in pages
        assert item["claim"].endswith((".", ")"))
        assert ("figure" in item) == ("notebook" in item)
        if "figure" in item:
            assert item["figure"] in figures_of(item["notebook"])
        for name in item.get("code", ()):
            assert name in by_text()


def in_toc():
    toc = yaml.safe_load((ROOT / "book/_toc.yml").read_text())
    return [chapter["file"] for part in toc["parts"] for chapter in part["chapters"]]


def figures_of(notebook):
    cells = nbformat.read(ROOT / f"notebooks/{notebook}.ipynb", as_version=4).cells
    return [cell.metadata.mystnb.figure.name for cell in cells if "figure" in cell.metadata.get("mystnb", {})]


def test_the_gallery_shows_the_files_that_the_site_keeps(tmp_path):
    drawn = '<svg viewBox="0 0 480.5 200">\n</svg>'
    figure = {"figure": {"name": "fig-a", "caption": "A."}, "image": {"alt": 'An "a" < b.'}}
    cell = nbformat.v4.new_code_cell("plot()", metadata={"mystnb": figure})
    cell.outputs = [nbformat.v4.new_output("display_data", {"image/svg+xml": drawn})]
    (tmp_path / "notebooks").mkdir()
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), tmp_path / "notebooks/page.ipynb")
    shown = gallery.picture({"figure": "fig-a", "notebook": "page"}, tmp_path)
    assert 'alt="An &quot;a&quot; &lt; b." width="480" height="200" loading="lazy"' in shown
    assert 'href="../notebooks/page.html#fig-a"' in shown
    with pytest.raises(ValueError, match=r"page.ipynb draws, got 'fig-b' for Figure 1: it draws fig-a"):
        gallery.picture({"item": "Figure 1", "figure": "fig-b", "notebook": "page"}, tmp_path)


def test_terms_are_defined_once_in_order_and_linked():
    listed = GLOSSARY.split(":::{glossary}\n")[1].removesuffix(":::\n")
    entries = [entry.split("\n  ", 1) for entry in listed.strip().split("\n\n")]
    defined = [term for terms, _ in entries for term in terms.split("\n")]
    assert len(set(defined)) == len(defined) == len(reference.terms())
    firsts = [terms.split("\n")[0].removeprefix("the ").lower() for terms, _ in entries]
    assert firsts == sorted(firsts)
    for term, page in zip(defined, [re.findall(r"\{doc\}`/([\w/]+)`", text) for _, text in entries], strict=False):
        assert page, f"{term} does not say which page introduces it"
    for target in re.findall(r"\{term\}`(?:[^`<]*<)?([^`<>]+)>?`", GLOSSARY):
        assert target in defined, target


def test_pages_name_only_terms_that_the_glossary_has():
    for page in ROOT.glob("book/*.md"):
        for target in re.findall(r"\{term\}`(?:[^`<]*<)?([^`<>]+)>?`", page.read_text()):
            assert reference.slug(target) in reference.terms(), (page.name, target)


def test_links_to_terms_from_notebooks_are_the_sites_own():
    known = {"false-positive-rate": "false-positive rate"}
    link = "[false-positive\nrates](../book/glossary.md#term-{})"
    linked = reference.linked_terms(link.format("false-positive-rate"), known)
    assert linked == "{term}`false-positive rates <false-positive rate>`"
    with pytest.raises(ValueError, match="the glossary has no term 'no-such'; it has false-positive-rate"):
        reference.linked_terms(link.format("no-such"), known)


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


CITING = """Title
=====

Said by [A]_ and [B]_.

.. [A] A work.
.. [B] Another work.
"""


def test_the_list_of_works_has_list_items(tmp_path):
    (tmp_path / "conf.py").write_text(
        f"import sys\nsys.path.insert(0, {str(ROOT / 'book')!r})\nextensions = ['citation_roles']\n"
    )
    (tmp_path / "index.rst").write_text(CITING)
    command = [sys.executable, "-m", "sphinx", "-q", "-b", "html", str(tmp_path), str(tmp_path / "html")]
    subprocess.run(command, check=True)
    html = (tmp_path / "html" / "index.html").read_text()
    assert 'role="list"' in html
    assert html.count('role="listitem"') == 2
    assert "doc-biblioentry" not in html


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
@pytest.mark.skipif(not (SITE / "book/gallery.html").exists(), reason="the book is not built: make book")
def test_the_built_gallery_shows_figures_that_are_there_and_leads_to_them():
    html = (SITE / "book/gallery.html").read_text()
    shown = re.findall(r'<a class="dpsub-thumbnail" href="\.\./([^"#]+)#([^"]+)"><img src="\.\./([^"]+)"', html)
    assert len(shown) == sum("figure" in item for paper in gallery.papers() for item in paper["items"])
    for page, figure, image in shown:
        assert (SITE / image).exists(), (page, figure)
        assert f'id="{figure}"' in (SITE / page).read_text(), (page, figure)


@pytest.mark.book
@pytest.mark.skipif(not (SITE / "book/api.html").exists(), reason="the book is not built: make book")
def test_the_built_descriptions_have_their_anchors():
    pages = {
        room: (SITE / ("book/api.html" if room == "dpsub" else f"book/api/{room}.html")).read_text() for room in PAGES
    }
    for one in names():
        page = next(room for room, places in PAGES.items() if one.place in places)
        if not isinstance(one.value, ModuleType):
            assert f'id="{make_id(one.anchor)}"' in pages[page], one.full
