"""The papers' claims: predicates over measured numbers, and verdicts that follow the numbers."""

import ast
import copy
import itertools
import math
import re
from pathlib import Path

import claims
import nbformat
import numpy as np
import predicates
import pytest
from predicates import Interval, exactly
from scipy import stats

from studies import glue as gluing

ROOT = Path(__file__).parent.parent
PAPERS = claims.papers()
TRIED = [
    pytest.param(claim, id=f"{paper.key}-{item['item']}-{number}")
    for paper in PAPERS
    for item in [*paper.decided, *({"item": page, "claims": said} for page, said in paper.says.items())]
    for number, claim in enumerate(item["claims"])
    if claim["decides"] is not None
]


def decided(expression, **values):
    def look_up(_, key):
        value = values[key]
        return value if isinstance(value, Interval) else np.array(value, dtype=float)

    return predicates.decide(expression, look_up)


ALIKE = predicates.ALIKE
KLEENE = {"t": "1 < 2", "f": "2 < 1", "u": "n.one < 1", "a": "n.low < n.high"}
AND = {"tt": True, "tf": False, "tu": None, "ff": False, "fu": False, "uu": None}
AND |= {"ta": ALIKE, "fa": False, "ua": None, "aa": ALIKE}
OR = {"tt": True, "tf": True, "tu": True, "ff": False, "fu": None, "uu": None}
OR |= {"ta": True, "fa": ALIKE, "ua": None, "aa": ALIKE}


@pytest.mark.parametrize("order", [1, -1])
def test_what_is_unknown_follows_kleene(order):
    for pair in AND:
        a, b = (KLEENE[one] for one in pair[::order])
        numbers = {"one": [0], "low": [9, 10, 11], "high": [9.1, 9.9, 11]}
        assert decided(f"{a} and {b}", **numbers) is AND[pair]
        assert decided(f"{a} or {b}", **numbers) is OR[pair]
    assert [decided(f"not {one}", **numbers) for one in KLEENE.values()] == [False, True, None, ALIKE]


@pytest.mark.parametrize(
    ("parts", "verdict"),
    [
        ([True, True], "holds"),
        ([False, False], "differs"),
        ([True, False], "holds in part"),
        ([True, None, False], "holds in part"),  # whatever the open part is
        ([True, None], "not settled"),
        ([False, None], "not settled"),
        ([None], "not settled"),
        ([ALIKE], "no difference"),
        ([True, ALIKE], "holds in part"),
        ([True, ALIKE, None], "holds in part"),
        ([False, ALIKE], "differs"),
        ([ALIKE, None], "not settled"),
    ],
)
def test_a_verdict_is_open_where_an_open_part_could_change_it(parts, verdict):
    for order in itertools.permutations(parts):
        assert claims.verdict(list(order)) == verdict


def test_numbers_over_seeds_are_compared_by_students_intervals():
    rng = np.random.default_rng(0)
    a, b = rng.normal(0, 1, 8), rng.normal(0, 1, 8)
    longer = rng.normal(0, 2, 5)
    parts = a.var(ddof=1) / 8, longer.var(ddof=1) / 5
    welch = sum(parts) ** 2 / (parts[0] ** 2 / 7 + parts[1] ** 2 / 4)
    for found, mean, variance, freedom in [
        (predicates.difference(a, b), (a - b).mean(), (a - b).var(ddof=1) / 8, 7),
        (predicates.difference(a, longer), a.mean() - longer.mean(), sum(parts), welch),
        (a, a.mean(), parts[0], 7),
    ]:
        at, margin = predicates.known(found), stats.t.ppf(0.975, freedom) * variance**0.5
        assert (at.low, at.high) == pytest.approx((mean - margin, mean + margin))


def test_where_nothing_differs_five_comparisons_in_a_hundred_are_settled():
    rng = np.random.default_rng(1)
    runs = 2000
    settled = sum(decided("n.a < n.b", a=a, b=b) is not None for a, b in rng.normal(0, 1, (runs, 2, 5)))
    low, high = stats.binom.interval(0.999, runs, 0.05)
    assert low <= settled <= high


def test_two_numbers_are_alike_only_if_they_surely_differ_by_less_than_a_tenth():
    rng = np.random.default_rng(2)
    runs, tenth = 2000, 1.0
    for gap, most in [(tenth, 0.05), (2 * tenth, 0.001)]:  # of 10: a tenth, and more
        pairs = rng.normal([10 - gap, 10], 0.4, (runs, 8, 2)).swapaxes(1, 2)
        said = sum(decided("n.a > n.b", a=a, b=b) is ALIKE for a, b in pairs)
        assert said <= stats.binom.ppf(0.999, runs, most)
    pairs = rng.normal(10, 0.4, (runs, 20, 2)).swapaxes(1, 2)
    answers = [decided("n.a > n.b", a=a, b=b) for a, b in pairs]
    assert answers.count(ALIKE) > 0.9 * runs


@pytest.mark.parametrize(
    ("expression", "answer"),
    [
        ("n.near > n.high", ALIKE),
        ("n.near > 1.0 * n.high", None),  # a threshold is no second measurement
        ("n.near > 10", None),
        ("n.near > n.sure", ALIKE),
        ("n.less < n.high", True),  # even if by less than a tenth
        ("between(9.5, 10.5) > n.high", ALIKE),
        ("between(5, 15) > n.high", None),
        ("n.bound > n.high", None),
        ("effect(n.near, n.high) < effect(n.high, n.far)", True),
        ("effect(n.far, n.high) > effect(n.high, n.far)", ALIKE),
    ],
)
def test_a_difference_below_a_tenth_is_an_answer_of_its_own(expression, answer):
    known = {"near": [9.9, 10.2, 9.9, 10.0], "high": [10.0, 10.1, 10.0, 9.9], "sure": exactly(10)}
    known |= {"less": [9.5, 9.6, 9.5, 9.4], "far": [12.0, 12.2, 12.1, 12.0], "bound": Interval(9, math.inf)}
    assert decided(expression, **known) is answer


@pytest.mark.parametrize(
    ("expression", "answer"),
    [
        ("n.one > 0", None),  # one training settles nothing
        ("n.one > n.many", None),
        ("n.bound > 2", True),  # a valid bound settles what is below it
        ("n.bound < 3", False),
        ("n.bound > 4", None),
        ("n.bound < 4", None),
        ("n.exact < 2", False),
        ("n.exact <= 2", True),
        ("n.many >= 0.8 * n.exact", True),
        ("n.many / n.exact > 1", True),
        ("abs(n.low - n.exact) > 0.5", True),
        ("-n.exact < 0 < n.exact", True),
        ("min(n.many, n.low) < 2", True),
        ("max(n.bound, n.exact) > 2.5", True),
        ("between(1, 3) > n.exact", None),
        ("estimate(n.one, 0.1) > 4", True),
        ("estimate(n.one, 2) > 4", None),
        ("abs(n.unknown) >= 0", True),
        ("1 / n.unknown > 0", None),
    ],
)
def test_a_comparison_is_settled_by_what_is_known(expression, answer):
    known = {"one": [5], "many": [2.9, 3.0, 3.1], "low": [0.9, 1.0, 1.1], "bound": Interval(3, math.inf)}
    known |= {"exact": exactly(2), "unknown": predicates.NOTHING}
    assert decided(expression, **known) is answer


@pytest.mark.parametrize(
    "expression",
    ["n.a", "n.a == 1", "a > 1", "len(n.a) > 1", "min(n.a, key=n.b) > 1", "n.a > "],
)
def test_other_expressions_are_refused(expression):
    with pytest.raises(ValueError, match="a predicate must"):
        decided(expression, a=[1.0, 2.0], b=[1.0, 2.0])


def test_what_cannot_be_evaluated_is_refused():
    with pytest.raises(ZeroDivisionError, match="must not divide by 0"):
        decided("1 / (n.a - 2) > 1", a=exactly(2))
    with pytest.raises(ValueError, match="must be as many"):
        decided("n.a * n.b > 1", a=[1, 2], b=[1, 2, 3])


@pytest.mark.parametrize("claim", TRIED)
def test_numbers_turned_round_turn_the_verdict_round(claim):
    """Some numbers make each predicate true and others false: none is true whatever was measured."""
    tree = ast.parse(claim["decides"], mode="eval").body
    keys = predicates.keys(claim["decides"])
    found = {}
    rng = np.random.default_rng(0)
    for _ in range(3_000):
        values = np.exp(rng.normal(rng.normal(0, 3), rng.choice([0.02, 0.5, 2]), len(keys))) - 0.05
        numbers = dict(zip(keys, map(exactly, values), strict=True))
        found.setdefault(predicates.truth(tree, lambda *of, at=numbers: at[of]), numbers)
        if {True, False} <= set(found):
            break
    assert {True, False} <= set(found)


def notebook_with(folder, text="", caption="", **numbers):
    """An executed notebook that says this, and glued these numbers as studies.glue does."""
    outputs = []
    displayed = gluing.display
    gluing.display = lambda data, raw, metadata: outputs.append(
        nbformat.v4.new_output("display_data", data, metadata=metadata)
    )
    try:
        for name, number in numbers.items():
            gluing.glue(name, number)
    finally:
        gluing.display = displayed
    figure = {"mystnb": {"figure": {"caption": caption}}}
    code = nbformat.v4.new_code_cell("", outputs=outputs, metadata=figure)
    cells = [nbformat.v4.new_markdown_cell(text), code]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), folder / "page.ipynb")
    return claims.Glued(folder)


ROW = {
    "item": "Figure 1",
    "claims": [{"states": "Later is less.", "decides": "of.early > of.late"}],
    "found": "{of.early:.2f} and {of.late:.2f}.",
    "scale": {"ours": "digits, {of.early:seeds} seeds", "paper": "CIFAR-10"},
    "notebook": "page",
}


@pytest.fixture
def one_paper():
    """Makes a paper of one row, changed as asked."""

    def made(**changed):
        read = {"title": "A", "page": "book/a", "short": {"of": "page.of_"}, "items": [copy.deepcopy(ROW) | changed]}
        read["over"] = {"draws of records": ["page.of_*"]}
        return claims.Paper("paper", read)

    return made


def test_a_row_and_its_verdict_follow_the_numbers(one_paper, tmp_path):
    paper = one_paper()
    (item,) = paper.items
    for early, late, verdict in [
        ([3.0, 3.1, 3.2], [1.0, 1.2, 1.1], "holds"),
        ([1.0, 1.2, 1.1], [3.0, 3.1, 3.2], "differs"),
        ([1.0, 3.1, 2.2], [3.0, 1.2, 2.1], "not settled"),
        (3.0, 1.0, "not settled"),
    ]:
        numbers = notebook_with(tmp_path, of_early=early, of_late=late)
        assert claims.verdict(paper.answers(item, numbers)) == verdict
        table = "\n".join(claims.rows(paper, numbers))
        assert f"{np.mean(early):.2f} and {np.mean(late):.2f}." in table
        assert f"digits, {np.size(early)} seeds" in table
        assert claims.shown(verdict) in table


def test_a_row_says_what_its_numbers_are_over_and_which_rest_on_one_canary(one_paper, tmp_path):
    numbers = notebook_with(tmp_path, of_early=[3.0, 3.1, 3.2], of_late=[1.0, 1.2, 1.1])
    paper = one_paper()
    table = "\n".join(claims.rows(paper, numbers))
    assert "*Over* 3 draws of records." in table
    assert claims.HERE not in table
    paper.at_least = ["page.of_early"]  # of single numbers only
    assert claims.HERE not in "\n".join(claims.rows(paper, numbers))
    paper.one_canary = ["page.of_late"]
    assert claims.shown("holds", here=True) in "\n".join(claims.rows(paper, numbers))
    sure = {"states": "It is something.", "decides": "of.early > 0"}
    paper.decided = [ROW | {"claims": [*ROW["claims"], sure]}]
    table = "\n".join(claims.rows(paper, numbers))
    assert table.count("*In this audit.*") == 1  # of the part, not of the row
    assert claims.shown("holds") in table
    paper.over = {}
    with pytest.raises(ValueError, match=r"must say once under 'over' what the numbers of page.of_early are over"):
        list(claims.rows(paper, numbers))


def test_rows_of_one_figure_say_their_scale_once(one_paper, tmp_path):
    numbers = notebook_with(tmp_path, of_early=3.0, of_late=1.0)
    for other, times in [({}, 1), ({"scale": {"ours": "MNIST", "paper": "CIFAR-10"}}, 2)]:
        paper = one_paper()
        paper.decided = [ROW | {"item": "Figure 1, early"}, ROW | {"item": "Figure 1, late"} | other]
        table = "\n".join(claims.rows(paper, numbers))
        assert table.count("*Here*") == table.count("*Paper*") == times


def test_a_sentence_that_the_numbers_do_not_say_is_refused(one_paper, tmp_path):
    paper = one_paper()
    sentence = {"states": "Later is less.", "decides": "of.early > of.late"}
    falls, stays = ([3.0, 3.1, 3.2], [1.0, 1.2, 1.1]), ([1.0, 3.1, 2.2], [3.0, 1.2, 2.1])
    for verdict, (early, late), other in [("holds", falls, stays), ("not settled", stays, falls)]:
        paper.says = {"page": [sentence | {"verdict": verdict}]}
        paper.hold_sentences(notebook_with(tmp_path, "**Later is\nless.**", of_early=early, of_late=late))
        paper.hold_sentences(notebook_with(tmp_path, caption="Later is less.", of_early=early, of_late=late))
        told = rf"page, 'Later is less.': its numbers must decide '{verdict}', got .* from of.early > of.late"
        with pytest.raises(ValueError, match=told):
            paper.hold_sentences(notebook_with(tmp_path, "Later is less.", of_early=other[0], of_late=other[1]))
    with pytest.raises(ValueError, match=r"page, 'Later is less.': book/claims/paper.yaml must quote what"):
        paper.hold_sentences(notebook_with(tmp_path, "Later is more.", of_early=[3, 4], of_late=[1, 2]))


@pytest.mark.parametrize("paper", PAPERS, ids=lambda paper: paper.key)
def test_sentences_that_are_held_stand_in_the_sources(paper):
    sources = claims.Glued(ROOT / "notebooks")
    for page, sentences in paper.says.items():
        text = sources.text(page)
        assert not [one["states"] for one in sentences if one["states"] not in text], page


def test_kinds_of_numbers_are_those_that_the_paper_names(one_paper, tmp_path):
    paper = one_paper()
    numbers = notebook_with(tmp_path, of_early=3.0, of_late=1.0, of_many=[1, 2, 3])
    assert predicates.known(paper.known(numbers, "of", "early")) == predicates.NOTHING
    paper.exact, paper.at_least = ["page.of_late", "page.of_many"], ["page.of_e*"]
    known = {key: predicates.known(paper.known(numbers, "of", key)) for key in ("early", "late", "many")}
    assert known["early"] == Interval(3, math.inf)
    assert known["late"] == exactly(1)
    assert known["many"].low < known["many"].high  # a list over seeds is judged by its seeds


def test_the_tables_are_put_where_a_page_has_its_marks(one_paper, tmp_path, monkeypatch):
    monkeypatch.setattr(claims, "papers", lambda: [one_paper()])
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "book").mkdir()
    notebook_with(tmp_path / "notebooks", of_early=[3, 4, 5], of_late=[1, 2, 3], of_seeds=3)
    page = tmp_path / "book/a.md"
    marks = re.findall(r"<!-- .* -->", (ROOT / f"{PAPERS[0].page}.md").read_text())
    page.write_text("\n\n".join(["# A", *marks]))
    claims.stage(tmp_path)
    made = page.read_text()
    assert "<!--" not in made
    assert "4.00 and 2.00." in made
    assert made.count(claims.shown("holds")) == 2  # what it means, and the row
    page.write_text("# A")
    with pytest.raises(ValueError, match=r"book/a.md must say where the verdicts stand: <!-- the verdicts -->"):
        claims.stage(tmp_path)


def test_a_missing_key_or_a_predicate_that_cannot_be_evaluated_says_where(one_paper, tmp_path):
    numbers = notebook_with(tmp_path, of_early=3.0, of_word="a", of_zero=0)
    paper = one_paper()
    told = r"paper, Figure 1, 'Later is less.': a claim must ask for a key that a notebook glues, got page.of_late: "
    with pytest.raises(ValueError, match=told):
        paper.answers(paper.items[0], numbers)
    with pytest.raises(ValueError, match=r"executed notebook, got page_that_is_not"):
        numbers.value("page_that_is_not", "early")
    for decides in ("of.word > 1", "of.early == 1", "of.early >"):
        paper = one_paper(claims=[{"states": "A.", "decides": decides}])
        with pytest.raises(ValueError, match=r"paper, Figure 1, 'A\.': "):
            paper.answers(paper.items[0], numbers)


@pytest.mark.parametrize("paper", PAPERS, ids=lambda paper: paper.key)
def test_items_are_named_once_and_texts_type_no_verdict(paper):
    names = [item["item"] for item in paper.items]
    assert len(set(names)) == len(names)
    page = (ROOT / f"{paper.page}.md").read_text()
    texts = [item[part] for item in paper.decided for part in ("found",)] + [page]
    for text in texts:
        typed = re.search(r"\b(yes|holds|differs|in part|not settled|nothing against|agrees)\b", text, re.IGNORECASE)
        assert not typed, typed
