"""What a reader's browser makes of the built site: every page, wide and narrow, light and dark, on paper, offline."""

from urllib.parse import unquote, urlsplit

import copies
import nbformat
import pytest
from browsing import ROOT, SETTINGS, SITE, listed, pages, served
from bs4 import BeautifulSoup
from test_explorer_pages import is_the_accountants

PAGES = pages() if SITE.exists() else []
MEGABYTE = 1e6
WHOLE_SITE, FIRST_VISIT = 30.0, 2.0  # the most that they may weigh, uncompressed
COMPOSES = ":has(> .dpsub-explorer [data-input=sigma])"  # what holds the explorer of one's own training
MADE_BY_SPHINX = ["search.html"]
WIDTHS = {"desktop": 1280, "phone": 360}
CHECKS = [  # a mode changes colours only, and a width what fits
    ("desktop", "light", []),
    ("desktop", "dark", ["color-contrast"]),
    ("phone", "dark", ["scrollable-region-focusable", "target-size"]),
]
RESIZED = 250  # milliseconds after which a page has taken its new width
MARKED = "document.documentElement.dataset"
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
SETTLED = """async () => {
    await document.fonts.ready;
    await new Promise(done => setTimeout(done, 100));
}"""
UNSET = "() => [...document.querySelectorAll('.math')].filter(box => !box.querySelector('math')).length"
CUT = """() => [...document.querySelectorAll('.bd-article *')].filter(box =>
    box.clientWidth > 40 && box.scrollWidth > box.clientWidth + 1
    && ['hidden', 'clip'].includes(getComputedStyle(box).overflowX)).map(box => box.outerHTML.slice(0, 100))"""

pytestmark = [
    pytest.mark.book,
    pytest.mark.skipif(not PAGES, reason="the book is not built: make book"),
]


@pytest.fixture(scope="module")
def address():
    with served(SITE) as started:
        yield started


@pytest.fixture(scope="module")
def page(browser):
    """One page of the browser for all tests, without motion, so that a change of mode is done at once."""
    context = browser.new_context(reduced_motion="reduce")
    yield context.new_page()
    context.close()


@pytest.fixture
def watched(page):
    """The page, with what it asks for and what its console says."""
    page.asked, page.said = set(), []
    listeners = {
        "request": lambda request: page.asked.add(request.url),
        "console": lambda message: message.type in ("error", "warning") and page.said.append(message.text),
        "pageerror": lambda error: page.said.append(f"uncaught: {error}"),
    }
    for event, listener in listeners.items():
        page.on(event, listener)
    yield page
    for event, listener in listeners.items():
        page.remove_listener(event, listener)


@pytest.fixture(scope="module")
def axe():
    return pytest.importorskip("axe_playwright_python.base").AXE_SCRIPT


def violations(page, rules):
    """The rules of axe (these, or all) that are broken seriously, each with its first element."""
    options = {"resultTypes": ["violations"], "preload": False} | ({"runOnly": rules} if rules else {})
    broken = page.evaluate("options => axe.run(options).then(answer => answer.violations)", options)
    return {b["id"]: b["nodes"][0]["html"][:100] for b in broken if b["impact"] in ("serious", "critical")}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_says_no_error_asks_nobody_else_and_can_be_read_by_all(watched, axe, address, name):
    watched.set_viewport_size({"width": WIDTHS["desktop"], "height": 900})
    watched.goto(f"{address}/{name}", wait_until="load")
    watched.evaluate(SETTLED)
    watched.evaluate(axe)
    for screen, mode, rules in CHECKS:
        watched.set_viewport_size({"width": WIDTHS[screen], "height": 900})
        watched.evaluate(f"{MARKED}.theme = {MARKED}.mode = '{mode}'")
        watched.wait_for_timeout(RESIZED)
        assert watched.evaluate(OVERFLOW) == 0, screen
        assert watched.evaluate(CUT) == [], screen
        assert violations(watched, rules) == {}, (screen, mode)
    assert watched.evaluate(UNSET) == 0
    assert watched.said == []
    assert {url for url in watched.asked if not url.startswith((address, "data:", "blob:"))} == set()
    files = [SITE / unquote(urlsplit(url).path).lstrip("/") for url in watched.asked if url.startswith(address)]
    assert weight(files) < FIRST_VISIT


def weight(places):
    return sum(path.stat().st_size for path in places if path.is_file()) / MEGABYTE


def test_the_site_is_light():
    assert weight(SITE.rglob("*")) < WHOLE_SITE


def test_every_page_is_in_the_contents():
    assert sorted(PAGES) == sorted([*(f"{name}.html" for name in listed()), *MADE_BY_SPHINX])


def test_every_page_describes_itself_in_other_words():
    descriptions = []
    for name in (name for name in PAGES if name not in MADE_BY_SPHINX):
        head = BeautifulSoup((SITE / name).read_text().split("</head>")[0], "html.parser")
        tags = {tag.get("name") or tag.get("property"): tag["content"] for tag in head.select("meta[content]")}
        assert 20 < len(tags["description"]) <= 204 or name == "book/intro.html"
        assert tags["og:description"] == tags["description"]
        assert tags["og:title"] in head.title.get_text()
        assert (SITE / tags["og:image"]).is_file()
        assert head.select("link[rel=icon]")
        descriptions.append(tags["description"])
    assert len(set(descriptions)) == len(descriptions)


def test_the_search_finds_a_word_without_a_network(page):
    page.set_viewport_size({"width": 1280, "height": 900})
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto((SITE / "search.html").as_uri() + "?q=mislabeled")
    page.wait_for_selector("#search-results li a")
    assert "S4_mislabeled.html" in "".join(
        page.eval_on_selector_all("#search-results li a", "links => links.map(link => link.href)")
    )
    assert all(url.startswith("file:") for url in asked)


def test_who_looks_for_the_sample_rate_finds_how_batches_are_drawn(page):
    page.goto((SITE / "search.html").as_uri() + "?q=sample rate")
    page.wait_for_selector("#search-results li a")
    links = page.eval_on_selector_all("#search-results li > a", "links => links.map(link => link.href)")
    assert any("how_batches_are_drawn.html" in link for link in links[:5])


SHOWN = "element => element.checkVisibility() && element.getBoundingClientRect().height > 0"


@pytest.mark.parametrize("name", ["notebooks/estimators", "notebooks/quickstart"])
def test_a_print_opens_what_is_folded_and_begins_with_the_title(page, address, name):
    page.set_viewport_size({"width": 800, "height": 1100})
    page.goto(f"{address}/{name}.html")
    folded = page.locator(".bd-article details, .bd-article .admonition.toggle-hidden")
    assert folded.count()
    page.evaluate("addEventListener('beforeprint', () => { window.printed = true })")
    page.pdf()
    assert page.evaluate("window.printed"), "Chromium tells the page that it prints"

    closed = "() => document.querySelectorAll('.bd-article details:not([open]), .bd-article .toggle-hidden').length"
    before = page.evaluate(closed)
    page.emulate_media(media="print")
    try:
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert before
        assert page.evaluate(closed) == 0
        for solution in page.locator(".bd-article .solution p:not(.admonition-title)").all():
            assert solution.evaluate(SHOWN)
        assert not page.locator("#jb-print-toc").evaluate(SHOWN)
        assert page.locator("h1").evaluate_all(f"titles => titles.filter({SHOWN}).length") == 1
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert page.evaluate(closed) == before
    finally:
        page.emulate_media(media="screen")


def test_a_figure_enlarges_on_a_click(page, address):
    page.set_viewport_size({"width": 1280, "height": 900})
    page.goto(f"{address}/notebooks/how_batches_are_drawn.html")
    figure = page.locator(".cell_output img").last
    before = figure.bounding_box()["width"]
    figure.click()
    large = page.locator("dialog.large-figure[open] img")
    assert large.bounding_box()["width"] > 1.3 * before
    large.click()
    page.locator("dialog").wait_for(state="detached")


def test_the_download_button_gives_a_notebook_without_outputs_that_says_what_it_needs(page, address):
    page.goto(f"{address}/notebooks/quickstart.html")
    link = page.locator("a[href$='quickstart.ipynb']").first.get_attribute("href")
    given = nbformat.reads(page.request.get(f"{address}/notebooks/{link}").text(), as_version=4)
    source = nbformat.read(ROOT / "notebooks/quickstart.ipynb", as_version=4)
    assert given == copies.as_download(source, "quickstart.ipynb")
    assert not any(cell.get("outputs") for cell in given.cells)


def test_icons_and_formulas_are_drawn_in_their_fonts(page, address):
    page.goto(f"{address}/book/theorems.html", wait_until="networkidle")
    for family in ("Font Awesome", "STIX Two Math"):
        loaded = f"font => font.status == 'loaded' && font.family.includes('{family}')"
        page.wait_for_function(f"() => [...document.fonts].some({loaded})")


def test_functions_lead_to_their_source_and_to_the_pages_that_use_them():
    described = BeautifulSoup((SITE / "book/api/accounting.html").read_text(), "html.parser")
    (epsilon,) = described.select("dt[id='dpsub.accounting.epsilon']")
    (source,) = epsilon.select("a[href*='_modules/dpsub/accounting']")
    assert (SITE / "book/api" / source["href"].partition("#")[0]).is_file()
    assert epsilon.parent.select("a[href*='notebooks/']")


def test_old_addresses_lead_to_pages_that_there_are():
    old = BeautifulSoup((SITE / "book/gallery.html").read_text(), "html.parser")
    target = old.select_one("meta[http-equiv=refresh]")["content"].partition("url=")[2]
    assert (SITE / "book" / target).is_file()


def test_the_explorers_answer(page, address):
    answered = 0
    for name in PAGES:
        if 'data-input="sigma"' in (SITE / name).read_text():
            page.goto(f"{address}/{name}", wait_until="networkidle")
            is_the_accountants(page.locator(COMPOSES), **SETTINGS[0])
            answered += 1
    assert answered
