"""The pages on dpsub's public names, made from docstrings when the book is staged."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import docstrings
import signatures
import used_in
from public_names import PAGES, Name, anchor_of, documented, home, linker, module_of, of_place, text_of, text_of_method
from site_config import site_config

ROOT = Path(__file__).parent.parent
MARK = "<!-- dpsub's own names: made from docstrings when the book is built -->"
MOST_PAGES = 6  # so many pages that use a name are named
MOST_CHARACTERS = 200  # of a constant's value


def code(text: str) -> str:
    """Python on the site."""
    return f"```python\n{text}\n```"


def plain(text: str) -> str:
    """Code without a link."""
    return f"`{text}`"


@cache
def published() -> str:
    """Where the files of the published branch can be read; nothing without a public repository."""
    about = site_config(ROOT / "_config.yml").get("repository")
    return f"{about['url']}/blob/{about['branch']}/" if about else ""


def file_of(value: Any) -> str:
    """The file of an object, as a link where there is a public repository."""
    path = Path(inspect.getsourcefile(value) or "").resolve().relative_to(ROOT).as_posix()
    line = "" if isinstance(value, ModuleType) else f"#L{inspect.getsourcelines(value)[1]}"
    return f"**File**: [`{path}`]({published()}{path}{line})" if published() else f"**File**: `{path}`"


def summary(one: Name) -> str:
    """The first sentence or line of what is said about a name."""
    return docstrings.prose(docstrings.first_sentence(text_of(one)), plain)


def description(place: str, text: str, value: Any) -> str:
    """A docstring on the site, with types and defaults beside the names that it lists."""
    given = {name.strip("*"): (kind, default) for name, kind, default in signatures.taken(value) if name != "*"}

    def about(name: str) -> str:
        kind, default = given.get(name.strip("*"), (None, None))
        typed = [] if kind is None else [f"`{signatures.text(kind)}`"]
        started = [] if default is None else [f"default `{signatures.text(default)}`"]
        return f" ({', '.join(typed + started)})" if typed or started else ""

    return docstrings.markdown(text, linker(place, set(given)), about)


def methods(one: Name) -> Iterator[str]:
    """The methods and properties that a class defines itself, but for those that it lists among its attributes."""
    listed = {name.strip() for kind, text in docstrings.blocks(text_of(one)) if kind == "Attributes"
              for names, _ in docstrings.entries(text) for name in names.split(",")}  # fmt: skip
    for name, value in vars(one.value).items():
        inner = getattr(value, "fget", None) or getattr(value, "func", None) or getattr(value, "__func__", value)
        if name.startswith("_") or name in listed or not inspect.isfunction(inner):
            continue
        called = inner is value or isinstance(value, classmethod | staticmethod)
        yield f"({one.anchor}-{name})="
        yield code(signatures.signature(f"{one.name}.{name}", inner) if called else f"{one.name}.{name}")
        yield description(one.place, text_of_method(one.value, name), inner)


def value_of(value: Any) -> str:
    """A constant's value: of a mapping its keys, of a long sequence its beginning."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: ..." for key in value) + "}"
    if isinstance(value, tuple | list) and len(repr(value)) > MOST_CHARACTERS:
        return "(" + ", ".join(map(repr, value[:3])) + ", ...)"
    return repr(value)


def constant(one: Name) -> Iterator[str]:
    """The value of a constant, and what it is."""
    yield code(f"{one.full} = {value_of(one.value)}".replace("collections.abc.", "").replace("'", '"'))
    yield docstrings.prose(text_of(one), linker(one.place, set()))


def entry(one: Name, level: int) -> Iterator[str]:
    """What the site says about one name."""
    yield f"({one.anchor})=\n{'#' * level} {one.name.replace('_', chr(92) + '_')}"
    if home(one) != one:
        yield f"{summary(one)} Described at [`{home(one).full}`](#{home(one).anchor})."
    elif not documented(one.value):
        yield from constant(one)
    else:
        yield code(signatures.signature(one.full, one.value))
        yield description(one.place, text_of(one), one.value)
        if inspect.isclass(one.value):
            yield from methods(one)
        pages = used_in.pages().get(id(one.value), ())
        more = f", and {len(pages) - MOST_PAGES} more" if len(pages) > MOST_PAGES else ""
        if pages:
            yield "**Used in**: " + ", ".join(f"{{doc}}`/notebooks/{page}`" for page in pages[:MOST_PAGES]) + more
        yield file_of(one.value)


def table(place: str) -> str:
    """The names of a module, with what each is."""
    rows = ["| Name | What it is |", "|---|---|"]
    rows += [
        f"| [`{one.name}`](#{one.anchor}) | {summary(one).replace('|', chr(92) + '|')} |" for one in of_place(place)
    ]
    return "\n".join(rows)


def module(place: str, level: int) -> Iterator[str]:
    """The part of a page that one module has."""
    there = module_of(place)
    yield f"({anchor_of(place)})=\n{'#' * level} {place}"
    yield docstrings.markdown(inspect.getdoc(there) or "", linker(place, set()), lambda name: "")
    yield file_of(there)
    yield table(place)
    for one in of_place(place):
        yield from entry(one, level + 1)


def page(room: str) -> str:
    """The page of a room: its face, and the modules beside it."""
    first, *others = PAGES[room]
    return "\n\n".join([*module(first, 1), *(part for other in others for part in module(other, 2))]) + "\n"


def top_level() -> str:
    """What the first page says behind its introduction: the names of dpsub itself."""
    own = [one for one in of_place("dpsub") if not isinstance(one.value, ModuleType)]
    return "\n\n".join([table("dpsub"), *(part for one in own for part in entry(one, 3))]) + "\n"


def stage(staged: Path) -> None:
    """Write the pages into the staged book."""
    first = staged / "book" / "api.md"
    text = first.read_text()
    if MARK not in text:
        raise ValueError(f"book/api.md must say where the names of dpsub stand: {MARK}")
    first.write_text(text.replace(MARK, top_level()))
    folder = staged / "book" / "api"
    folder.mkdir()
    for room in PAGES:
        if room != "dpsub":
            (folder / f"{room}.md").write_text(page(room))
