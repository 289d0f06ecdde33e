"""Build the book from executed notebooks, after checking that they are what they claim to be.

build.py [PAGE ...]

With pages (quickstart, book/install), only these are built, into _build/some, without the verdicts on papers and with
links to other pages left open: to look at a page before the other notebooks are executed. Each of them is also
written as one file of HTML, to send or to keep: _build/some/quickstart.html.
"""

from __future__ import annotations

import difflib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import claims
import copies
import nbformat
import one_file
import yaml

ROOT = Path(__file__).resolve().parent.parent
SOURCES, EXECUTED = ROOT / "notebooks", ROOT / "_build" / "executed"
STAGED, SITE = ROOT / "_build" / "src", ROOT / "_build" / "html"
CONFIG = ROOT / "_build" / "_config.yml"
SOME = ROOT / "_build" / "some"  # a book of some pages
UNUSED = ("vendor/fontawesome/*/js", "vendor/fontawesome/*/webfonts/*.ttf", "locales", "sphinx-thebe.*", "**/*.map")
FONT_AWESOME = re.compile(r"\s*<script [^>]*vendor/fontawesome/[^>]*></script>")  # its style sheet draws the same icons
FIGURE = re.compile(r'<img (?=[^>]*\bsrc="([^"]*_images/[^"]+\.svg)")(?![^>]*\b(?:width|loading)=)')
PIXELS = 4 / 3  # a point's, in CSS


def repository_url(config: dict[str, Any]) -> str:
    """The repository's address: the environment's REPOSITORY_URL, else `repository.url`; "" if neither is set."""
    url = str(os.environ.get("REPOSITORY_URL") or config["repository"]["url"]).removesuffix("/").removesuffix(".git")
    if url and not re.fullmatch(r"https://github\.com/[^/\s]+/[^/\s]+", url):
        raise ValueError(
            "repository.url in _config.yml, or REPOSITORY_URL, must be like "
            f"https://github.com/OWNER/NAME, got {url!r}: "
            "leave it empty for a site without launch buttons"
        )
    return url


def site_config(path: Path = ROOT / "_config.yml") -> dict[str, Any]:
    """The configuration to build with: launch and repository buttons only where their links lead somewhere."""
    config: dict[str, Any] = yaml.safe_load(path.read_text())
    config["repository"]["url"] = url = repository_url(config)
    config["html"]["use_repository_button"] = bool(url)
    if not url:
        del config["repository"], config["launch_buttons"]["binderhub_url"], config["launch_buttons"]["colab_url"]
    return config


def page_of(path: Path) -> nbformat.NotebookNode:
    """The page of an executed notebook."""
    executed = EXECUTED / path.name
    if not executed.exists():
        raise copies.NotReady(f"{path.stem}: not executed yet: run `make notebooks` or `make rerun PRESET=...`")
    copy = nbformat.read(executed, as_version=4)
    copies.check(copy, nbformat.read(path, as_version=4), path.stem)
    return copies.as_page(copy, path.stem)


def stage(asked: list[str] | None = None) -> list[str]:
    """Write a tree that mirrors the repository, so that links to sources point at the sources.

    Of the pages asked for, it leaves out those that are not ready, and returns the others. Without any, all must be.
    """
    shutil.rmtree(STAGED, ignore_errors=True)
    shutil.copytree(ROOT / "book", STAGED / "book", ignore=shutil.ignore_patterns("*.py", "explorers", "__pycache__"))
    (STAGED / "book" / "_static").rename(STAGED / "_static")
    (STAGED / "notebooks").mkdir()
    if asked is None:
        for path in sorted(SOURCES.glob("*.ipynb")):
            nbformat.write(page_of(path), STAGED / "notebooks" / path.name)
        claims.stage(STAGED)
        return []
    ready = []
    for page in asked:
        try:
            if page.startswith("notebooks/"):
                nbformat.write(page_of(ROOT / f"{page}.ipynb"), STAGED / f"{page}.ipynb")
            ready.append(page)
        except copies.NotReady as error:
            print(f"left out: {error}", file=sys.stderr)
    return ready


def asked_for(names: list[str]) -> list[str]:
    """The pages with these names, as the table of contents has them."""
    pages = [name if "/" in name else f"notebooks/{name}" for name in names]
    there = {page for folder in ("book", "notebooks") for page in (ROOT / folder).glob("*.[mi]*")}
    known = {f"{page.parent.name}/{page.stem}" for page in there}
    for name, page in zip(names, pages, strict=True):
        if page not in known:
            close = difflib.get_close_matches(page, known, n=1)
            raise ValueError(f"no page is called {name!r}" + (f": did you mean {close[0]!r}?" if close else ""))
    return pages


def room(svg: str) -> str:
    """The attributes that keep room for a picture before it is loaded."""
    size = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
    if size is None:
        return ""
    width, height = (PIXELS * float(points) for points in size.groups())
    return f'width="{width:.0f}" height="{height:.0f}"'


def finish(site: Path, notebooks: Path) -> None:
    """Load figures when they come into view, leave out what no page asks for, and offer the notebooks' sources."""
    for path in [path for pattern in UNUSED for path in site.glob(f"_static/{pattern}")]:
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    for page in site.rglob("*.html"):

        def later(figure: re.Match[str], folder: Path = page.parent) -> str:
            return f'<img loading="lazy" {room((folder / figure[1]).read_text())} '

        page.write_text(FIGURE.sub(later, FONT_AWESOME.sub("", page.read_text())))
    for path in [*site.glob("_sources/notebooks/*.ipynb"), *site.glob("_downloads/*/*.ipynb")]:
        nbformat.write(copies.as_download(nbformat.read(notebooks / path.name, as_version=4), path.name), path)


def jupyter_book(toc: Path, output: Path, *options: str) -> int:
    """Build the staged pages of a table of contents."""
    path = os.pathsep.join(filter(None, [str(ROOT / "book"), str(ROOT), os.environ.get("PYTHONPATH")]))
    command = [Path(sys.executable).with_name("jupyter-book"), "build", STAGED, "--config", CONFIG]
    command += ["--toc", toc, "--path-output", output, *options]
    env = {**os.environ, "PYTHONPATH": path}  # with the Sphinx extensions
    return subprocess.run(command, env=env, check=False).returncode


def build_book() -> int:
    """Build the whole book, and refuse what Sphinx warns of."""
    stage()
    failed = jupyter_book(ROOT / "book" / "_toc.yml", ROOT, "--all", "-W", "-n", "--keep-going")
    if not failed:
        finish(SITE, SOURCES)
    return failed


def build_pages(asked: list[str], site: str) -> int:
    """Build a book of these pages, as far as they are ready, and write each as one file, with links to the site."""
    pages = stage(asked)
    if not pages:
        return 1
    shutil.rmtree(SOME, ignore_errors=True)
    SOME.mkdir()
    toc: dict[str, Any] = {"format": "jb-book", "root": pages[0]}
    if pages[1:]:
        toc["chapters"] = [{"file": page} for page in pages[1:]]
    (SOME / "_toc.yml").write_text(yaml.safe_dump(toc))
    failed = jupyter_book(SOME / "_toc.yml", SOME, "-q")
    if not failed:
        finish(SOME / "_build" / "html", SOURCES)
        for page in pages:
            target = SOME / f"{page.split('/')[1]}.html"
            address = f"{site.removesuffix('/')}/{page}.html" if site else ""
            target.write_text(one_file.alone(SOME / "_build" / "html" / f"{page}.html", address))
            print(f"{target.relative_to(ROOT)}: the page in one file")
    return failed


def main(names: list[str]) -> int:
    try:
        asked, config = asked_for(names), site_config()
        if asked:  # links to pages that are not built
            config["sphinx"]["config"]["suppress_warnings"] += ["myst.xref_missing"]
        CONFIG.parent.mkdir(exist_ok=True)
        CONFIG.write_text(yaml.safe_dump(config, sort_keys=False))
        return build_pages(asked, config["html"]["baseurl"]) if asked else build_book()
    except (copies.NotReady, ValueError) as error:
        print(f"the book was not built: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
