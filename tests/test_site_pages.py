"""What the opening page takes from other files, its picture, and the numbers of exercises."""

import re
from types import SimpleNamespace

import pytest
import site_pages
import yaml
from browsing import ROOT
from matplotlib.figure import Figure
from pybtex.database import parse_string

import dpsub


def test_the_citation_is_that_of_the_citation_file():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    written = re.search(r"```bibtex\n(.*?)```", (ROOT / "book/intro.md").read_text(), re.DOTALL)[1]
    entry = parse_string(written, "bibtex").entries["dpsub"]
    assert entry.fields["title"] == "{" + cited["title"] + "}"
    assert [str(person) for person in entry.persons["author"]] == ["{" + cited["authors"][0]["name"] + "}"]
    assert entry.fields["version"] == cited["version"] == dpsub.__version__


@pytest.mark.parametrize("url", ["", "https://github.com/someone/dpsub"])
def test_the_opening_page_shows_what_the_example_prints_and_where_the_code_is(monkeypatch, url):
    monkeypatch.setattr(site_pages.subprocess, "run", lambda *_, **__: SimpleNamespace(stdout="ε = 4\n"))
    monkeypatch.setenv("REPOSITORY_URL", url)
    config = SimpleNamespace(myst_substitutions={})
    site_pages.fill_in(None, config)
    assert config.myst_substitutions["example"].startswith("```python\nimport dpsub")
    assert "```text\nε = 4\n```" in config.myst_substitutions["example"]
    assert (url or "the repository") in config.myst_substitutions["repository"]


def test_exercises_are_counted_on_each_page():
    fignumbers = {"a": {"exercise": {"x": (10,), "y": (9,)}, "figure": {"f": (3,)}}, "b": {"exercise": {"z": (11,)}}}
    site_pages.number_exercises(None, SimpleNamespace(toc_fignumbers=fignumbers))
    assert fignumbers["a"] == {"exercise": {"y": (1,), "x": (2,)}, "figure": {"f": (3,)}}
    assert fignumbers["b"] == {"exercise": {"z": (1,)}}


def test_the_bars_are_as_long_as_the_numbers():
    ax = Figure(figsize=(4, 3)).add_axes((0, 0, 1, 1))
    site_pages.draw_claim(ax, 4.4, 10.0, 8.7)
    assert [bar.get_x() + bar.get_width() for bar in ax.patches] == pytest.approx([4.4, 4.4, 8.7, 10.0])
    assert {"ε = 4.40", "attack: ε ≥ 8.70", "ε = 10.00"} <= {text.get_text() for text in ax.texts}
