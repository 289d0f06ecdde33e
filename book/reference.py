"""A Sphinx extension for the reference pages: dpsub's public names, the glossary and the bibliography.

autodoc and napoleon describe the names from their docstrings, autosummary lists them, viewcode shows their source, and
codeautolink leads from code to the descriptions and back. What none of them does is here: the text below constants that
a room exports, and links from names, terms and works in prose.
"""

from __future__ import annotations

import ast
import itertools
import re
from pathlib import Path
from types import ModuleType
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.pycode import ModuleAnalyzer
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.nodes import make_refnode
from sphinx_codeautolink.extension.directive import DeferredExamples

import dpsub

# Code stays; a star of Python's, as in (n, *input_shape), is no emphasis.
CODE_OR_STAR = re.compile(r"(`+).+?\1|\*(?=\.\w|\w[\w ']*[),])", re.DOTALL)

MOST_PAGES = 6  # so many pages that use a name are named


def texts_below_constants(module: ModuleType) -> dict[str, str]:
    """The strings below assignments in a module's files: what its constants are."""
    file = Path(module.__file__ or "")
    texts: dict[str, str] = {}
    for path in sorted(file.parent.glob("*.py")) if file.name == "__init__.py" else [file]:
        for node, below in itertools.pairwise(ast.parse(path.read_text()).body):
            target = node.target if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [None])[0]
            text = below.value if isinstance(below, ast.Expr) else None
            if isinstance(target, ast.Name) and isinstance(text, ast.Constant):
                texts[target.id] = str(text.value)
    return texts


def public_names(module: ModuleType) -> list[str]:
    """`__all__`, or else the functions and classes that the module defines itself."""
    own = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
    return list(getattr(module, "__all__", [name for name in own if not name.startswith("_")]))


def complete(app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Add to a docstring what autodoc leaves out: who uses a name, the names and constants of a module."""
    parts = "\n".join(lines).split("\n\n")
    parts = [part if ">>> " in part else CODE_OR_STAR.sub(lambda m: m[0] if m[1] else r"\*", part) for part in parts]
    lines[:] = "\n\n".join(parts).split("\n")
    if what in ("class", "function"):
        app.config.codeautolink_inventory_map[f"{value.__module__}.{value.__qualname__}"] = name
        lines += ["", f".. autolink-examples:: {name}"]
    if what == "module":
        commented = ModuleAnalyzer.for_module(name).attr_docs  # autodoc sees those in the module's own file only
        commented.update({("", constant): text.splitlines() for constant, text in texts_below_constants(value).items()})
        if not isinstance(options.get("members"), list):
            public = [other for other in public_names(value) if other not in (options.get("exclude-members") or ())]
            lines += ["", ".. autosummary::", "   :nosignatures:", "", *(f"   {other}" for other in public)]


def described(env: BuildEnvironment, text: str) -> tuple[str, str, str] | None:
    """The page, the anchor and the full name of what a text names, such as `accounting.epsilon` or `CanaryPair`."""
    objects = env.get_domain("py").objects
    room, _, last = text.removeprefix("dpsub.").rpartition(".")
    module = getattr(dpsub, room, None)
    full = f"{module.__name__}.{last}" if isinstance(module, ModuleType) else text
    if full not in objects and (text == f"dpsub.{last}" or text[:1].isupper()):
        names = {name.rpartition(".")[2]: name for name, entry in objects.items() if not entry.aliased}
        full = names.get(last, full)
    return (objects[full].docname, objects[full].node_id, full) if full in objects else None


class LinksOfNames(SphinxPostTransform):
    """Code in prose that is a public name leads to its description."""

    default_priority = 400

    def run(self, **options: Any) -> None:
        for code in list(self.document.findall(nodes.literal)):
            found = described(self.env, code.astext())
            parent = code.parent
            while parent is not None and not isinstance(parent, nodes.reference | nodes.title):
                parent = parent.parent
            if found and parent is None:
                page, anchor, full = found
                link = make_refnode(self.app.builder, self.env.docname, page, anchor, code.deepcopy(), full)
                code.replace_self(link)


def of_a_type(app: Sphinx, env: BuildEnvironment, node: nodes.Element, shown: nodes.Element) -> nodes.Element | None:
    """A type of a signature, which names it as its file does."""
    found = described(env, node["reftarget"]) if node.get("refdomain") == "py" else None
    return make_refnode(app.builder, node["refdoc"], *found[:2], shown, found[2]) if found else None


def without_untitled_sections(app: Sphinx, document: nodes.document) -> None:
    """Exercises and algorithms put their text into sections without a title, which codeautolink counts wrongly."""
    for section in list(document.findall(nodes.section)):
        if not any(isinstance(child, nodes.title) for child in section.children):
            section.replace_self(nodes.compound("", *section.children, classes=section["classes"]))


def used_in(app: Sphinx, document: nodes.document, page: str) -> None:
    """Say of each name which pages use it, where codeautolink would list every section of them."""
    for deferred in list(document.findall(DeferredExamples)):
        blocks = app.env.sphinx_codeautolink_transforms
        names = {other: {name.resolved_location for block in blocks[other] for name in block.names} for other in blocks}
        users = [other for other in app.env.collect_relations() if deferred.ref in names.get(other, ())]
        users = [other for other in users if not other.startswith("book/api")]
        parts = [nodes.strong("", "Used in"), nodes.Text(": ")]
        for other in users[:MOST_PAGES]:
            title = nodes.inline("", app.env.titles[other].astext())
            parts += [make_refnode(app.builder, page, other, "", title), nodes.Text(", ")]
        parts[-1:] = [nodes.Text(f", and {len(users) - MOST_PAGES} more")] if len(users) > MOST_PAGES else []
        deferred.parent.replace_self(nodes.paragraph("", "", *parts) if users else [])


def note_entries(app: Sphinx, document: nodes.document) -> None:
    """Let links to `glossary.md#term-auc` and `bibliography.md#curie1900` lead there, as links to headings do."""
    entries = {
        "book/glossary": [name for term in document.findall(nodes.term) for name in term["ids"]],
        "book/bibliography": list(app.env.get_domain("cite").bibdata.data.entries),
    }.get(app.env.docname, [])
    slugs = app.env.metadata[app.env.docname].setdefault("myst_slugs", {})
    slugs.update({name.lower(): (0, name, name) for name in entries})


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("autodoc-process-docstring", complete, priority=400)  # before napoleon
    app.connect("doctree-read", without_untitled_sections, priority=400)
    app.connect("doctree-read", note_entries)
    app.connect("doctree-resolved", used_in, priority=400)  # before codeautolink
    app.connect("missing-reference", of_a_type)
    app.add_post_transform(LinksOfNames)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
