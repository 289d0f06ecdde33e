"""Several notebooks on one page: sections, links that lead to them, and code that is seen once."""

from copy import deepcopy

import joining
import nbformat
import pytest

TITLE = "# A notebook\n\nThis page counts."
BEFORE = """:::{admonition} Before you start
:class: note
Nothing.
:::"""
LINKS = """See
[it](one.ipynb), {doc}`/notebooks/one` and {doc}`that <../notebooks/one>`: {glue:text}`../notebooks/one.ipynb::n`.

```python
# a comment
```"""


@pytest.fixture
def with_sections(tmp_path):
    """A staged book whose page includes two notebooks, and a notebook that includes a third."""
    code = nbformat.v4.new_code_cell("a = 1\nprint(a)")
    code.outputs = [nbformat.v4.new_output("stream", text="1")]
    for name in ("one", "two", "three"):
        cells = [
            *map(nbformat.v4.new_markdown_cell, [f"{TITLE}\n\n{BEFORE}"] if name == "one" else [TITLE, BEFORE]),
            deepcopy(code),
            nbformat.v4.new_markdown_cell(f"## More\n{LINKS}"),
        ]
        write(tmp_path / f"notebooks/{name}.ipynb", nbformat.writes(nbformat.v4.new_notebook(cells=cells)))
    write(tmp_path / "book/page.md", "# A page\n\n<!-- notebook: one -->\n\n<!-- notebook: two -->\n")
    host = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_markdown_cell(text) for text in ("# A host", "<!-- notebook: three -->", "## The end")]
    )
    write(tmp_path / "notebooks/host.ipynb", nbformat.writes(host))
    return tmp_path


def write(path, text):
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


def test_pages_include_notebooks_as_sections(with_sections):
    where = {"one": "book/page", "two": "book/page", "three": "notebooks/host"}
    assert joining.included(with_sections) == where
    joining.stage(with_sections, {})
    assert not (with_sections / "book/page.md").exists()
    page = nbformat.read(with_sections / "book/page.ipynb", as_version=4)
    texts = [cell.source for cell in page.cells if cell.cell_type == "markdown"]
    assert texts[0] == "# A page"
    assert texts[1].startswith("(one)=\n## A notebook\n\nThis section counts.\n\n**Notebook**: {download}`one.ipynb <")
    assert texts[2].startswith(
        "### More\nSee\n[it](#one), {ref}`one` and {ref}`that <one>`: {glue:text}`../book/page.ipynb::one.n`."
    )
    assert "\n# a comment\n" in texts[2]
    seen, again = (cell for cell in page.cells if cell.cell_type == "code")
    assert not seen.metadata.get("tags")
    assert again.metadata.tags == ["hide-input"]
    host = nbformat.read(with_sections / "notebooks/host.ipynb", as_version=4)
    assert [cell.source.split("\n")[0] for cell in host.cells] == [
        "# A host",
        "(three)=",
        "a = 1",
        "### More",
        "## The end",
    ]
    assert "[it](#one)" in host.cells[3].source


@pytest.mark.parametrize("mark", ["notebook: four", "figure: fig-a"])
def test_what_a_page_asks_for_must_be_there(with_sections, mark):
    write(with_sections / "book/page.md", f"# A page\n\n<!-- notebook: one -->\n\n<!-- {mark} -->\n")
    with pytest.raises(ValueError, match=f"a page must .* a notebook that .*, got <!-- {mark} -->"):
        joining.stage(with_sections, {})


def test_sections_can_be_run_where_a_repository_is_known(with_sections):
    joining.stage(with_sections, {"url": "https://github.com/owner/name", "branch": "main"})
    (first, *_) = nbformat.read(with_sections / "notebooks/host.ipynb", as_version=4).cells[1:]
    assert "(https://mybinder.org/v2/gh/owner/name/main?urlpath=lab/tree/notebooks/three.ipynb)" in first.source
    assert "(https://colab.research.google.com/github/owner/name/blob/main/notebooks/three.ipynb)" in first.source
