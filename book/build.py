"""Build the book from executed notebooks, after checking that they are what they claim to be."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import inline
import made_from
import nbformat
import reference
import slim
import yaml
from nbformat import NotebookNode
from run import EXECUTED, ROOT, SOURCES
from site_config import site_config

STAGED = ROOT / "_build" / "src"
CONFIG = ROOT / "_build" / "_config.yml"
REFERENCES = ROOT / "book" / "references.bib"
INJECTED = "injected-parameters"
WIDGET = "application/vnd.jupyter.widget-view+json"
READS_BEST = "*Reads best on the book's site, or in JupyterLab with `` pip install 'dpsub[notebooks]' ``.*"
CITATION = re.compile(r"\[[^\]]+\]\(\.\./book/bibliography\.md#([^)]+)\)")


class NotReady(Exception):
    """An executed notebook that must not be published."""


def check(executed: NotebookNode, source: NotebookNode, name: str) -> None:
    """Refuse what papermill leaves of a run that failed, was interrupted, or was of another source.

    papermill writes its output even when a cell fails, and a book built without execution would publish it.
    """
    again = f"execute it again (`make notebooks`, or `make rerun PRESET=...`) and look at what {name}.ipynb raises"
    record = executed.metadata.get("papermill", {})
    if record.get("exception"):
        raise NotReady(f"{name}: a cell failed: {again}")
    if not record.get("end_time"):
        raise NotReady(f"{name}: it was not executed to its end: {again}")
    added = {INJECTED, inline.TAG}
    cells = [cell for cell in executed.cells if not added & set(cell.metadata.get("tags", []))]
    for i, cell in enumerate(cells):
        if cell.cell_type != "code":
            continue
        if cell.source.strip() and cell.execution_count is None:
            raise NotReady(f"{name}: cell {i} was not executed: {again}")
        if any(output.output_type == "error" for output in cell.outputs):
            raise NotReady(f"{name}: cell {i} shows an error: {again}")
    if [cell.source for cell in cells] != [cell.source for cell in source.cells]:
        raise NotReady(f"{name}: notebooks/{name}.ipynb has changed since: {again}")


def clean(executed: NotebookNode) -> NotebookNode:
    """What a page without a kernel can show: no widgets; the values used, where they are not the defaults."""
    executed.metadata.pop("widgets", None)
    executed.metadata.pop("papermill", None)
    executed.metadata.pop(made_from.KEY, None)
    for cell in executed.cells:
        tags = cell.metadata.get("tags", [])
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if WIDGET not in output.get("data", {})]
        if INJECTED in tags:
            used = cell.source.removeprefix("# Parameters\n").replace(f"{ROOT}/", "../")
            cell.source = "# the values this page was made with\n" + used
        if "parameters" in tags:
            cell.metadata.tags = [tag for tag in tags if tag != "parameters"]
    return executed


def in_site_notation(executed: NotebookNode, name: str, keys: set[str]) -> NotebookNode:
    """The notebook as the site's Markdown has it: numbers, captions and citations in their places."""
    try:
        executed = inline.filled(executed)
    except KeyError as missing:
        raise NotReady(
            f"{name}: {{eval}}`{missing.args[0]}` has no executed value: execute it with book/run.py (`make notebooks`)"
        ) from None
    executed.cells[0].source = executed.cells[0].source.removesuffix(READS_BEST).rstrip()
    for cell in executed.cells:
        if cell.cell_type == "markdown":
            cell.source = CITATION.sub(lambda link: cited(link[1], name, keys), cell.source)
    return with_captions(executed, name)


def cited(key: str, name: str, keys: set[str]) -> str:
    """The site's citation of a work."""
    if key not in keys:
        raise NotReady(f"{name}: it cites {key!r}, which {REFERENCES.relative_to(ROOT)} lacks")
    return f"{{cite:t}}`{key}`"


def with_captions(notebook: NotebookNode, name: str) -> NotebookNode:
    """The notebook with each cell tagged `caption` made the caption of the figure above it."""
    cells: list[NotebookNode] = []
    for cell in notebook.cells:
        if "caption" not in cell.metadata.get("tags", []):
            cells.append(cell)
            continue
        figure = cells[-1].metadata.get("mystnb", {}).get("figure") if cells else None
        if not figure or "caption" in figure:
            raise NotReady(f"{name}: this caption has no figure of its own above it: {cell.source[:60]!r}")
        figure["caption"] = cell.source
    notebook.cells = cells
    return notebook


def citation_keys() -> set[str]:
    """The works that a page can cite."""
    return set(re.findall(r"^@\w+\{([^,\s]+)", REFERENCES.read_text(), re.MULTILINE))


def stage() -> None:
    """A tree that mirrors the repository, so that links to sources point at the sources."""
    shutil.rmtree(STAGED, ignore_errors=True)
    shutil.copytree(ROOT / "book", STAGED / "book", ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    (STAGED / "book" / "_static").rename(STAGED / "_static")
    (STAGED / "notebooks").mkdir()
    keys = citation_keys()
    for path in sorted(SOURCES.glob("*.ipynb")):
        copy = EXECUTED / path.name
        if not copy.exists():
            raise NotReady(
                f"{path.stem}: not executed yet: run `make notebooks`, or `make rerun PRESET=...` for all notebooks"
            )
        executed = nbformat.read(copy, as_version=4)
        check(executed, nbformat.read(path, as_version=4), path.stem)
        site = in_site_notation(clean(executed), path.stem, keys)
        nbformat.write(site, STAGED / "notebooks" / path.name)
    reference.stage(STAGED)


def main() -> int:
    try:
        stage()
        CONFIG.write_text(yaml.safe_dump(site_config(ROOT / "_config.yml"), sort_keys=False))
    except (NotReady, ValueError) as error:
        print(f"the book was not built: {error}", file=sys.stderr)
        return 1
    path = os.pathsep.join(filter(None, [str(ROOT / "book"), os.environ.get("PYTHONPATH")]))  # where site_pages is
    built = subprocess.run(
        [Path(sys.executable).with_name("jupyter-book"), "build", STAGED, "--config", CONFIG,
         "--toc", ROOT / "book" / "_toc.yml", "--path-output", ROOT, "-W", "-n", "--keep-going"],
        env={**os.environ, "PYTHONPATH": path},
        check=False,
    )  # fmt: skip
    if built.returncode == 0:
        slim.slim(ROOT / "_build" / "html", SOURCES)
    return built.returncode


if __name__ == "__main__":
    raise SystemExit(main())
