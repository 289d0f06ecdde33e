"""Which notebooks use which of dpsub's public names, found in the source of their code cells."""

from __future__ import annotations

import ast
import importlib
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

ROOT = Path(__file__).parent.parent


def code_of(path: Path) -> Iterator[ast.Module]:
    """The code cells of a notebook, read."""
    for cell in json.loads(path.read_text())["cells"]:
        if cell["cell_type"] == "code":
            lines = "".join(cell["source"]).splitlines()
            yield ast.parse("\n".join(line for line in lines if not line.startswith(("%", "!"))))


def dotted(node: ast.expr) -> list[str]:
    """["estimators", "epsilon_lower_bound"] of `estimators.epsilon_lower_bound`, nothing of other expressions."""
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Attribute) and (inner := dotted(node.value)):
        return [*inner, node.attr]
    return []


def imports(tree: ast.Module) -> Iterator[tuple[str, Any]]:
    """What a cell's imports from dpsub bind."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "dpsub":
                    yield alias.asname or "dpsub", importlib.import_module(alias.name if alias.asname else "dpsub")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "dpsub":
            module = importlib.import_module(node.module or "")
            for alias in node.names:
                yield alias.asname or alias.name, getattr(module, alias.name)


def used(path: Path) -> set[int]:
    """The ids of dpsub's objects that a notebook's code names."""
    bound: dict[str, Any] = {}
    found: set[int] = set()
    for tree in code_of(path):
        bound.update(imports(tree))
        for node in ast.walk(tree):
            if not isinstance(node, ast.Name | ast.Attribute):
                continue
            first, *rest = dotted(node) or [""]
            value = bound.get(first)
            for part in rest:
                value = getattr(value, part, None) if isinstance(value, ModuleType) else None
            if value is not None:
                found.add(id(value))
    return found


def in_order() -> list[str]:
    """The notebooks in the order of the table of contents."""
    toc = yaml.safe_load((ROOT / "book" / "_toc.yml").read_text())
    files = [chapter["file"] for part in toc["parts"] for chapter in part["chapters"]]
    return [file.removeprefix("notebooks/") for file in files if file.startswith("notebooks/")]


@cache
def pages() -> dict[int, tuple[str, ...]]:
    """The notebooks that use each object, by its id."""
    found: dict[int, tuple[str, ...]] = {}
    for name in in_order():
        for one in used(ROOT / "notebooks" / f"{name}.ipynb"):
            found[one] = (*found.get(one, ()), name)
    return found
