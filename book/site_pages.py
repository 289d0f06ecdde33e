"""A Sphinx extension: what the opening page takes from other files, what each page's head says of it, its lists, the
numbers of exercises, and where pages that were moved are now.

The opening page shows the version, the README's first example with what it prints, how to install and how to cite.
Each of these is read from its one source, or run, while the book is built.
"""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

import joining
import pictures
import yaml
from build import repository_url
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.environment import BuildEnvironment
from sphinx.writers.html5 import HTML5Translator

ROOT = Path(__file__).resolve().parent.parent
QUICKSTART = "notebooks/quickstart.ipynb"
CARD = "_static/card.png"
LONGEST = 200  # characters of a description; search engines show about 160
MOVED = {  # old pages, and the pages or sections that replace them
    "book/what_does_my_epsilon_protect": "book/which_epsilon_to_state",
    "book/gallery": "book/the_paper_beside_us",
    "notebooks/the_paper_beside_us": "book/the_paper_beside_us",
    **dict.fromkeys(
        (f"notebooks/figA{old}" for old in ("1_accuracy", "2_clipping", "3_steps", "4_learning_rate")),
        "notebooks/what_weakens",
    ),
}
REDIRECT = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8" /><meta http-equiv="Refresh" content="0; url={url}" />
<title>This page has moved</title></head><body><a href="{url}">This page has moved</a></body></html>
"""
OF_NOTEBOOKS = ("download-buttons", "launch-buttons")
THEBE = ("sphinx-thebe.", "THEBE_JS_URL")  # live code by a kernel elsewhere: this book has none


@cache
def sections() -> dict[str, str]:
    """The notebooks that are sections, and the page that each is on."""
    return {f"notebooks/{name}": page for name, page in joining.included(ROOT).items()}


def example() -> str:
    """The README's first example in Python."""
    return re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)[0].strip()


def printed(code: str) -> str:
    """What a program prints, run by itself with this package."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode:
        raise RuntimeError(f"the README's first example fails, so the opening page has nothing to show: {run.stderr}")
    return run.stdout.strip()


def version() -> str:
    """The package's version."""
    found = re.search(r'__version__ = "([^"]+)"', (ROOT / "dpsub" / "_version.py").read_text())
    if found is None:
        raise RuntimeError("dpsub/_version.py says no __version__")
    return found[1]


def bibtex(year: str, repository: str) -> str:
    """CITATION.cff as an entry for a bibliography."""
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    fields = {
        "title": "{" + cited["title"] + "}",
        "author": " and ".join(author_of(author) for author in cited["authors"]),
        "year": year,
        "version": cited["version"],
        "note": f"{cited['license']} license",
    } | ({"url": repository} if repository else {})
    lines = ",\n".join(f"  {name:<7} = {{{value}}}" for name, value in fields.items())
    return f"@software{{dpsub,\n{lines}\n}}"


def author_of(author: dict[str, str]) -> str:
    """An author as BibTeX writes one; a name that is no person's in braces of its own."""
    return "{" + author["name"] + "}" if "name" in author else f"{author['family-names']}, {author['given-names']}"


def installing(repository: str) -> str:
    """The commands that install dpsub: with the repository's address where it is known."""
    if not repository:
        here = "make quickstart   # in a copy of the repository: installs into .venv, audits 2,500 models"
        return f"```\n{here}\n```\n\nInto an environment of your own: `pip install .` in the same folder."
    folder = repository.rsplit("/", 1)[-1]
    return (
        f"```\ngit clone {repository}\ncd {folder}\nmake quickstart   # installs into .venv, audits 2,500 models\n"
        "```\n\n"
        f"Into an environment of your own: `pip install git+{repository}`."
    )


def explorers() -> dict[str, str]:
    """What the opening page asks its reader: about a training, and about an audit."""
    sys.path.insert(0, str(ROOT / "notebooks"))
    from own_code import explorers

    pages = {
        "training": explorers.training_page(),
        "which_audit": explorers.which_audit_page(ROOT / "results", pages="../notebooks/"),
    }
    return {name: f"```{{raw}} html\n{page.data}\n```" for name, page in pages.items()}


def fill_in(app: Sphinx, config: Config) -> None:
    """Give the opening page what it takes from elsewhere."""
    repository = repository_url(yaml.safe_load((ROOT / "_config.yml").read_text()))
    code = example()
    config.myst_substitutions = {
        **config.myst_substitutions,
        "version": version(),
        "example": f"```python\n{code}\n```\n\n```text\n{printed(code)}\n```",
        "install": installing(repository),
        **explorers(),
        "bibtex": f"```bibtex\n{bibtex(str(config.copyright), repository)}\n```",
        "source": f"[{repository}]({repository})" if repository else "in the repository that this book was built from",
    }


def draw(app: Sphinx) -> None:
    """Draw the pictures of the claim into the folder that the book is built from."""
    executed = Path(app.srcdir) / QUICKSTART
    if app.builder.format != "html" or not executed.exists():
        return
    found = pictures.numbers(executed)
    images = Path(app.srcdir) / "book" / "images"
    pictures.opening(found, pictures.LIGHT, images / "claim.svg")
    pictures.opening(found, pictures.DARK, images / "claim-dark.svg")
    pictures.card(found, Path(app.srcdir) / CARD)


def description(doctree: nodes.document | None, meta: dict[str, Any]) -> str:
    """The sentence that describes a page: its front matter's, or the first sentences of its first paragraph."""
    if "description" in meta:
        return str(meta["description"])
    if doctree is None:
        return ""
    paragraphs = (p for p in doctree.findall(nodes.paragraph) if isinstance(p.parent, nodes.section))
    text = " ".join(next((p.astext() for p in paragraphs), "").split())
    whole = ""
    for sentence in re.split(r"(?<=[.?!:])\s+(?=[^\Wa-z])", text):
        if whole and len(whole) + len(sentence) > LONGEST:
            break
        whole = f"{whole} {sentence}".strip()
    return whole if len(whole) <= LONGEST else whole[:LONGEST].rsplit(" ", 1)[0] + " …"


def head(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: nodes.document | None) -> None:
    """Describe a page to search engines and to those who show links; leave out what it does not use."""
    title = re.sub(r"<[^>]+>", "", context.get("title", ""))
    says = description(doctree, context.get("meta") or {})
    base = app.config.html_baseurl
    image = f"{base.rstrip('/')}/{CARD}" if base else context["pathto"](CARD, 1)
    tags = {"og:title": title, "og:description": says, "og:type": "article", "og:site_name": "dpsub", "og:image": image}
    if base:
        tags["og:url"] = f"{base.rstrip('/')}/{page}.html"
    lines = [f'<meta property="{name}" content="{escape(value)}" />' for name, value in tags.items() if value]
    lines.append('<meta name="twitter:card" content="summary_large_image" />')
    if says:
        lines.append(f'<meta name="description" content="{escape(says)}" />')
    context["metatags"] = "\n".join([context.get("metatags", ""), *lines])
    if page in sections().values() and page.startswith("book/"):  # no notebook to download or to launch
        context["header_buttons"] = [one for one in context["header_buttons"] if one.get("label") not in OF_NOTEBOOKS]
    for files in ("script_files", "css_files"):
        context[files] = [file for file in context[files] if not any(word in told(file) for word in THEBE)]


def told(file: Any) -> str:
    """All that an entry for a script or style sheet holds: its address and its text."""
    return f"{getattr(file, 'filename', file)} {getattr(file, 'attributes', {})}"


def visit_work(self: HTML5Translator, node: nodes.citation) -> None:
    """Begin an entry of the bibliography as a list item, which a list must consist of for assistive technology.

    docutils gives entries the role doc-biblioentry, inside an element with the role list.
    """
    HTML5Translator.visit_citation(self, node)
    self.body[-1] = self.body[-1].replace('role="doc-biblioentry"', 'role="listitem"')


def depart_work(self: HTML5Translator, node: nodes.citation) -> None:
    HTML5Translator.depart_citation(self, node)


def list_works(app: Sphinx) -> None:
    app.add_node(nodes.citation, override=True, html=(visit_work, depart_work))


def number_exercises(app: Sphinx, env: BuildEnvironment) -> None:
    """Count the exercises of each page from 1."""
    for numbers in env.toc_fignumbers.values():
        found = numbers.get("exercise", {})
        numbers["exercise"] = {name: (i,) for i, name in enumerate(sorted(found, key=found.__getitem__), start=1)}


def redirect(app: Sphinx, exception: Exception | None) -> None:
    """Lead from the addresses of old pages to those that replace them."""
    if app.builder.format != "html" or exception:
        return
    pages = sections()
    for old, new in {**MOVED, **{name: name for name in pages}}.items():
        url = app.builder.get_relative_uri(old, pages.get(new, new))
        place = f"#{joining.section_id(Path(new).name)}" if new in pages else ""
        (Path(app.outdir) / f"{old}.html").write_text(REDIRECT.format(url=url + place))


def setup(app: Sphinx) -> dict[str, bool]:
    gc.set_threshold(200_000, 20, 100)  # a build makes large trees and little garbage: it takes a tenth less so
    list_works(app)
    app.connect("config-inited", fill_in)
    app.connect("builder-inited", draw)
    app.connect("env-check-consistency", number_exercises)  # Sphinx has counted them by then
    app.connect("html-page-context", head, priority=900)
    app.connect("build-finished", redirect)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
