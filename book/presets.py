"""The presets: what a file changes of the notebooks' own parameters, checked before anything runs."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import nbformat
import yaml


def defaults(notebook: Path) -> dict[str, Any]:
    """The names that the notebook's parameters cell assigns, and their values."""
    cells = nbformat.read(notebook, as_version=4).cells
    found: dict[str, Any] = {}
    for cell in cells:
        if "parameters" in cell.metadata.get("tags", []):
            for line in ast.parse(cell.source).body:
                if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name):
                    found[line.targets[0].id] = ast.literal_eval(line.value)
    return found


def sections(notebooks: Path, preset: str) -> dict[str, dict[str, Any]]:
    """What a preset's file changes, by notebook, checked; notebooks that it does not name keep their own values.

    Raises:
        ValueError: if there is no such preset, or its file is no YAML of notebooks with names and values, names a
            notebook or a parameter that does not exist, or gives a value of another kind than the notebook's own.
    """
    path = notebooks / "params" / f"{preset}.yaml"
    if not path.exists():
        there = sorted(other.stem for other in path.parent.glob("*.yaml"))
        raise ValueError(f"there is no preset {preset!r} in {notebooks.name}/params/: {_nearest(preset, there)}")
    try:
        found = yaml.safe_load(path.read_text()) or {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} must be YAML: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path} must have a section for each notebook that it changes, got {found!r}")
    for name, given in found.items():
        try:
            check_notebook(notebooks, name)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        check(f"{path}: {name}", given, defaults(notebooks / f"{name}.ipynb"))
    return found


def check_notebook(notebooks: Path, name: Any) -> None:
    """Refuse the name of a notebook that does not exist."""
    known = [notebook.stem for notebook in sorted(notebooks.glob("*.ipynb"))]
    if name not in known:
        raise ValueError(f"there is no notebook {name!r} in {notebooks.name}/: {_nearest(name, known)}")


def check(where: str, given: Any, known: dict[str, Any]) -> None:
    """Refuse parameters that the notebook does not have, and values of another kind."""
    if not isinstance(given, dict):
        raise ValueError(f"{where} must have lines like `runs: 100`, got {given!r}")
    for name, value in given.items():
        if name not in known:
            raise ValueError(f"{where} has no parameter {name!r}: {_nearest(name, known)}")
        if problem := _problem(value, known[name]):
            raise ValueError(f"{where}: {name} must be {problem}")


def _nearest(name: Any, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known) or 'none'}"


def _problem(value: Any, default: Any) -> str:
    """What a value must be to take the place of the default, and what was given; "" if it may."""
    if default is None:
        return ""
    if isinstance(default, list):
        if not isinstance(value, list) or (default and not value):
            return f"a list, such as {default!r}, got {value!r}"
        problems = (_problem(one, default[0]) for one in value) if default else ()
        return next((f"a list, each of it {problem}" for problem in problems if problem), "")
    if isinstance(default, bool) or isinstance(value, bool):
        return "" if type(value) is type(default) else f"{_kind(default)}, got {value!r}"
    whole = isinstance(default, int)
    if isinstance(value, int if whole else int | float) and not isinstance(default, str):
        return ""
    if isinstance(default, str):
        return "" if isinstance(value, str) else f"a text, got {value!r}"
    return f"{_kind(default)}, got {value!r}{_as_number(value, whole=whole)}"


def _kind(default: Any) -> str:
    if isinstance(default, bool):
        return "true or false"
    return "a text" if isinstance(default, str) else "a whole number" if isinstance(default, int) else "a number"


def _as_number(value: Any, *, whole: bool) -> str:
    """How to write what was meant as a number."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return ""
    if whole:
        return f": write {int(number)}" if number.is_integer() else ""
    if not isinstance(value, str):
        return ""
    # YAML 1.1 wants a point in the number and a sign in its exponent.
    base, _, power = value.strip().lower().partition("e")
    base = base if "." in base else f"{base}.0"
    power = power if not power or re.match("[+-]", power) else f"+{power}"
    return f", a text in YAML: write {base}e{power}" if power else f", a text: write {base} without quotes"
