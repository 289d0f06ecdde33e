"""What staging adds for the reference pages: the pages on dpsub's names, the gallery, and links to both."""

from __future__ import annotations

import re
from pathlib import Path

import api
import gallery
import nbformat
from public_names import by_text

ROOT = Path(__file__).parent.parent
TERM = re.compile(r"\[([^\]]+)\]\(\.\./book/glossary\.md#term-([\w-]+)\)")
KEPT = re.compile(r"^(`{3,}).*?^\1|^(?:#|:::).*?$|\[[^\]]*\]\([^)]*\)|<[^>]+>", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"(?<![\[`{}])`((?:\w+\.)+\w+)`(?!`|\])")


def terms() -> dict[str, str]:
    """The terms of the glossary, by what links write for them: "false-positive-rate"."""
    glossary = (ROOT / "book" / "glossary.md").read_text()
    written = re.findall(r"^(?=[^\s:#])(?!This page)(?!\*\*)(.+)$", glossary.split(":::{glossary}")[1], re.MULTILINE)
    return {slug(term): term for term in written}


def slug(term: str) -> str:
    """A term as a link writes it."""
    return re.sub(r"[^\w]+", "-", term.lower()).strip("-")


def linked_terms(text: str, known: dict[str, str]) -> str:
    """Links to the glossary as the site's: JupyterLab has links to the file."""

    def role(found: re.Match[str]) -> str:
        if found[2] not in known:
            raise ValueError(f"{found[0]}: the glossary has no term {found[2]!r}; it has {', '.join(known)}")
        return f"{{term}}`{' '.join(found[1].split())} <{known[found[2]]}>`"

    return TERM.sub(role, text)


def linked_names(text: str) -> str:
    """Prose in which each of dpsub's names that stands with its room leads to its description.

    Code blocks, headings, directives and links stay as they are.
    """
    kept: list[str] = []

    def keep(found: re.Match[str]) -> str:
        kept.append(found[0])
        return f"\0{len(kept) - 1}\0"

    def link(found: re.Match[str]) -> str:
        name = by_text().get(found[1])
        return f"[{found[0]}](#{name.anchor})" if name else found[0]

    return re.sub(r"\0(\d+)\0", lambda found: kept[int(found[1])], CODE.sub(link, KEPT.sub(keep, text)))


def stage(staged: Path) -> None:
    """Complete a staged book whose pages and executed notebooks are in their places."""
    known = terms()
    for page in sorted(staged.glob("book/*.md")):
        page.write_text(linked_names(page.read_text()))
    for path in sorted(staged.glob("notebooks/*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        for cell in notebook.cells:
            if cell.cell_type == "markdown":
                cell.source = linked_names(linked_terms(cell.source, known))
        nbformat.write(notebook, path)
    api.stage(staged)
    gallery.stage(staged)
