"""The presets: what a file changes of the notebooks' own parameters, checked before anything runs."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import nbformat
import yaml

KINDS = {bool: "true or false", str: "a text", int: "a whole number", float: "a number"}


def defaults(notebook: Path) -> dict[str, Any]:
    """The names that the notebook's parameters cell assigns, and their values."""
    values: dict[str, Any] = {}
    for cell in nbformat.read(notebook, as_version=4).cells:
        if "parameters" in cell.metadata.get("tags", []):
            for line in ast.parse(cell.source).body:
                if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name):
                    values[line.targets[0].id] = ast.literal_eval(line.value)
    return values


def sections(notebooks: Path, preset: str) -> dict[str, dict[str, Any]]:
    """What a preset's file changes, by notebook, checked; notebooks that it does not name keep their own values.

    Raises:
        ValueError: if there is no such preset, or its file names a notebook or a parameter that does not exist, or
            gives a value of another kind than the notebook's own.
    """
    path = notebooks / "params" / f"{preset}.yaml"
    known(preset, sorted(other.stem for other in path.parent.glob("*.yaml")), "no preset in notebooks/params/ is named")
    changes = yaml.safe_load(path.read_text()) or {}
    if not isinstance(changes, dict):
        raise ValueError(f"{path} must have a section for each notebook that it changes, got {changes!r}")
    return {name: checked(notebooks, name, given, str(path)) for name, given in changes.items()}


def checked(notebooks: Path, name: str, given: Any, where: str) -> dict[str, Any]:
    """The parameters of a notebook, each of the kind of its default."""
    known(name, [path.stem for path in sorted(notebooks.glob("*.ipynb"))], f"{where}: no notebook is named")
    if not isinstance(given, dict):
        raise ValueError(f"{where}: {name} must have lines like `runs: 100`, got {given!r}")
    own = defaults(notebooks / f"{name}.ipynb")
    for parameter in given:
        known(parameter, own, f"{where}: {name} has no parameter")
    try:
        return {parameter: as_kind(parameter, value, own[parameter]) for parameter, value in given.items()}
    except ValueError as error:
        raise ValueError(f"{where}: {name}: {error}") from None


def known(name: Any, names: Iterable[str], problem: str) -> None:
    """Refuse a name that is none of these, and say which was meant."""
    if name not in names:
        near = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names) or 'none'}"
        raise ValueError(f"{problem} {name!r}: {hint}")


def as_kind(name: str, value: Any, default: Any) -> Any:
    """The value as one of the default's kind: YAML reads 1e-6 as a text, and 1 as a whole number."""
    if default is None:
        return value
    if isinstance(default, list):
        if not isinstance(value, list) or (default and not value):
            raise ValueError(f"{name} must be a list, such as {default!r}, got {value!r}")
        return [as_kind(f"each of {name}", item, default[0]) for item in value] if default else value
    kind = type(default)
    if isinstance(value, str) and kind in (int, float):
        with suppress(ValueError):
            value = float(value)
    if isinstance(value, float) and kind is int and value.is_integer():
        value = int(value)
    if type(value) is kind or (type(value) is int and kind is float):
        return value
    raise ValueError(f"{name} must be {KINDS[kind]}, got {value!r}")
