"""Formulas become MathML when the book is built."""

import formulas
from bs4 import BeautifulSoup
from docutils import nodes


def shown(node):
    return BeautifulSoup(formulas.mathml(node), "html.parser").math


def test_a_formula_of_a_line_and_one_of_its_own_differ():
    assert shown(nodes.math("", r"\varepsilon_S")).msub.get_text() == "εS"
    assert "display" not in shown(nodes.math("", "x")).attrs
    assert shown(nodes.math_block("", "x"))["display"] == "block"


def test_lines_are_aligned_and_a_sign_that_begins_one_is_binary():
    lines = shown(nodes.math_block("", r"\begin{aligned} a &\le b \\ & - c \end{aligned}")).select("mtr")
    assert [[cell.get_text() for cell in line.select("mtd")] for line in lines] == [["a", "≤b"], ["", "−c"]]
    assert lines[1].select("mo")[0].find_previous_sibling("mrow") is not None


def test_what_cannot_be_read_is_shown_as_it_is_and_warned_of(monkeypatch):
    said = []
    monkeypatch.setattr(formulas.LOGGER, "warning", lambda text, *values, location: said.append(text % values))
    node = nodes.math("", r"\unheard < 1")
    assert formulas.mathml(node) == r"\unheard &lt; 1"
    assert len(said) == 1
    assert "unheard" in said[0]
