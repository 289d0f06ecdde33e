"""What a reader meets on a page: its words, the numbers of each paragraph, its tables, figures and lines of code.

`python tests/prose.py [PAGE ...]` prints them, and the paragraphs with more numbers than a reader takes in.
"""

import json
import re
import sys
from pathlib import Path
from typing import NamedTuple

import yaml

ROOT = Path(__file__).parent.parent
MOST_NUMBERS = 3  # of a paragraph; more belong into a table, a caption or the journal
VALUE = re.compile(r"\{(?:eval|glue:?\w*)\}`[^`]*`")
# What is no number to a reader: code, formulas, addresses, directives, names such as Figure 3 or S2, years of works.
OTHER = re.compile(
    r"(?s)```.*?```|`[^`\n]*`|\$[^$]*\$|\]\([^)]*\)|^[ \t]*:\w[\w-]*:.*?$|^\(.*?\)=$|\{\w+\}`[^`]*`"
    r"|\b(?:Figures?|Tables?|Sections?|Appendix|Theorems?|Algorithms?|Equations?|Propositions?|Python)\s[\dA-Z][\d.]*"
    r"(?:(?:,| and| to|–)\s?[\dA-Z][\d.]*)*|\(\d{4}\)|\b(?:19|20)\d\d\b",
    re.MULTILINE | re.IGNORECASE,
)
NUMBER = re.compile(r"(?<![\w.,])\d(?:[\d.,]*\d)?")
WORD = re.compile(r"[^\W\d_][\w'’-]*")
SENTENCE = re.compile(r"(?<=[.?!])\s+")
FENCE = re.compile(r"^:{3,}(?:\{(\w[\w:-]*)\})?.*$")


class Page(NamedTuple):
    """A page's measures."""

    title: str
    words: int
    numbers: int
    words_a_sentence: float
    crowded: list[str]  # paragraphs with more numbers than MOST_NUMBERS
    tables: int
    figures: int
    shown: int  # lines of code that are seen
    folded: int  # lines of code behind a bar


def cells(path: Path) -> list[tuple[str, str, list[str], bool]]:
    """The cells of a page: kind, source, tags, and whether a figure comes out."""
    if path.suffix == ".md":
        return [("markdown", path.read_text(), [], False)]
    return [
        (cell["cell_type"], "".join(cell["source"]), cell["metadata"].get("tags", []),
         "figure" in cell["metadata"].get("mystnb", {}))
        for cell in json.loads(path.read_text())["cells"]
    ]  # fmt: skip


def blocks(text: str) -> list[tuple[str, str]]:
    """The paragraphs of a text, each with the directive that it stands in, such as "exercise", or "table"."""
    found, inside, lines = [], [], []

    def end() -> None:
        paragraph = "\n".join(lines).strip()
        if paragraph:
            found.append(("table" if paragraph.startswith("|") else inside[-1] if inside else "", paragraph))
        lines.clear()

    for line in re.sub(r"(?s)```.*?```", "", text).split("\n"):
        fence = FENCE.match(line)
        if fence:
            end()
            if fence[1]:
                inside.append(fence[1])
            elif inside:
                inside.pop()
        elif not line.strip() or re.match(r"\s*(?:[-*]|\d+\.)\s", line) or line.startswith("#"):
            end()
            lines.append(line)
        else:
            lines.append(line)
    end()
    return found


def plain(text: str) -> str:
    """The text with a number for each inserted value, and without what is no number to a reader."""
    return re.sub(r"^\s*\d+\.\s", "", OTHER.sub(" ", VALUE.sub("12.3", text)))


def measure(path: Path) -> Page:
    """The measures of a page, a notebook or a Markdown file; captions count as words, not as paragraphs."""
    title, words, numbers, sentences, crowded = "", 0, 0, [], []
    tables = figures = shown = folded = 0
    for kind, source, tags, draws in cells(path):
        figures += draws
        if kind == "code" and not {"remove-cell", "remove-input", "parameters"} & set(tags):
            lines = sum(bool(line.strip()) for line in source.split("\n"))
            hidden = {"hide-input", "hide-cell"} & set(tags)
            folded, shown = folded + lines * bool(hidden), shown + lines * (not hidden)
        tables += kind == "code" and "table" in tags
        if kind != "markdown":
            continue
        figures += len(re.findall(r"^[:`]{3,}\{figure\}", source, re.MULTILINE))
        tables += len(re.findall(r"^[:`]{3,}\{list-table\}", source, re.MULTILINE))
        tables += len(re.findall(r"^\|[-:| ]+\|$", source, re.MULTILINE))
        title = title or next(iter(re.findall(r"^# (.*)$", source, re.MULTILINE)), "")
        for inside, paragraph in blocks(source):
            text = plain(paragraph)
            count = len(NUMBER.findall(text))
            words, numbers = words + len(WORD.findall(VALUE.sub("", paragraph))), numbers + count
            if inside == "table" or paragraph.startswith("#"):
                continue
            sentences += [s for s in SENTENCE.split(text) if len(WORD.findall(s)) > 2]
            if count > MOST_NUMBERS and inside not in ("exercise", "solution") and "caption" not in tags:
                crowded.append(paragraph)
    length = sum(len(s.split()) for s in sentences) / max(1, len(sentences))
    return Page(title, words, numbers, length, crowded, tables, figures, shown, folded)


def parts() -> dict[str, list[str]]:
    """The pages of each part of the table of contents."""

    def files(chapters: list[dict]) -> list[str]:
        return [name for c in chapters for name in (c["file"], *files(c.get("sections", [])))]

    toc = yaml.safe_load((ROOT / "book" / "_toc.yml").read_text())
    return {"": [toc["root"]]} | {part["caption"]: files(part["chapters"]) for part in toc["parts"]}


def file_of(page: str) -> Path:
    """The file of a page of the table of contents."""
    return next(path for path in (ROOT / f"{page}.ipynb", ROOT / f"{page}.md") if path.exists())


def main(wanted: list[str]) -> None:
    """Print the measures of these pages, or of all."""
    print(f"{'page':42} words  numbers/100  words/sentence  crowded  tables  figures  shown  folded")
    total = 0
    for part, pages in parts().items():
        print(f"-- {part}")
        for page in pages:
            if wanted and not {page, page.split("/")[-1]} & set(wanted):
                continue
            m = measure(file_of(page))
            total += m.words
            share = 100 * m.numbers / max(1, m.words)
            print(f"{page:42} {m.words:5}  {share:11.1f}  {m.words_a_sentence:14.1f}  {len(m.crowded):7}  {m.tables:6}"
                  f"  {m.figures:7}  {m.shown:5}  {m.folded:6}")  # fmt: skip
            for text in m.crowded if wanted else []:
                print(f"    crowded: {' '.join(text.split())[:150]}")
    print(f"words in all: {total:,}")


if __name__ == "__main__":
    main(sys.argv[1:])
