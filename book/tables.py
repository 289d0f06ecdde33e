"""Tables of data frames as the site shows them: words that read, numbers that align, one row of heads."""

from __future__ import annotations

import re

from bs4 import BeautifulSoup, Tag

WORDS = {
    "add_remove": "add/remove",
    "sample_rate": "q",
    "max_grad_norm": "C",
    "learning_rate": "η",
    "papers_rule": "papers' rule",
    "epsilon_low": "ε, low",
    "epsilon": "ε",
    "epsilon_high": "ε, high",
    "gdp_cp": "μ-GDP, Clopper–Pearson",
    "gdp_zb": "μ-GDP, Bayesian",
    "dp_zb": "(ε, δ), Bayesian",
    "ude": "UDE",
    "ade": "ADE",
    "fisher": "Fisher",
    "katz": "Katz",
    "dirac": "Dirac",
    "sgd": "DP-SGD",
    "adam": "DP-Adam",
    "mnist": "MNIST",
    "cifar10": "CIFAR-10",
    "True": "yes",
    "False": "no",
    "NaN": "–",
    "inf": "∞",
}
WORD = re.compile(rf"(?<![\w./-])(?:{'|'.join(WORDS)})(?![\w/-])")
NUMBER = re.compile(r"[(±≥]?\s?−?[\d.,]+")
POWER = re.compile(r"(\d[\d.]*)e([+-])0*(\d+)")
RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def readable(html: str) -> str:
    """The HTML of data frames with tables as a reader wants them; other HTML unchanged."""
    if 'class="dataframe"' not in html:
        return html
    soup = BeautifulSoup(html, "html.parser")
    for table in soup.select("table.dataframe"):
        rows = table.select("tbody tr")
        if rows and table.thead:
            for cell in table(["th", "td"]):
                cell.string = spelt(cell.get_text(), label=cell.name == "th")
            arrange(table.thead, rows)
    return str(soup)


def spelt(text: str, *, label: bool) -> str:
    """What a cell says: words for names in code, commas in large whole numbers, no zeros at the end of a label."""
    text = WORD.sub(lambda found: WORDS[found[0]], text)
    text = POWER.sub(lambda found: f"{found[1]}·10{(found[2].strip('+') + found[3]).translate(RAISED)}", text)
    if re.fullmatch(r"-?\d{4,}", text):
        text = f"{int(text):,}"
    elif label and re.fullmatch(r"\d+\.\d+", text):
        text = f"{float(text):g}"
    return re.sub(r"^-(?=\d)", "" if re.fullmatch(r"-0\.0+", text) else "−", text)


def arrange(head: Tag, rows: list[Tag]) -> None:
    """The index's names beside those of the columns, prose to the left, and no decimals where all are zeros."""
    labels = len(rows[0]("th"))
    *above, last = head("tr")
    if above and not any(cell.get_text() for cell in [*above[-1]("th")[:labels], *last("th")[labels:]]):
        for cell, name in zip(above[-1]("th"), last("th")[:labels], strict=False):
            cell.string = name.get_text()
        last.decompose()
    heads = head("tr")[-1]("th")
    for cell in heads[:labels]:
        cell["class"] = "prose"
    for place, column in enumerate(zip(*(row("td") for row in rows), strict=True), start=labels):
        texts = [cell.get_text() for cell in column]
        if all(re.fullmatch(r"−?\d+\.0+|–|", text) for text in texts):
            for cell, text in zip(column, texts, strict=True):
                cell.string = text.split(".")[0]
        if not any(NUMBER.match(text) for text in texts):
            for cell in [*column, *heads[place : place + 1]]:
                cell["class"] = "prose"
