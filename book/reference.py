"""A Sphinx extension for the reference pages: dpsub's public names, the glossary and the bibliography.

autodoc and napoleon describe the names from their docstrings, autosummary lists them, and codeautolink leads from code
to the descriptions and back. What none of them does is here: the text below constants that a room exports, the file of
each name, the pages that use it, and links from names, terms and works in prose.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import os
import re
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from build import REPOSITORY, site_config
from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.pycode import ModuleAnalyzer
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.nodes import make_refnode
from sphinx_codeautolink.extension.directive import DeferredExamples

import dpsub

ROOT = Path(__file__).parent.parent
# Code, a value in quotation marks, and a star of Python's, as in (n, *input_shape).
MARKUP = re.compile(
    r"""(?P<code>(`+).+?\2)|(?P<value>(?<![\w`=])(\w+=)?"[\w.+-]*")|\*(?=\.\w|\w[\w ']*[),])""", re.DOTALL
)
FOLDED = "dpsub-in-full"
MOST_PAGES = 6  # so many pages that use a name are named


def texts_below_constants(module: ModuleType) -> dict[str, str]:
    """The strings below assignments in a module's files: what its constants are."""
    file = Path(module.__file__ or "")
    found: dict[str, str] = {}
    for path in sorted(file.parent.glob("*.py")) if file.name == "__init__.py" else [file]:
        for node, below in itertools.pairwise(ast.parse(path.read_text()).body):
            target = node.target if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [None])[0]
            text = below.value if isinstance(below, ast.Expr) else None
            if isinstance(target, ast.Name) and isinstance(text, ast.Constant):
                found[target.id] = str(text.value)
    return found


def public_names(module: ModuleType) -> list[str]:
    """`__all__`, or else the functions and classes that the module defines itself."""
    own = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
    return list(getattr(module, "__all__", [name for name in own if not name.startswith("_")]))


@cache
def repository_of(environment: str | None) -> dict[str, str] | None:
    """The public repository, which the environment or else _config.yml names, read once and not for every name."""
    return site_config(ROOT / "_config.yml").get("repository")


def source_of(value: Any) -> str:
    """The file of an object, as a link where there is a public repository."""
    path = Path(inspect.getsourcefile(inspect.unwrap(value)) or "").resolve().relative_to(ROOT).as_posix()
    repository = repository_of(os.environ.get(REPOSITORY))
    if not repository:
        return f"**File**: ``{path}``"
    line = "" if isinstance(value, ModuleType) else f"#L{inspect.getsourcelines(value)[1]}"
    return f"**File**: `{path} <{repository['url']}/blob/{repository['branch']}/{path}{line}>`__"


def marked_up(found: re.Match[str]) -> str:
    """What reStructuredText has for a piece of a docstring."""
    if found["code"]:
        return found["code"]
    return f"``{found['value']}``" if found["value"] else r"\*"


def complete(app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Add to a docstring what autodoc leaves out."""
    parts = "\n".join(lines).split("\n\n")
    lines[:] = "\n\n".join(part if ">>> " in part else MARKUP.sub(marked_up, part) for part in parts).split("\n")
    lines[:] = [re.sub("^Source: ", "**Source**: ", line) for line in lines]
    if what in ("module", "class", "function"):
        lines += ["", source_of(value)]
    if what in ("class", "function"):
        app.config.codeautolink_inventory_map[f"{value.__module__}.{value.__qualname__}"] = name
        lines += ["", f".. autolink-examples:: {name}"]
    if what == "module":
        commented = ModuleAnalyzer.for_module(name).attr_docs  # autodoc sees those in the module's own file only
        commented.update({("", constant): text.splitlines() for constant, text in texts_below_constants(value).items()})
        if not isinstance(options.get("members"), list):
            public = [one for one in public_names(value) if one not in (options.get("exclude-members") or ())]
            lines += ["", ".. autosummary::", "   :nosignatures:", "", *(f"   {one}" for one in public)]


def described(env: BuildEnvironment, text: str) -> tuple[str, str, str] | None:
    """The page, the anchor and the full name of what a text names, such as `accounting.epsilon` or `CanaryPair`."""
    objects = env.get_domain("py").objects
    known = getattr(env, "dpsub_names", None)
    if known is None:
        names = [name for name, found in objects.items() if not found.aliased]
        known = env.dpsub_names = {name.rpartition(".")[2]: name for name in names}
    room, _, last = text.removeprefix("dpsub.").rpartition(".")
    module = getattr(dpsub, room, None)
    full = f"{module.__name__}.{last}" if isinstance(module, ModuleType) else text
    if full not in objects and (text == f"dpsub.{last}" or text[:1].isupper()):
        full = known.get(last, full)
    return (objects[full].docname, objects[full].node_id, full) if full in objects else None


def around(node: nodes.Element, kinds: Any) -> nodes.Element | None:
    """The nearest element of these kinds that a node is in."""
    while node.parent is not None and not isinstance(node.parent, kinds):
        node = node.parent
    return node.parent


def of_the_same_module(code: nodes.Element) -> str:
    """The full name that a docstring's code has if it is one of its own module and no parameter."""
    node = around(code, addnodes.desc)
    if node is None or code.astext() in {name.astext() for name in node[0].findall(addnodes.desc_sig_name)}:
        return ""
    return f"{node[0].get('module')}.{code.astext()}"


class LinksOfNames(SphinxPostTransform):
    """Code in prose that is a public name leads to its description."""

    default_priority = 400

    def run(self, **options: Any) -> None:
        for code in list(self.document.findall(nodes.literal)):
            found = described(self.env, code.astext()) or described(self.env, of_the_same_module(code))
            if found and not around(code, nodes.reference | nodes.title):
                page, anchor, full = found
                builder = self.app.builder
                code.replace_self(make_refnode(builder, self.env.docname, page, anchor, code.deepcopy(), full))


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
    wanted = list(document.findall(DeferredExamples))
    users: dict[str, list[str]] = {}
    for other in app.env.collect_relations() if wanted else ():  # in the order of the contents
        blocks = app.env.sphinx_codeautolink_transforms.get(other, ())
        for name in {name.resolved_location for block in blocks for name in block.names}:
            if not other.startswith("book/api"):
                users.setdefault(name, []).append(other)
    for deferred in wanted:
        found = users.get(deferred.ref, [])
        parts: list[nodes.Node] = [nodes.strong("", "Used in"), nodes.Text(": ")] if found else []
        for i, other in enumerate(found[:MOST_PAGES]):
            title = nodes.inline("", app.env.titles[other].astext())
            parts += [nodes.Text(", ")] * (i > 0) + [make_refnode(app.builder, page, other, "", title)]
        parts += [nodes.Text(f", and {len(found) - MOST_PAGES} more")] * (len(found) > MOST_PAGES)
        deferred.parent.replace_self(nodes.paragraph("", "", *parts) if parts else [])


def fold(app: Sphinx, document: nodes.document) -> None:
    """Show of each function and class its first sentence, and the rest when it is unfolded."""
    for content in document.findall(addnodes.desc_content):
        if len(content) > 1 and around(content.parent, addnodes.desc) is None:
            summary = nodes.raw("", f"<details class='{FOLDED}'><summary>In full</summary>", format="html")
            content.insert(1, summary)
            content += nodes.raw("", "</details>", format="html")


def note_entries(app: Sphinx, document: nodes.document) -> None:
    """Let links to `glossary.md#term-auc` and `bibliography.md#curie1900` lead there, as links to headings do."""
    entries = {
        "book/glossary": [name for term in document.findall(nodes.term) for name in term["ids"]],
        "book/bibliography": list(app.env.get_domain("cite").bibdata.data.entries),
    }.get(app.env.docname, [])
    app.env.metadata[app.env.docname].setdefault("myst_slugs", {}).update(
        {name.lower(): (0, name, name) for name in entries}
    )


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("autodoc-process-docstring", complete, priority=400)  # before napoleon
    app.connect("doctree-read", without_untitled_sections, priority=400)
    app.connect("doctree-read", note_entries)
    app.connect("doctree-read", fold, priority=900)
    app.connect("doctree-resolved", used_in, priority=400)
    app.connect("missing-reference", of_a_type)
    app.add_post_transform(LinksOfNames)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
