"""From a docstring, as dpsub writes them, to the Markdown of the site."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterator

SECTIONS = {"Args": "Arguments", "Attributes": "Attributes", "Returns": "Returns", "Raises": "Raises", "Warns": "Warns"}
LISTED = ("Args", "Attributes", "Raises", "Warns")
CODE = re.compile(r"(`+)(.+?)\1")
VALUE = re.compile(r'(?<![\w`])"([\w.+-]*)"(?![\w`])')
INLINE_MATH = re.compile(r":math:`([^`]+)`", re.DOTALL)
BLOCK_MATH = re.compile(r"^\.\. math:: *(.+?)(?=\n\n|\Z)", re.DOTALL | re.MULTILINE)
MARKUP = re.compile(r"([<$\[\]]|\*(?=\w+[),]))")  # the last is a star of Python's, as in (n, *input_shape)

Link = Callable[[str], str]


def first_sentence(text: str) -> str:
    """A docstring's first line, which says what its owner is or does."""
    return " ".join(text.strip().split("\n\n")[0].split())


def prose(text: str, link: Link) -> str:
    """Running text: math, code, values in quotation marks, and what Markdown would read as markup of its own.

    `link` answers a piece of code with the Markdown that stands for it: a link to its page, or the code as it is.
    """
    kept: list[str] = []

    def keep(markdown: str) -> str:
        kept.append(markdown)
        return f"\0{len(kept) - 1}\0"

    text = BLOCK_MATH.sub(lambda found: keep(f"$$\n{' '.join(found[1].split())}\n$$"), text)
    text = INLINE_MATH.sub(lambda found: keep(f"${' '.join(found[1].split())}$"), text)
    text = CODE.sub(lambda found: keep(link(found[2])), text)
    text = VALUE.sub(lambda found: keep(f'`"{found[1]}"`'), text)
    text = MARKUP.sub(r"\\\1", text)
    return re.sub(r"\0(\d+)\0", lambda found: kept[int(found[1])], text)


def blocks(text: str) -> Iterator[tuple[str, str]]:
    """The parts of a docstring: ("prose", …), ("code", …), ("Source", …), or a section's name with what it holds."""
    for part in re.split(r"\n\n(?=\S)", text.strip()):
        head, _, rest = part.partition("\n")
        if head.removesuffix(":") in SECTIONS and head.endswith(":"):
            yield head.removesuffix(":"), textwrap.dedent(rest)
        elif part.startswith(">>>"):
            yield "code", part
        elif part.startswith("Source: "):
            yield "Source", part.removeprefix("Source: ")
        else:
            yield "prose", part


def entries(text: str) -> Iterator[tuple[str, str]]:
    """The entries "name: text" of a section, with the lines and lists that belong to each."""
    for entry in re.split(r"\n+(?=\S)", text.strip()):
        head, _, rest = entry.partition("\n")
        names, _, first = head.partition(":")
        yield names, f"{first.strip()}\n{textwrap.dedent(rest)}".strip()


def definition(names: str, text: str, about: Callable[[str], str]) -> str:
    """One entry of a definition list; `about` says more of a name that stands alone, such as its type."""
    several = [name.strip() for name in names.split(",")]
    term = ", ".join(f"`{name}`" for name in several) + (about(several[0]) if len(several) == 1 else "")
    return f"{term}\n: {textwrap.indent(text, '  ').lstrip()}"


def markdown(text: str, link: Link, about: Callable[[str], str]) -> str:
    """A whole docstring: its sections with headings in bold, its entries as definitions, its doctests as code."""
    parts = []
    for kind, part in blocks(text):
        if kind == "prose":
            parts.append(prose(part, link))
        elif kind == "code":
            parts.append(f"```pycon\n{part}\n```")
        elif kind == "Source":
            parts.append(f"**Source**: {prose(part, link)}")
        elif kind in LISTED:
            defined = [definition(names, prose(meant, link), about) for names, meant in entries(part)]
            parts.append("\n\n".join([f"**{SECTIONS[kind]}**", *defined]))
        else:
            parts.append(f"**{SECTIONS[kind]}**\n\n{prose(part, link)}")
    return "\n\n".join(parts)
