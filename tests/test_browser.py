"""Whether the explorers of the book answer in a browser, if it has been built."""

from pathlib import Path

import pytest
from look import served
from test_explorer_pages import SETTINGS, is_the_accountants

ROOT = Path(__file__).parent.parent
BOOK = ROOT / "_build" / "html"
COMPOSES = "div:has(> .dpsub-explorer [data-input=sigma])"  # what holds the explorer of one's own training

pytestmark = pytest.mark.xdist_group("browser")


@pytest.mark.book
@pytest.mark.skipif(not (BOOK / "index.html").exists(), reason="the book is not built: make book")
def test_the_books_explorers_answer(browser):
    opened = browser.new_page()
    answered = 0
    with served(BOOK) as address:
        for path in sorted([*BOOK.glob("book/*.html"), *BOOK.glob("notebooks/*.html")]):
            html = path.read_text()
            if 'data-input="sigma"' not in html:
                continue
            opened.goto(f"{address}/{path.relative_to(BOOK)}", wait_until="networkidle")
            is_the_accountants(opened.locator(COMPOSES), **SETTINGS[0])
            answered += 1
    opened.close()
    assert answered
