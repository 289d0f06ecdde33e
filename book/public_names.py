"""dpsub's public names: where each is described, what links call it, and what is said about it."""

from __future__ import annotations

import ast
import importlib
import inspect
import itertools
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import docstrings

# Each page's modules, under the names that users write.
PAGES = {
    "dpsub": ["dpsub"],
    "accounting": ["dpsub.accounting"],
    "estimators": ["dpsub.estimators"],
    "data": ["dpsub.data"],
    "models": ["dpsub.models"],
    "trainers": ["dpsub.trainers"],
    "crafters": ["dpsub.crafters"],
    "audits": ["dpsub.audits", "dpsub.distinguishers"],
    "opacus": ["dpsub.opacus"],
    "figures": ["dpsub.figures", "dpsub.findings", "dpsub.pictures"],
}


@dataclass(frozen=True)
class Name:
    """A public name. `place` is its module as users write it."""

    place: str
    name: str
    value: Any = field(compare=False, repr=False)

    @property
    def full(self) -> str:
        """As users write it: `dpsub.estimators.epsilon_lower_bound`."""
        return f"{self.place}.{self.name}"

    @property
    def anchor(self) -> str:
        """As links write it: "api-estimators-epsilon_lower_bound"; of a module, the part of the page that it has.

        Labels know no capitals: what differs from a function by its capitals alone ends in "-class" or "-constant".
        """
        if isinstance(self.value, ModuleType):
            return anchor_of(self.full)
        twins = [name for name in public(module_of(self.place)) if name.lower() == self.name.lower()]
        kind = "-class" if inspect.isclass(self.value) else "-constant"
        return f"{anchor_of(self.place)}-{self.name}" + (
            kind if len(twins) > 1 and self.name != twins[-1].lower() else ""
        )


def anchor_of(place: str) -> str:
    """What links call a module: "api-estimators"."""
    return f"api-{place.rpartition('.')[2]}"


def documented(value: Any) -> bool:
    """Whether a value is a function or a class, which have docstrings; not a constant or an alias of types."""
    return inspect.isfunction(value) or (inspect.isclass(value) and not hasattr(value, "__origin__"))


@cache
def module_of(place: str) -> ModuleType:
    """The module that users write so. `dpsub.findings` is a name of dpsub, not a path to import."""
    inside = place.removeprefix("dpsub").removeprefix(".")
    module = getattr(importlib.import_module("dpsub"), inside) if inside else importlib.import_module("dpsub")
    assert isinstance(module, ModuleType)
    return module


def public(module: ModuleType) -> list[str]:
    """`__all__`, or else what the module itself defines."""
    own = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
    return list(getattr(module, "__all__", [name for name in own if not name.startswith("_")]))


@cache
def of_place(place: str) -> tuple[Name, ...]:
    """The public names of one module."""
    return tuple(Name(place, name, getattr(module_of(place), name)) for name in public(module_of(place)))


@cache
def names() -> tuple[Name, ...]:
    """Every public name at each of its places. The top level comes last: rooms describe what it exports again."""
    places = [place for page in PAGES.values() for place in page]
    return tuple(one for place in [*places[1:], places[0]] for one in of_place(place))


@cache
def described() -> dict[int, Name]:
    """Where each function and class is described, by its id."""
    homes: dict[int, Name] = {}
    for one in names():
        if documented(one.value):
            homes.setdefault(id(one.value), one)
    return homes


def home(one: Name) -> Name:
    """The place where a name's object is described."""
    return described().get(id(one.value), one)


@cache
def by_text() -> dict[str, Name]:
    """Names as texts write them, with their modules: `estimators.epsilon_lower_bound`, `dpsub.audit`."""
    return {
        text: home(one)
        for one in reversed(names())
        for text in (one.full, one.full.removeprefix("dpsub."))
        if "." in text and not isinstance(one.value, ModuleType)
    }


@cache
def by_name() -> dict[str, Name]:
    """Names that texts write without their modules and that are no ordinary words: `CanaryPair`, `audit_steps`."""
    found: dict[str, Name] = {}
    for one in names():
        if documented(one.value) and (one.name.lower() != one.name or "_" in one.name):
            found.setdefault(one.name, home(one))
    return found


def linker(place: str, own: set[str]) -> docstrings.Link:
    """What makes a link of code that is a public name, unless it is one of the owner's parameters."""
    here = {one.name: home(one) for one in of_place(place) if not isinstance(one.value, ModuleType)}

    def link(code: str) -> str:
        found = None if code in own else by_text().get(code) or here.get(code) or by_name().get(code)
        return f"[`{code}`](#{found.anchor})" if found else f"`{code}`"

    return link


@cache
def texts_below_constants(place: str) -> dict[str, str]:
    """The strings that stand below assignments in a module's files: what constants are."""
    file = Path(module_of(place).__file__ or "")
    found: dict[str, str] = {}
    for path in sorted(file.parent.glob("*.py")) if file.name == "__init__.py" else [file]:
        for node, below in itertools.pairwise(ast.parse(path.read_text()).body):
            target = node.target if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [None])[0]
            text = below.value if isinstance(below, ast.Expr) else None
            if isinstance(target, ast.Name) and isinstance(text, ast.Constant):
                found[target.id] = str(text.value)
    return found


def text_of(one: Name) -> str:
    """What the source says about a name."""
    if documented(one.value) or isinstance(one.value, ModuleType):
        return inspect.getdoc(one.value) or ""
    return texts_below_constants(one.place).get(one.name, "")


@cache
def protocols() -> tuple[Any, ...]:
    """The public protocols, which classes implement without naming them."""
    return tuple({id(one.value): one.value for one in names() if getattr(one.value, "_is_protocol", False)}.values())


def implements(kind: Any, protocol: Any) -> bool:
    """Whether a class has all that a protocol asks for."""
    fields = getattr(kind, "__dataclass_fields__", {})
    return all(hasattr(kind, name) or name in fields for name in vars(protocol) if not name.startswith("_"))


def text_of_method(kind: Any, name: str) -> str:
    """The docstring of a method, or else of the protocol's method that it implements."""
    places = [kind, *(protocol for protocol in protocols() if hasattr(protocol, name) and implements(kind, protocol))]
    return next((text for place in places if (text := inspect.getdoc(getattr(place, name)))), "")
