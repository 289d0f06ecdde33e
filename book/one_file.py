"""A page of the built site as one file of HTML, which shows the same without the site."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from urllib.parse import unquote, urljoin

from bs4 import BeautifulSoup

FRAME = """<!DOCTYPE html>
<html lang="en" data-theme="light" data-mode="light"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1"><title>{title}</title>
<style>{style}
.admonition-title::before, .admonition-title::after {{ content: none !important; }}</style></head>
<body><div class="bd-main"><div class="bd-content"><div class="bd-article-container" style="margin: auto">
{article}
</div></div></div></body></html>
"""
LEFT_OUT = ".headerlink, .copybtn, script[src], .toctree-wrapper"
ADDRESS = re.compile(r"""url\((["']?)(?!data:)([^)"'?#]+)[^)]*\)""")
KINDS = {".woff2": "font/woff2", ".svg": "image/svg+xml", ".png": "image/png"}


def data(path: Path) -> str:
    """A file as an address that holds it."""
    return f"data:{KINDS[path.suffix]};base64,{base64.b64encode(path.read_bytes()).decode()}"


def style(sheet: Path) -> str:
    """A style sheet with its fonts of formulas inside; other files that it names are left out."""

    def inside(match: re.Match[str]) -> str:
        file = sheet.parent / match[2]
        return f"url({data(file)})" if file.name == "math.woff2" else "none"

    return ADDRESS.sub(inside, sheet.read_text())


def alone(page: Path, address: str = "") -> str:
    """The article of a page with its styles and figures inside and answers unfolded.

    Links lead to the site if `address`, that of the page, is known; otherwise those to other files are plain text.
    """
    soup = BeautifulSoup(page.read_text(), "html.parser")
    sheets = [page.parent / link["href"].partition("?")[0] for link in soup.select("link[rel=stylesheet][href]")]
    article = soup.select_one("article.bd-article")
    for element in article.select(LEFT_OUT):
        element.decompose()
    for image in article.select("img[src]"):
        image["src"] = data(page.parent / unquote(image["src"]))
    for link in article.select("a[href]"):
        if link["href"].startswith("#"):
            continue
        link["href"] = urljoin(address, link["href"])
        if "://" not in link["href"]:
            link.unwrap()
    styles = "\n".join(style(sheet) for sheet in sheets if "fontawesome" not in sheet.as_posix())
    return FRAME.format(title=soup.title.get_text(strip=True), style=styles, article=article)
