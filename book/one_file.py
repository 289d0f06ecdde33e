"""A page of the built site as one file of HTML, which shows the same without the site."""

from __future__ import annotations

import base64
import mimetypes
import re
from pathlib import Path
from urllib.parse import unquote

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
EMBEDDED = {".woff2": "font/woff2"}  # those that are not icons: of formulas


def data(path: Path) -> str:
    """A file as an address that holds it."""
    kind = EMBEDDED.get(path.suffix) or mimetypes.guess_type(path.name)[0]
    return f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"


def style(sheet: Path) -> str:
    """A style sheet with its fonts of formulas inside; other files that it names are left out."""

    def inside(match: re.Match[str]) -> str:
        file = sheet.parent / match[2]
        return f"url({data(file)})" if file.name == "math.woff2" else "none"

    return ADDRESS.sub(inside, sheet.read_text())


def alone(page: Path) -> str:
    """The article of a page with its styles and figures inside, answers unfolded, and no links to files."""
    soup = BeautifulSoup(page.read_text(), "html.parser")
    local = [link["href"].partition("?")[0] for link in soup.select("link[rel=stylesheet][href]")]
    sheets = [page.parent / href for href in local if "://" not in href]
    article = soup.select_one("article.bd-article")
    for element in article.select(LEFT_OUT):
        element.decompose()
    for image in article.select("img[src]"):
        file = page.parent / unquote(image["src"])
        if file.is_file():
            image["src"] = data(file)
    for link in article.select("a[href]"):
        if not link["href"].startswith(("#", "http://", "https://")):
            link.unwrap()
    styles = "\n".join(style(sheet) for sheet in sheets if "fontawesome" not in sheet.as_posix())
    return FRAME.format(title=soup.title.get_text(strip=True), style=styles, article=article)
