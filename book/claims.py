"""What the papers claim, and the verdicts that our numbers give: the tables of three pages of the book.

A file in book/claims/ lists a paper's figures, tables, algorithms and sentences. What a claim says and what was found
are typed there. Whether it holds is decided by a predicate over the numbers that executed notebooks glued.
"""

from __future__ import annotations

import ast
import math
import re
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import predicates
import yaml
from predicates import Interval, Value
from thumbnails import picture

import dpsub

ROOT = Path(__file__).parent.parent
GLUED = "application/papermill.record/text/plain"
PAPERS = ("pradhan2026beyond", "nasr2023tight", "yoon2024adversarial")
ITEMS = {  # what the papers have, listed from their pages
    "pradhan2026beyond": [
        *(f"Figure {n}" for n in (1, 2, 3, 4, 5, "A1", "A2", "A3", "A4", "A5", "A6")),
        *("Table 1", "Table A1"),
        *(f"Algorithm {n}" for n in range(1, 6)),
    ],
    "nasr2023tight": [
        *(f"Figure {n}" for n in range(1, 20)), "Table 1", *(f"Algorithm {n}" for n in range(1, 5)),
    ],
    "yoon2024adversarial": [*(f"Figure {n}" for n in range(1, 9)), "Table 1", "Algorithm 1", "Algorithm 2"],
}  # fmt: skip
VERDICTS = {
    "holds": ("●", "every part of the claim is true of what was run here, on the data that the row names"),
    "holds in part": ("◐", "some parts are true and others false"),
    "differs": ("○", "no part is true: in each, at least one comparison goes the other way"),
    "not settled": ("◌", "what was run does not decide a part that matters"),
}
RULE = """
Each part of a claim is a predicate over this book's numbers; they are in `book/claims/`. *Near* and *tight* mean at
least 80 % of ε, *hardly* and *little* less than a tenth, *about as much* within a tenth, *weaken* at least a tenth.
Numbers over seeds are compared by the mean of their differences, with Student's interval at 95 %. Where it holds both
answers, the part is not settled. One training or audit alone settles nothing, except that a valid bound shows that ε is
above it. Formulae settle what they say. Each interval errs in 5 % of cases, and there are many of them."""
OF_PART = {True: "holds", False: "differs", None: "not settled"}
INSERTED = re.compile(r"\{(\w+)\.(\w+)(?::([^{}]*))?\}")


class Glued:
    """The numbers that the executed notebooks in a folder glued."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.read: dict[str, dict[str, Any]] = {}

    def value(self, notebook: str, key: str) -> Any:
        """What a notebook glued by this key."""
        if notebook not in self.read:
            path = self.folder / f"{notebook}.ipynb"
            if not path.exists():
                raise ValueError(f"a claim must ask for a key of an executed notebook, got {notebook}.{key}")
            self.read[notebook] = glued(path)
        if key not in self.read[notebook]:
            raise ValueError(
                f"a claim must ask for a key that a notebook glues, got {notebook}.{key}: glue it in the last cell of "
                f"notebooks/{notebook}.ipynb, or mend the claim"
            )
        return self.read[notebook][key]

    def seeds(self, notebook: str, key: str) -> list[float]:
        """The number over seeds, which is a list of one where there is no list."""
        one = self.value(notebook, key)
        return list(self.read[notebook].get(f"{key}_each", [one]))

    def text(self, page: str) -> str:
        """What a page says, in one line: a Markdown file by its path, or a notebook with its captions."""
        written = ROOT / f"{page}.md"
        if written.exists():
            return " ".join(written.read_text().split())
        cells = nbformat.read(self.folder / f"{page}.ipynb", as_version=4).cells
        texts = [cell.source if cell.cell_type == "markdown" else caption(cell) for cell in cells]
        return " ".join(" ".join(texts).split())


def caption(cell: Any) -> str:
    """The caption of a cell's figure, which a staged notebook has in place of a cell of its own."""
    return str(cell.metadata.get("mystnb", {}).get("figure", {}).get("caption", ""))


def glued(notebook: Path) -> dict[str, Any]:
    """What an executed notebook left for other pages."""
    outputs = [one for cell in nbformat.read(notebook, as_version=4).cells for one in cell.get("outputs", [])]
    return {
        one.metadata["scrapbook"]["name"]: as_value(one.data[GLUED]) for one in outputs if GLUED in one.get("data", {})
    }


def as_value(text: str) -> Any:
    return math.inf if text == "inf" else ast.literal_eval(text)


class Paper:
    """A paper with its items."""

    def __init__(self, key: str, read: dict[str, Any]):
        self.key, self.title, self.page = key, str(read["title"]), str(read["page"])
        self.short: dict[str, str] = read.get("short", {})
        self.kinds = {kind: list(read.get(kind, [])) for kind in ("exact", "at least")}
        self.items: list[dict[str, Any]] = read["items"]
        self.says: dict[str, list[dict[str, Any]]] = read.get("says", {})
        for item in self.items:
            check(item, key)
        there = {base(item) for item in self.items}
        missing = [name for name in ITEMS[key] if name not in there]
        if missing:
            raise ValueError(f"book/claims/{key}.yaml must have every item of the paper, it lacks {', '.join(missing)}")

    def full(self, notebook: str, key: str) -> tuple[str, str]:
        """A notebook and its key, from what a claim calls them."""
        long, _, prefix = self.short.get(notebook, notebook).partition(".")
        return long, prefix + key

    def look_up(self, numbers: Glued) -> predicates.Lookup:
        """What is known of a key: its seeds, or of a single number what the paper's file says of it."""

        def found(notebook: str, key: str) -> Value:
            of = self.full(notebook, key)
            name, seeds = ".".join(of), numbers.seeds(*of)
            if len(seeds) > 1:
                return np.array(seeds, dtype=float)
            if any(fnmatch(name, one) for one in self.kinds["exact"]):
                return predicates.exactly(float(seeds[0]))
            if any(fnmatch(name, one) for one in self.kinds["at least"]):
                return Interval(float(seeds[0]), math.inf)
            return np.array(seeds, dtype=float)

        return found

    def told(self, text: str, numbers: Glued) -> str:
        """A text with numbers for {notebook.key:.2f}, and with how many there are for {notebook.key:seeds}."""

        def number(at: re.Match[str]) -> str:
            of = self.full(at[1], at[2])
            if at[3] == "seeds":
                return str(len(numbers.seeds(*of)))
            return re.sub("^-", "−", format(numbers.value(*of), at[3] or "")).replace("%", "\u00a0%")

        return INSERTED.sub(number, text)

    def answer(self, claim: dict[str, Any], about: str, numbers: Glued) -> bool | None:
        """Whether a part of a claim is true; one without a predicate was not tried."""
        try:
            tried = claim["decides"] is not None
            return predicates.decide(claim["decides"], self.look_up(numbers)) if tried else None
        except (ValueError, TypeError, ZeroDivisionError) as error:
            raise ValueError(f"{self.key}, {about}, {claim['states']!r}: {error}") from error

    def answers(self, item: dict[str, Any], numbers: Glued) -> list[bool | None]:
        """Whether each part of a claim is true."""
        return [self.answer(claim, item["item"], numbers) for claim in item["claims"]]

    def hold_sentences(self, numbers: Glued) -> None:
        """Refuse a page that says in words what its numbers do not."""
        for page, sentences in self.says.items():
            text = numbers.text(page)
            for one in sentences:
                where = f"{page}, {one['states']!r}"
                if one["states"] not in text:
                    raise ValueError(f"{where}: book/claims/{self.key}.yaml must quote what the page says")
                found = OF_PART[self.answer(one, page, numbers)]
                expected = one.get("verdict", "holds")
                if found != expected:
                    raise ValueError(
                        f"{where}: its numbers must decide {expected!r}, got {found!r} from {one['decides']}: say on "
                        f"the page what they show, and in book/claims/{self.key}.yaml what decides it"
                    )

    @cached_property
    def decided(self) -> list[dict[str, Any]]:
        """The items that claim something."""
        return [item for item in self.items if "claims" in item]


def base(item: dict[str, Any]) -> str:
    """The figure, table or algorithm that an item is about: one may have a claim for each protocol."""
    return str(item["item"]).partition(",")[0]


def check(item: dict[str, Any], paper: str) -> None:
    """Refuse an item that lacks what its row shows."""
    about = f"book/claims/{paper}.yaml, {item.get('item', item)}"
    if "claims" not in item:
        absent = [name for name in ("item", "states", "code") if name not in item]
        if absent:
            raise ValueError(f"{about}: an item must have claims, or else states and code; it lacks {absent[0]}")
        for name in item["code"]:
            if not exists(name):
                raise ValueError(f"{about}: code must name what dpsub or the repository has, got {name!r}")
        return
    for name in ("found", "scale"):
        if not item.get(name):
            raise ValueError(f"{about}: a row must have {name}, the numbers and what they were measured on")
    if set(item["scale"]) != {"ours", "paper"}:
        raise ValueError(f"{about}: scale must say ours and paper, got {', '.join(item['scale']) or 'neither'}")
    for claim in item["claims"]:
        if set(claim) != {"states", "decides"}:
            raise ValueError(f"{about}: a claim must have states and decides, got {', '.join(claim)}")


def exists(name: str) -> bool:
    """Whether dpsub has a name such as crafters.gradient, or the repository a file."""
    if "/" in name:
        return (ROOT / name).exists()
    found: Any = dpsub
    for part in name.removeprefix("dpsub.").split("."):
        found = getattr(found, part, None)
    return found is not None


def papers(folder: Path = ROOT / "book" / "claims") -> list[Paper]:
    """The papers with their items."""
    return [Paper(key, yaml.safe_load((folder / f"{key}.yaml").read_text())) for key in PAPERS]


def verdict(answers: list[bool | None]) -> str:
    """The verdict of a claim from its parts: not settled where an open part could change it."""
    if True in answers and False in answers:
        return "holds in part"
    return "not settled" if None in answers else "holds" if answers[0] else "differs"


def page_of(item: dict[str, Any]) -> str:
    """The page that tells more about an item."""
    return str(item.get("page") or f"notebooks/{item['notebook']}")


def shown(name: str) -> str:
    """A verdict as a word with a mark of its own, so that no color carries it."""
    return f'<span class="dpsub-verdict"><span aria-hidden="true">{VERDICTS[name][0]}</span> {name}</span>'


def stated(item: dict[str, Any], answers: list[bool | None]) -> list[str]:
    """What the paper states, each part with a mark of its own where there are several."""
    parts = [str(claim["states"]) for claim in item["claims"]]
    if len(parts) == 1:
        return parts
    return [f"{mark(answer)} {part}" for part, answer in zip(parts, answers, strict=True)]


def mark(answer: bool | None) -> str:
    """The mark of a part, with a word for those who do not see it."""
    name = OF_PART[answer]
    return f'<span role="img" aria-label="{name}">{VERDICTS[name][0]}</span>'


def rows(of: Paper, numbers: Glued) -> Iterator[str]:
    """The table of a paper's claims; a figure or a scale that is also that of the row above is not repeated."""
    yield ":::{list-table}\n:header-rows: 1\n:widths: 40 60\n:class: dpsub-claims\n"
    yield "* - The paper states\n  - Found here"
    above: dict[str, Any] = {"item": ""}
    for item in of.decided:
        answers = of.answers(item, numbers)
        yield f"* - {{doc}}`{item['item']} </{page_of(item)}>` {shown(verdict(answers))}"
        yield from (f"\n    {part}" for part in stated(item, answers))
        draws = "figure" in item and item["figure"] != above.get("figure")
        ours = f"{picture(item, numbers.folder)}\n\n    " if draws else ""
        yield f"\n  - {ours}{of.told(item['found'], numbers)}\n"
        if (base(item), item["scale"]) != (base(above), above.get("scale")):
            scale = {name: of.told(text, numbers) for name, text in item["scale"].items()}
            yield f"    *Here*: {scale['ours']}\n\n    *Paper*: {scale['paper']}\n"
        above = item
    yield ":::"


def code(of: Paper, numbers: Glued) -> Iterator[str]:
    """The table of what a paper describes and dpsub has."""
    yield ":::{list-table}\n:header-rows: 1\n:widths: 30 30 40\n\n* - The paper\n  - Here\n  - What differs"
    for item in (item for item in of.items if "claims" not in item):
        names = ", ".join(f"`{name}`" for name in item["code"])
        page = f", {{doc}}`/{page_of(item)}`" if "page" in item else ""
        differs = of.told(item.get("differs", "nothing"), numbers)
        yield f"* - {item['item']}: {item['states']}\n  - {names}{page}\n  - {differs}"
    yield ":::"


def meanings() -> str:
    """What the verdicts mean."""
    return "\n".join(f"- {shown(name)}: {meaning}." for name, (_, meaning) in VERDICTS.items()) + f"\n{RULE}"


def put(page: Path, mark: str, made: str) -> None:
    """Put what was made where a page has its mark."""
    text, at = page.read_text(), f"<!-- {mark} -->"
    if at not in text:
        raise ValueError(f"book/{page.name} must say where {mark.partition(',')[0]} stand: {at}")
    page.write_text(text.replace(at, made))


def stage(staged: Path) -> None:
    """Write the tables of claims into the staged book, from the staged notebooks."""
    numbers = Glued(staged / "notebooks")
    for of in papers():
        of.hold_sentences(numbers)
        page = staged / f"{of.page}.md"
        put(page, "the verdicts", meanings())
        put(page, "the claims, made from book/claims when the book is built", "\n".join(rows(of, numbers)))
        put(page, "what dpsub has, made from book/claims when the book is built", "\n".join(code(of, numbers)))


def main(executed: Path = ROOT / "_build" / "executed") -> None:
    """Print every verdict with the numbers beside it."""
    numbers = Glued(executed)
    for of in papers():
        for item in of.decided:
            answers = of.answers(item, numbers)
            print(f"\n{of.title}, {item['item']}: {verdict(answers)}")
            for claim, answer in zip(item["claims"], answers, strict=True):
                print(f"  {OF_PART[answer]}: {claim['states']}\n    {claim['decides']}")
                for name, key in dict.fromkeys(predicates.keys(claim["decides"]) if claim["decides"] else []):
                    at = predicates.known(of.look_up(numbers)(name, key))
                    value = numbers.value(*of.full(name, key))
                    print(f"    {name}.{key} = {value:.4g}, known from {at.low:.4g} to {at.high:.4g}")


if __name__ == "__main__":
    main(*(Path(one) for one in sys.argv[1:]))
