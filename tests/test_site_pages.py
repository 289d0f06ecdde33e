"""What the opening page takes from other files, the logo, the pictures, each page's description, and lists of works."""

from pathlib import Path
from types import SimpleNamespace

import joining
import look
import nbformat
import pictures
import pytest
import site_pages
import yaml
from docutils import nodes
from matplotlib.image import imread
from pybtex.database import parse_string

import dpsub

ROOT = Path(__file__).parent.parent
FOUND = pictures.Numbers(add_remove=4.4, substitute=10.0, audited=8.7, runs=2500)


def test_the_logo_that_is_kept_is_the_one_that_is_drawn():
    assert {path.name: path.read_text() for path in (ROOT / "book" / "_static").glob("*.svg")} == pictures.logos()


def test_the_citation_is_that_of_the_citation_file():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    entry = parse_string(site_pages.bibtex("2026", "https://example.org/dpsub"), "bibtex").entries["dpsub"]
    assert entry.type == "software"
    assert entry.fields["title"] == "{" + cited["title"] + "}"
    assert [str(person) for person in entry.persons["author"]] == ["{" + cited["authors"][0]["name"] + "}"]
    assert entry.fields["version"] == cited["version"] == dpsub.__version__ == site_pages.version()
    assert entry.fields["year"] == "2026"
    assert entry.fields["url"] == "https://example.org/dpsub"
    assert "url" not in parse_string(site_pages.bibtex("2026", ""), "bibtex").entries["dpsub"].fields


def test_people_are_cited_by_both_names():
    assert site_pages.author_of({"family-names": "Curie", "given-names": "Marie"}) == "Curie, Marie"


def test_installing_names_the_address_only_where_there_is_one():
    assert "make quickstart" in site_pages.installing("")
    assert "://" not in site_pages.installing("")
    text = site_pages.installing("https://example.org/someone/dpsub")
    assert "git clone https://example.org/someone/dpsub\ncd dpsub\n" in text
    assert "pip install git+https://example.org/someone/dpsub`" in text


def test_the_opening_page_knows_the_address_that_the_site_is_built_with(monkeypatch):
    monkeypatch.setattr(site_pages, "printed", lambda code: "")
    for url in ("", "https://github.com/someone/dpsub"):
        monkeypatch.setenv("REPOSITORY_URL", url)
        config = SimpleNamespace(myst_substitutions={}, copyright="2026")
        site_pages.fill_in(None, config)
        for place in ("install", "bibtex", "source"):
            assert (url in config.myst_substitutions[place]) if url else ("://" not in config.myst_substitutions[place])


def test_the_example_is_run_and_what_it_raises_is_told():
    assert site_pages.printed("print(6 * 7)") == "42"
    with pytest.raises(RuntimeError, match=r"(?s)first example fails.*ZeroDivisionError"):
        site_pages.printed("1 / 0")
    assert site_pages.example().startswith("import dpsub")


def page(*paragraphs):
    """A page with a title, a note, and paragraphs."""
    section = nodes.section("", nodes.title("", "Title"), nodes.note("", nodes.paragraph("", "A note.")))
    section += [nodes.paragraph("", text) for text in paragraphs]
    document = nodes.document(SimpleNamespace(), SimpleNamespace())
    document += section
    return document


def test_a_page_is_described_by_its_first_sentences():
    short = "It counts to 3. Slowly."
    long = "Then comes a sentence that says a good deal more than what is left of a description's place."
    assert site_pages.description(page(f"It  counts\nto 3. Slowly. {long}", "More."), {}) == f"{short} {long}"
    assert site_pages.description(page(f"{short} {long} {long}"), {}) == f"{short} {long}"
    assert site_pages.description(page("The ε is 4.38 here."), {"description": "Another."}) == "Another."
    assert site_pages.description(page("word " * 100), {}).endswith("word …")
    assert len(site_pages.description(page("word " * 100), {})) <= site_pages.LONGEST + 2
    assert site_pages.description(page(), {}) == site_pages.description(None, {}) == ""


def test_exercises_are_counted_on_each_page():
    fignumbers = {"a": {"exercise": {"x": (10,), "y": (9,)}, "figure": {"f": (3,)}}, "b": {"exercise": {"z": (11,)}}}
    site_pages.number_exercises(None, SimpleNamespace(toc_fignumbers=fignumbers))
    assert fignumbers["a"] == {"exercise": {"y": (1,), "x": (2,)}, "figure": {"f": (3,)}}
    assert fignumbers["b"] == {"exercise": {"z": (1,)}}


def test_old_addresses_lead_to_pages_that_there_are(tmp_path):
    listed = look.listed(ROOT / "book/_toc.yml")
    sections = {f"notebooks/{name}": page for name, page in joining.included(ROOT).items()}
    assert set(site_pages.MOVED.values()) <= {*listed, *sections}
    assert set(sections.values()) <= set(listed)
    assert not {*site_pages.MOVED, *sections} & set(listed)

    builder = SimpleNamespace(format="html", get_relative_uri=lambda old, new: f"../{new}.html")
    for folder in ("book", "notebooks"):
        (tmp_path / folder).mkdir()
    site_pages.redirect(SimpleNamespace(builder=builder, outdir=tmp_path), None)
    for old, new in [*site_pages.MOVED.items(), *((section, section) for section in sections)]:
        place = f"{sections[new]}.html#{joining.section_id(new[10:])}" if new in sections else f"{new}.html"
        assert f'url=../{place}"' in (tmp_path / f"{old}.html").read_text()
    assert look.pages(tmp_path) == []


def test_the_pictures_numbers_are_those_that_the_quickstart_glued(tmp_path):
    def glued(name, value):
        return nbformat.v4.new_output(
            "display_data", {pictures.RECORD: repr(value)}, metadata={"scrapbook": {"name": name}}
        )

    values = {"add_remove": 4.4, "substitute": 10.0, "audited": 8.7, "runs": 2500, "group": 11.0}
    cell = nbformat.v4.new_code_cell("glue", outputs=[glued(*item) for item in values.items()])
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), tmp_path / "quickstart.ipynb")
    assert pictures.numbers(tmp_path / "quickstart.ipynb") == FOUND


def test_the_bars_are_as_long_as_the_numbers():
    ax = pictures.figure((4, 3), "none").add_axes((0, 0, 1, 1))
    pictures.draw(ax, FOUND, pictures.LIGHT, 10)
    ends = [bar.get_x() + bar.get_width() for bar in ax.patches]
    assert ends == pytest.approx([FOUND.add_remove, FOUND.add_remove, FOUND.audited, FOUND.substitute])
    assert {"ε = 4.40", "attack: ε ≥ 8.70", "ε = 10.00"} <= {text.get_text() for text in ax.texts}


def test_pictures_are_the_same_each_time_and_the_card_has_its_size(tmp_path):
    for name in ("one.svg", "two.svg"):
        pictures.opening(FOUND, pictures.DARK, tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
    pictures.card(FOUND, tmp_path / "card.png")
    assert imread(tmp_path / "card.png").shape[:2] == (630, 1200)
