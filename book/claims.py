"""What the papers claim, and the verdicts that our numbers give: the tables of three pages of the book.

A file in book/claims/ lists a paper's figures, tables, algorithms and sentences. What a claim says and what was found
are typed there. Whether it holds is decided by a predicate over the numbers that executed notebooks glued.
"""

from __future__ import annotations

import ast
import html
import math
import os
import re
from collections.abc import Iterator
from fnmatch import fnmatch
from hashlib import sha256
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import predicates
import yaml

ROOT = Path(__file__).parent.parent
GLUED = "application/papermill.record/text/plain"
SVG = "image/svg+xml"
PAPERS = ("pradhan2026beyond", "nasr2023tight", "yoon2024adversarial")
VERDICTS = {
    "holds": ("●", "every part of the claim is true of what was run here, on the data that the row names"),
    "holds in part": ("◐", "some parts are true and others are not"),
    "no difference": ("◍", "neither number is known to be larger, and the two differ by less than a tenth"),
    "differs": ("○", "no part is true, and in at least one the comparison goes the other way"),
    "not settled": ("◌", "what was run does not decide a part that matters"),
}
HERE = "in this audit"
RULE = f"""
Each part of a claim is a predicate over this book's numbers; they are in `book/claims/`.

**Repeats.** A draw takes records, canary, start, batches and noise anew. All settings of a draw share its records. A
comparison between settings takes the mean of the differences within draws, with Student's interval at 95 %. A row says
how many repeats its numbers are over, and of what. What rests on one canary or one audit alone is true *{HERE}*: its
interval covers the noise, and no other canary.

**Measures.** Which of two settings, canaries or scores shows more is decided by estimates: the ε of μ-GDP at the
distance between the two worlds' scores, which does not depend on the number of models. *Exceeds* and *stays below* are
decided by estimates, too; a valid bound may prove *exceeds*, never *stays below*. A part that is about a paper's rule
is decided by the numbers of that rule, and says so.

**Words.** *No difference*: neither number is known to be larger, and the whole interval of their difference is below a
tenth of the larger. *Near* and *tight*: at least 80 % of ε; a number by a rule that is not valid may be above it.
*About as much*: within a tenth. Formulae settle what they
say. Each interval errs in 5 % of cases, and there are many of them."""
OF_PART = {True: "holds", False: "differs", None: "not settled", predicates.ALIKE: predicates.ALIKE}
INSERTED = re.compile(r"\{(\w+)\.(\w+)(?::([^{}]*))?\}")


def as_value(text: str) -> Any:
    return math.inf if text == "inf" else ast.literal_eval(text)


class Glued:
    """The numbers, texts and figures of the executed notebooks in a folder."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.read: dict[str, Any] = {}
        self.glued: dict[str, dict[str, Any]] = {}

    def notebook(self, name: str) -> Any:
        if name not in self.read:
            path = self.folder / f"{name}.ipynb"
            if not path.exists():
                raise ValueError(f"a claim must ask for a key of an executed notebook, got {name}")
            self.read[name] = nbformat.read(path, as_version=4)
        return self.read[name]

    def values(self, name: str) -> dict[str, Any]:
        """All that a notebook glued for other pages."""
        if name not in self.glued:
            outputs = [output for cell in self.notebook(name).cells for output in cell.get("outputs", [])]
            self.glued[name] = {
                output.metadata["scrapbook"]["name"]: as_value(output.data[GLUED])
                for output in outputs
                if GLUED in output.get("data", {})
            }
        return self.glued[name]

    def value(self, name: str, key: str) -> Any:
        """What a notebook glued by this key."""
        values = self.values(name)
        if key not in values:
            raise ValueError(
                f"a claim must ask for a key that a notebook glues, got {name}.{key}: glue it in the last cell of "
                f"notebooks/{name}.ipynb, or mend the claim"
            )
        return values[key]

    def seeds(self, name: str, key: str) -> list[float]:
        """The number over seeds, which is a list of one where there is no list."""
        return list(self.values(name).get(f"{key}_each", [self.value(name, key)]))

    def text(self, page: str) -> str:
        """What a page says, in one line: a Markdown file by its path, or a notebook with its captions."""
        if (ROOT / f"{page}.md").exists():
            return " ".join((ROOT / f"{page}.md").read_text().split())
        cells = self.notebook(page).cells
        captions = [cell.metadata.get("mystnb", {}).get("figure", {}).get("caption", "") for cell in cells]
        texts = [cell.source if cell.cell_type == "markdown" else "" for cell in cells]
        return " ".join(" ".join([*texts, *captions]).split())

    def picture(self, name: str, figure: str) -> str:
        """A small figure of a notebook, as a link to itself; myst-nb names its file by the hash of its contents."""
        for cell in self.notebook(name).cells:
            about = cell.metadata.get("mystnb", {})
            drawn = [output.data[SVG] for output in cell.get("outputs", []) if SVG in output.get("data", {})]
            if drawn and about.get("figure", {}).get("name") == figure:
                file = sha256(os.linesep.join(drawn[0].splitlines()).encode()).hexdigest()
                shown = f'<img src="../_images/{file}.svg" alt="{html.escape(about["image"]["alt"])}">'
                return f'<a class="dpsub-thumbnail" href="../notebooks/{name}.html#{figure.lower()}">{shown}</a>'
        raise ValueError(f"book/claims must name a figure that {name}.ipynb draws, got {figure!r}")


class Paper:
    """A paper with its items."""

    def __init__(self, key: str, read: dict[str, Any]):
        self.key, self.title, self.page = key, str(read["title"]), str(read["page"])
        self.short: dict[str, str] = read.get("short", {})
        self.exact, self.at_least = list(read.get("exact", [])), list(read.get("at least", []))
        self.one_canary: list[str] = read.get("one canary", [])
        self.over: dict[str, list[str]] = read.get("over", {})
        self.items: list[dict[str, Any]] = read["items"]
        self.says: dict[str, list[dict[str, Any]]] = read.get("says", {})
        self.decided = [item for item in self.items if "claims" in item]

    def full(self, notebook: str, key: str) -> tuple[str, str]:
        """A notebook and its key, from what a claim calls them."""
        long, _, prefix = self.short.get(notebook, notebook).partition(".")
        return long, prefix + key

    def known(self, numbers: Glued, notebook: str, key: str) -> predicates.Value:
        """What is known of a key: its seeds, or of a single number what the paper's file says of it."""
        notebook, key = self.full(notebook, key)
        seeds = numbers.seeds(notebook, key)
        if len(seeds) == 1 and among(self.exact, notebook, key):
            return predicates.exactly(seeds[0])
        if len(seeds) == 1 and among(self.at_least, notebook, key):
            return predicates.Interval(float(seeds[0]), math.inf)
        return np.array(seeds, dtype=float)

    def inserted(self, text: str, numbers: Glued) -> str:
        """A text with numbers for {notebook.key:.2f}, and with how many there are for {notebook.key:seeds}."""

        def number(match: re.Match[str]) -> str:
            at = self.full(match[1], match[2])
            if match[3] == "seeds":
                return str(len(numbers.seeds(*at)))
            return re.sub("^-", "−", format(numbers.value(*at), match[3] or "")).replace("%", "\u00a0%")

        return INSERTED.sub(number, text)

    def asked(self, claim: dict[str, Any]) -> list[tuple[str, str]]:
        """The notebooks and their keys that decide a part of a claim."""
        return [self.full(*at) for at in predicates.keys(claim["decides"])] if claim["decides"] else []

    def here(self, claim: dict[str, Any], numbers: Glued) -> bool:
        """Whether a part of a claim rests on one canary or one audit."""
        single = [at for at in self.asked(claim) if len(numbers.seeds(*at)) == 1]
        return any(among(self.one_canary, *at) for at in self.asked(claim)) or any(
            among(self.at_least, *at) for at in single
        )

    def repeats(self, item: dict[str, Any], numbers: Glued) -> list[str]:
        """How many repeats the numbers of an item are over, and of what."""
        counts: dict[str, set[int]] = {}
        for notebook, key in [at for claim in item["claims"] for at in self.asked(claim)]:
            if (count := len(numbers.seeds(notebook, key))) > 1:
                found = [what for what, patterns in self.over.items() if among(patterns, notebook, key)]
                if len(found) != 1:
                    raise ValueError(
                        f"book/claims/{self.key}.yaml must say once under 'over' what the numbers of {notebook}.{key} "
                        f"are over, got {found}"
                    )
                counts.setdefault(found[0], set()).add(count)
        return [f"{' or '.join(map(str, sorted(of)))} {what}" for what, of in counts.items()]

    def answer(self, claim: dict[str, Any], about: str, numbers: Glued) -> predicates.Answer:
        """Whether a part of a claim is true; one without a predicate was not tried."""
        if claim["decides"] is None:
            return None
        try:
            return predicates.decide(claim["decides"], lambda *at: self.known(numbers, *at))
        except (ValueError, TypeError, ZeroDivisionError) as error:
            raise ValueError(f"{self.key}, {about}, {claim['states']!r}: {error}") from error

    def answers(self, item: dict[str, Any], numbers: Glued) -> list[predicates.Answer]:
        """Whether each part of a claim is true."""
        return [self.answer(claim, item["item"], numbers) for claim in item["claims"]]

    def hold_sentences(self, numbers: Glued) -> None:
        """Refuse a page that says in words what its numbers do not."""
        for page, sentences in self.says.items():
            text = numbers.text(page)
            for sentence in sentences:
                where = f"{page}, {sentence['states']!r}"
                if sentence["states"] not in text:
                    raise ValueError(f"{where}: book/claims/{self.key}.yaml must quote what the page says")
                decided = OF_PART[self.answer(sentence, page, numbers)]
                expected = sentence.get("verdict", "holds")
                if decided != expected:
                    raise ValueError(
                        f"{where}: its numbers must decide {expected!r}, got {decided!r} from {sentence['decides']}: "
                        f"say on the page what they show, and in book/claims/{self.key}.yaml what decides it"
                    )


def papers(folder: Path = ROOT / "book" / "claims") -> list[Paper]:
    """The papers with their items."""
    return [Paper(key, yaml.safe_load((folder / f"{key}.yaml").read_text())) for key in PAPERS]


def among(patterns: list[str], notebook: str, key: str) -> bool:
    """Whether a key of a notebook fits one of these patterns."""
    return any(fnmatch(f"{notebook}.{key}", pattern) for pattern in patterns)


def base(item: dict[str, Any]) -> str:
    """The figure, table or algorithm that an item is about: one may have a claim for each protocol."""
    return str(item["item"]).partition(",")[0]


def page_of(item: dict[str, Any]) -> str:
    """The page that tells more about an item."""
    return str(item.get("page") or f"notebooks/{item['notebook']}")


def verdict(answers: list[predicates.Answer]) -> str:
    """The verdict of a claim from its parts: not settled where an open part could change it."""
    if True in answers and set(answers) - {True, None}:
        return "holds in part"
    if None in answers:
        return "not settled"
    return OF_PART[False if False in answers else answers[0]]


def shown(name: str, here: bool = False) -> str:
    """A verdict as a word with a mark of its own, so that no color carries it."""
    said = f"{name}, {HERE}" if here else name
    return f'<span class="dpsub-verdict"><span aria-hidden="true">{VERDICTS[name][0]}</span> {said}</span>'


def stated(paper: Paper, item: dict[str, Any], answers: list[predicates.Answer], numbers: Glued) -> Iterator[str]:
    """What the paper states, each part with a mark of its own where there are several."""
    several = len(answers) > 1
    for claim, answer in zip(item["claims"], answers, strict=True):
        name = OF_PART[answer]
        mark = f'<span role="img" aria-label="{name}">{VERDICTS[name][0]}</span> '
        alone = f" *{HERE.capitalize()}.*" if answer is not None and paper.here(claim, numbers) else ""
        yield f"{mark}{claim['states']}{alone}" if several else claim["states"]


def rows(paper: Paper, numbers: Glued) -> Iterator[str]:
    """The table of a paper's claims; a figure or a scale that is also that of the row above is not repeated."""
    yield ":::{list-table}\n:header-rows: 1\n:widths: 40 60\n:class: dpsub-claims\n"
    yield "* - The paper states\n  - Found here"
    above: dict[str, Any] = {"item": ""}
    for item in paper.decided:
        answers = paper.answers(item, numbers)
        found, here = verdict(answers), all(paper.here(claim, numbers) for claim in item["claims"])
        yield f"* - {{doc}}`{item['item']} </{page_of(item)}>` {shown(found, here and found != 'not settled')}"
        yield from (f"\n    {part}" for part in stated(paper, item, answers, numbers))
        draws = "figure" in item and item["figure"] != above.get("figure")
        picture = f"{numbers.picture(item['notebook'], item['figure'])}\n\n    " if draws else ""
        over = "".join(f"\n\n    *Over* {one}." for one in ["; ".join(paper.repeats(item, numbers))] if one)
        yield f"\n  - {picture}{paper.inserted(item['found'], numbers)}{over}\n"
        if (base(item), item["scale"]) != (base(above), above.get("scale")):
            scale = {name: paper.inserted(text, numbers) for name, text in item["scale"].items()}
            yield f"    *Here*: {scale['ours']}\n\n    *Paper*: {scale['paper']}\n"
        above = item
    yield ":::"


def code(paper: Paper, numbers: Glued) -> Iterator[str]:
    """The table of what a paper describes and dpsub has."""
    yield ":::{list-table}\n:header-rows: 1\n:widths: 30 30 40\n\n* - The paper\n  - Here\n  - What differs"
    for item in (item for item in paper.items if "claims" not in item):
        names = ", ".join(f"`{name}`" for name in item["code"])
        page = f", {{doc}}`/{page_of(item)}`" if "page" in item else ""
        differs = paper.inserted(item.get("differs", "nothing"), numbers)
        yield f"* - {item['item']}: {item['states']}\n  - {names}{page}\n  - {differs}"
    yield ":::"


def stage(staged: Path) -> None:
    """Write the tables of claims into the staged book, from the staged notebooks."""
    numbers = Glued(staged / "notebooks")
    meanings = "\n".join(f"- {shown(name)}: {meaning}." for name, (_, meaning) in VERDICTS.items()) + f"\n{RULE}"
    for paper in papers():
        paper.hold_sentences(numbers)
        page = staged / f"{paper.page}.md"
        text = page.read_text()
        for mark, made in (
            ("the verdicts", meanings),
            ("the claims, made from book/claims when the book is built", "\n".join(rows(paper, numbers))),
            ("what dpsub has, made from book/claims when the book is built", "\n".join(code(paper, numbers))),
        ):
            if f"<!-- {mark} -->" not in text:
                raise ValueError(f"{paper.page}.md must say where {mark.partition(',')[0]} stand: <!-- {mark} -->")
            text = text.replace(f"<!-- {mark} -->", made)
        page.write_text(text)


def main() -> None:
    """Print every verdict with the numbers beside it."""
    numbers = Glued(ROOT / "_build" / "executed")
    for paper in papers():
        for item in paper.decided:
            answers = paper.answers(item, numbers)
            print(f"\n{paper.title}, {item['item']}: {verdict(answers)}")
            for claim, answer in zip(item["claims"], answers, strict=True):
                here = f" {HERE}" if paper.here(claim, numbers) else ""
                print(f"  {OF_PART[answer]}{here}: {claim['states']}\n    {claim['decides']}")
                for name, key in predicates.keys(claim["decides"]) if claim["decides"] else []:
                    at = predicates.known(paper.known(numbers, name, key))
                    value = numbers.value(*paper.full(name, key))
                    print(f"    {name}.{key} = {value:.4g}, known from {at.low:.4g} to {at.high:.4g}")


if __name__ == "__main__":
    main()
