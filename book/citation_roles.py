"""A Sphinx extension: the bibliography is a list of list items, as assistive technology expects of a list.

docutils gives its entries the role doc-biblioentry inside an element with the role list, whose children must be list
items: axe calls it a critical error (aria-required-children).
"""

from __future__ import annotations

from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator


def visit_citation(self: HTML5Translator, node: nodes.citation) -> None:
    """Begin an entry, as Sphinx does, with the role that its list asks for."""
    HTML5Translator.visit_citation(self, node)
    self.body[-1] = self.body[-1].replace('role="doc-biblioentry"', 'role="listitem"')


def depart_citation(self: HTML5Translator, node: nodes.citation) -> None:
    """End an entry."""
    HTML5Translator.depart_citation(self, node)


def setup(app: Sphinx) -> dict[str, Any]:
    """Take the place of Sphinx's own way to write an entry."""
    app.add_node(nodes.citation, override=True, html=(visit_citation, depart_citation))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
