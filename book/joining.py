"""Pages that show several notebooks: each becomes a section of the page that includes it.

A page in book/, or a notebook, includes another notebook where it says `<!-- notebook: NAME -->`, in a notebook in a
cell of its own. Each notebook stays a file and a job of its own. Links to one that is included lead to its section. A
figure of a section moves to where the page says `<!-- figure: LABEL -->`.
"""

from __future__ import annotations

import re
from pathlib import Path

import copies
import nbformat
from nbformat import NotebookNode

MARK = re.compile(r"(<!-- (?:notebook|figure): [\w-]+ -->)")
BEFORE = re.compile(r"^:::\{admonition\} Before you start\n.*?^:::\n*", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"(^```.*?^```)|^(?=#+ )", re.MULTILINE | re.DOTALL)  # outside code
PAGE = re.compile(r"\b([Tt])his page\b")
LINK = re.compile(r"\]\((?=\w+\.ipynb)")  # to a notebook in the same folder
VISIBLE = {copies.FOLDED, "hide-cell", "remove-input", "remove-cell", "no-bar"}.isdisjoint


def included(root: Path) -> dict[str, str]:
    """The notebooks that pages include, by name, and the page that each is on."""
    pages = [*sorted(root.glob("book/*.md")), *sorted(root.glob("notebooks/*.ipynb"))]
    return {
        name: page.relative_to(root).with_suffix("").as_posix()
        for page in pages
        for kind, name in map(named, MARK.findall(page.read_text()))
        if kind == "notebook"
    }


def named(mark: str) -> tuple[str, str]:
    """What a mark asks for, a notebook or a figure, and its name."""
    _, kind, name, _ = mark.split()
    return kind.removesuffix(":"), name


def section_id(notebook: str) -> str:
    """The place in a page where a notebook's section begins."""
    return notebook.lower().replace("_", "-")


def stage(staged: Path, repository: dict[str, str]) -> None:
    """Join the staged notebooks into the pages that include them, and turn all links to them.

    Args:
        repository: its url on GitHub and its branch, for links that run a section's notebook; {} for none.
    """
    pages = included(staged)
    for page in sorted(set(pages.values())):
        path = staged / f"{page}.ipynb"
        host = nbformat.read(path, as_version=4) if path.exists() else as_notebook(path.with_suffix(".md"))
        nbformat.write(joined(host, staged / "notebooks", repository), path)
        path.with_suffix(".md").unlink(missing_ok=True)
    for path in [*staged.glob("book/**/*.md"), *staged.glob("*/*.ipynb")]:
        path.write_text(turned(path.read_text(), pages))


def as_notebook(page: Path) -> NotebookNode:
    """A page's text as a notebook, with a cell for each mark."""
    parts = [part.strip() for part in MARK.split(page.read_text())]
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(part) for part in parts if part])


def joined(host: NotebookNode, notebooks: Path, repository: dict[str, str]) -> NotebookNode:
    """A page with the notebooks that it includes; code that stands on it twice is seen once."""
    cells: list[NotebookNode] = []
    for cell in host.cells:
        kind, name = named(cell.source) if MARK.fullmatch(cell.source) else ("", "")
        if kind == "notebook":
            path = notebooks / f"{name}.ipynb"
            if not path.exists():
                raise ValueError(f"a page must include a notebook that there is, got {cell.source}")
            notebook = nbformat.read(path, as_version=4)
            host.metadata = {**notebook.metadata, **host.metadata}
            cells += as_section(notebook, name, repository)
        else:
            cells.append(cell)
    drawn = {cell.metadata.get("mystnb", {}).get("figure", {}).get("name"): cell for cell in cells}
    for place, name in [(cell, named(cell.source)[1]) for cell in cells if MARK.fullmatch(cell.source)]:
        if name not in drawn:
            raise ValueError(f"a page must ask for a figure of a notebook that it includes, got {place.source}")
        cells.remove(drawn[name])
        cells[cells.index(place)] = drawn[name]
    seen: set[str] = set()
    for i, cell in enumerate(cells):
        cell.id = f"cell-{i}"
        tags = cell.metadata.get("tags", [])
        if cell.cell_type == "code" and VISIBLE(tags):
            if cell.source in seen:
                cell.metadata.tags = [*tags, copies.FOLDED if copies.shows(cell) else "no-bar"]
            seen.add(cell.source)
    host.cells = cells
    return host


def as_section(notebook: NotebookNode, name: str, repository: dict[str, str]) -> list[NotebookNode]:
    """The cells of a notebook a level down, without what the page says for all of them.

    "This page" becomes "this section". The numbers that it leaves for other pages get its name before theirs.
    """
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = HEADING.sub(lambda found: found[1] or "#", BEFORE.sub("", cell.source).rstrip())
            cell.source = PAGE.sub(r"\1his section", LINK.sub("](../notebooks/", cell.source))
        for record in (output.metadata.get("scrapbook") for output in cell.get("outputs", []) if "metadata" in output):
            if record:
                record.name = f"{name}.{record.name}"
    first = notebook.cells[0]
    offered = [f"{{download}}`{name}.ipynb <../notebooks/{name}.ipynb>`"]
    offered += [f"[{where}]({address})" for where, address in launches(name, repository).items()]
    first.source = f"({name})=\n{first.source}\n\n**Notebook**: {', '.join(offered)}"
    return [cell for cell in notebook.cells if cell.source]


def launches(name: str, repository: dict[str, str]) -> dict[str, str]:
    """Where a notebook can be run without installing anything."""
    if not repository:
        return {}
    there, branch = repository["url"].removeprefix("https://github.com/"), repository["branch"]
    return {
        "Binder": f"https://mybinder.org/v2/gh/{there}/{branch}?urlpath=lab/tree/notebooks/{name}.ipynb",
        "Colab": f"https://colab.research.google.com/github/{there}/blob/{branch}/notebooks/{name}.ipynb",
    }


def turned(text: str, pages: dict[str, str]) -> str:
    """A text with links to sections in place of links to notebooks that are sections now."""
    for name, page in pages.items():
        text = re.sub(rf"\]\((?:\.\./notebooks/)?{name}\.ipynb\)", f"](#{name})", text)
        text = re.sub(rf"{{doc}}`(?:\.\./|/)notebooks/{name}`", f"{{ref}}`{name}`", text)
        text = re.sub(rf"{{doc}}`([^`<]+) <(?:\.\./|/)notebooks/{name}>`", rf"{{ref}}`\1 <{name}>`", text)
        text = text.replace(f"../notebooks/{name}.ipynb::", f"../{page}.ipynb::{name}.")
        text = text.replace(f"../notebooks/{name}.html#", f"../{page}.html#")
    return text
