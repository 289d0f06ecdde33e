"""Build the book from executed notebooks, after checking that they are what they claim to be."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from run import EXECUTED, ROOT, SOURCES

STAGED = ROOT / "_build" / "src"
INJECTED = "injected-parameters"
WIDGET = "application/vnd.jupyter.widget-view+json"


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
    cells = [cell for cell in executed.cells if INJECTED not in cell.metadata.get("tags", [])]
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
    for cell in executed.cells:
        tags = cell.metadata.get("tags", [])
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if WIDGET not in output.get("data", {})]
        if INJECTED in tags:
            cell.source = "# the values this page was made with\n" + cell.source.removeprefix("# Parameters\n")
        if "parameters" in tags:
            cell.metadata.tags = [tag for tag in tags if tag != "parameters"]
    return executed


def stage() -> None:
    """A tree that mirrors the repository, so that links to sources point at the sources."""
    shutil.rmtree(STAGED, ignore_errors=True)
    shutil.copytree(ROOT / "book", STAGED / "book", ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    (STAGED / "book" / "_static").rename(STAGED / "_static")
    (STAGED / "notebooks").mkdir()
    for path in sorted(SOURCES.glob("*.ipynb")):
        copy = EXECUTED / path.name
        if not copy.exists():
            raise NotReady(
                f"{path.stem}: not executed yet: run `make notebooks`, or `make rerun PRESET=...` for all notebooks"
            )
        executed = nbformat.read(copy, as_version=4)
        check(executed, nbformat.read(path, as_version=4), path.stem)
        nbformat.write(clean(executed), STAGED / "notebooks" / path.name)


def main() -> int:
    try:
        stage()
    except NotReady as error:
        print(f"the book was not built: {error}", file=sys.stderr)
        return 1
    built = subprocess.run(
        [Path(sys.executable).with_name("jupyter-book"), "build", STAGED, "--config", ROOT / "_config.yml",
         "--toc", ROOT / "book" / "_toc.yml", "--path-output", ROOT, "-W", "-n", "--keep-going"],
        check=False,
    )  # fmt: skip
    return built.returncode


if __name__ == "__main__":
    raise SystemExit(main())
