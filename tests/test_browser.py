"""What a reader's browser makes of the book, if it has been built."""

from pathlib import Path

import pytest
from serving import served
from test_explorer_pages import SETTINGS, is_the_accountants

ROOT = Path(__file__).parent.parent
BOOK = ROOT / "_build" / "html"

pytestmark = pytest.mark.xdist_group("browser")


@pytest.mark.book
@pytest.mark.skipif(not (BOOK / "index.html").exists(), reason="the book is not built: make book")
def test_the_book_asks_for_nothing_from_elsewhere_and_renders_its_formulas(browser):
    with served(BOOK) as address:
        for path in sorted([*BOOK.glob("book/*.html"), *BOOK.glob("notebooks/*.html")]):
            opened = browser.new_page()
            asked = []
            opened.on("request", lambda request, asked=asked: asked.append(request.url))
            opened.goto(f"{address}/{path.relative_to(BOOK)}", wait_until="networkidle")
            assert not [url for url in asked if not url.startswith((address, "data:"))], path.name
            formulas = opened.locator("span.math, div.math").count()
            assert opened.locator("mjx-container").count() >= formulas, path.name
            if opened.locator("[data-input=sigma]").count():
                is_the_accountants(opened, **SETTINGS[0])
            opened.close()
