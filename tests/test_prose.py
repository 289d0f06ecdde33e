"""What the pages that teach must be like, and that every scenario and figure has a page of its own."""

import pytest
from prose import file_of, measure, parts

MAIN = ("Read an ε", "Audit", "Your code", "What leaks")
SCENARIOS_AND_FIGURES = [
    *(f"S{k}" for k in range(1, 7)),
    *(f"Figure {k}" for k in ("2", "3", "4", "5", "A1", "A2", "A3", "A4", "A5", "A6")),
]


@pytest.mark.parametrize("page", [page for part in MAIN for page in parts()[part]])
def test_a_page_that_teaches_is_short_and_no_paragraph_is_crowded_with_numbers(page):
    read = measure(file_of(page))
    assert read.crowded == []
    assert read.words <= 2_500
    assert read.tables <= 2


def test_every_scenario_and_figure_of_beyond_membership_has_a_notebook():
    titles = [measure(file_of(page)).title for page in parts()["The papers' figures"] if page.startswith("notebooks/")]
    assert [name for name in SCENARIOS_AND_FIGURES if not any(t.startswith(f"{name}:") for t in titles)] == []


def test_numbers_are_what_a_reader_counts_as_numbers(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# Page 1\n\nIn 2026 Figure 3 of S2 ({eval}`f'{a:.2f}'`) has $n = 4$ and `5` of [six](seven_8.md), "
        "9 and 10.\n\n"
        "1, 2, 3 and 4.\n\n:::{exercise} Five\n1, 2, 3, 4 and 5.\n:::\n\n| a | b |\n|---|---|\n| 1 | 2 |\n"
    )
    read = measure(page)
    assert read.title == "Page 1"
    assert read.crowded == ["1, 2, 3 and 4."]
    assert read.tables == 1
    assert read.numbers == 3 + 4 + 5 + 2 + 1
