"""A Sphinx extension: formulas as MathML, which browsers draw and screen readers read without a script."""

from __future__ import annotations

import re
from html import escape

from docutils import nodes
from math_core import LatexError, LatexToMathML
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.math import get_node_equation_number
from sphinx.writers.html5 import HTML5Translator

LOGGER = logging.getLogger(__name__)
CELL = re.compile(r"(?<!\\)&")  # in TeX it begins with an empty {}, which makes a sign that follows binary
CONVERTER = LatexToMathML(fancy_error=False)


def mathml(node: nodes.math | nodes.math_block) -> str:
    """A formula's MathML; its TeX, and a warning, where math-core cannot read it."""
    tex = CELL.sub("& {}", node.astext())
    try:
        return str(CONVERTER.convert_with_local_state(tex, displaystyle=isinstance(node, nodes.math_block)))
    except LatexError as error:
        LOGGER.warning("math-core cannot read the formula %r: %s", tex, error, location=node)
        return escape(tex)


def visit_inline(self: HTML5Translator, node: nodes.math) -> None:
    self.body.append(self.starttag(node, "span", "", CLASS="math") + mathml(node) + "</span>")
    raise nodes.SkipNode


def visit_block(self: HTML5Translator, node: nodes.math_block) -> None:
    self.body.append(self.starttag(node, "div", CLASS="math"))
    if node["number"]:
        self.body.append(f'<span class="eqno">({get_node_equation_number(self, node)})')
        self.add_permalink_ref(node, "Link to this equation")
        self.body.append("</span>")
    self.body.append(mathml(node) + "</div>\n")
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
