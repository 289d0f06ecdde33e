"""What a reader's browser makes of the built site: every page, wide and narrow, light and dark, on paper, offline."""

import json
import re
import unicodedata
from pathlib import Path

import look
import pytest
import slim
from bs4 import BeautifulSoup
from fontTools.ttLib import TTFont
from test_explorer_pages import SETTINGS, is_the_accountants

ROOT = Path(__file__).parent.parent
SITE = ROOT / "_build" / "html"
PAGES = look.pages(SITE) if SITE.exists() else []
MEGABYTE = 1e6
WHOLE_SITE, FIRST_VISIT = 12.0, 1.0  # the most that they may weigh, uncompressed
COMPOSES = ":has(> .dpsub-explorer [data-input=sigma])"  # what holds the explorer of one's own training
MADE_BY_SPHINX = ["search.html"]

pytestmark = [
    pytest.mark.book,
    pytest.mark.skipif(not PAGES, reason="the book is not built: make book"),
]


@pytest.fixture(scope="module")
def address():
    with look.served(SITE) as found:
        yield found


@pytest.fixture(scope="module")
def page(browser):
    """One page of the browser for all tests."""
    with look.calm_page(browser) as opened:
        yield opened


@pytest.fixture(scope="module")
def axe():
    return pytest.importorskip("axe_playwright_python.base").AXE_SCRIPT


@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_says_no_error_asks_nobody_else_and_can_be_read_by_all(page, axe, address, name):
    seen = look.look(page, axe, address, name, SITE)
    assert seen.overflow == {"desktop": 0, "phone": 0}
    assert not seen.cut
    assert not seen.unset
    assert not seen.console
    assert not seen.elsewhere
    assert not seen.findings
    assert seen.weight / MEGABYTE < FIRST_VISIT


def test_every_page_is_in_the_contents():
    listed = look.listed(ROOT / "book/_toc.yml")
    assert sorted(PAGES) == sorted([*(f"{name}.html" for name in listed), *MADE_BY_SPHINX])


@pytest.mark.parametrize("name", [name for name in PAGES if name not in MADE_BY_SPHINX])
def test_a_page_describes_itself(name):
    head = BeautifulSoup((SITE / name).read_text(), "html.parser").head
    tags = {tag.get("name") or tag.get("property"): tag["content"] for tag in head.select("meta[content]")}
    assert 20 < len(tags["description"]) <= 202 or name == "book/intro.html"
    assert tags["og:description"] == tags["description"]
    assert tags["og:title"] in head.title.get_text()
    assert (SITE / name).parent.joinpath(tags["og:image"]).resolve().is_file()
    assert head.select("link[rel=icon]")


def test_descriptions_differ():
    heads = [(SITE / name).read_text().split("</head>")[0] for name in PAGES]
    found = [BeautifulSoup(head, "html.parser").select("meta[name=description]") for head in heads]
    texts = [tag["content"] for tags in found for tag in tags]
    assert len(texts) == len(PAGES) - len(MADE_BY_SPHINX)
    assert len(set(texts)) == len(texts)


def test_the_search_finds_a_word_without_a_network(page):
    page.set_viewport_size({"width": 1280, "height": 900})
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto((SITE / "search.html").as_uri() + "?q=mislabeled")
    page.wait_for_selector("#search-results li a")
    assert "record_adversaries.html" in "".join(
        page.eval_on_selector_all("#search-results li a", "links => links.map(link => link.href)")
    )
    assert all(url.startswith("file:") for url in asked)


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


def test_what_an_address_leads_to_is_unfolded(page, address):
    opened = "() => [...document.querySelectorAll('dt:has(+ dd > .dpsub-in-full[open])')].map(one => one.id)"
    page.goto(f"{address}/book/api/audits.html#dpsub-distinguishers", wait_until="networkidle")
    assert page.evaluate(opened) == []
    for name in ("audit", "Status"):
        page.goto(f"{address}/book/api/audits.html#dpsub.audits.{name}")
        page.wait_for_function(f"({opened})().includes('dpsub.audits.{name}')")


def test_html_of_a_notebook_has_the_pages_ground_in_the_dark(page, address):
    grounds = "boxes => boxes.map(box => getComputedStyle(box).backgroundColor)"
    boxes = 0
    for name in PAGES:
        if 'class="dpsub-explorer' not in (SITE / name).read_text():
            continue
        page.goto(f"{address}/{name}")
        page.evaluate(f"{look.MARKED}.theme = 'dark'")
        found = page.eval_on_selector_all(".cell_output div.text_html:has(.dpsub-explorer)", grounds)
        assert set(found) <= {"rgba(0, 0, 0, 0)"}
        boxes += len(found)
    assert boxes


def weight(places):
    return sum(path.stat().st_size for path in places if path.is_file()) / MEGABYTE


def test_the_site_is_light():
    assert weight(SITE.rglob("*")) < WHOLE_SITE


def test_icons_and_formulas_are_drawn_in_their_fonts(page, address):
    page.goto(f"{address}/book/theorems.html", wait_until="networkidle")
    for family in ("Font Awesome", "STIX Two Math"):
        loaded = f"one => one.status == 'loaded' && one.family.includes('{family}')"
        page.wait_for_function(f"() => [...document.fonts].some({loaded})")
    drawn = "[...document.querySelectorAll('i[class*=fa-]')].filter(icon => icon.offsetParent)"
    icons = page.evaluate(f"{drawn}.map(icon => getComputedStyle(icon, '::before').content)")
    titles = "titles => titles.map(title => getComputedStyle(title, '::after').content)"
    titles = page.eval_on_selector_all(".admonition-title", titles)
    (font,) = SITE.glob("_static/vendor/fontawesome/*/webfonts/fa-solid-900.woff2")
    known = {f'"{chr(code)}"' for code in TTFont(font).getBestCmap()}
    assert icons
    assert known.issuperset(icons)
    assert known & set(titles)
    assert known | {"none"} >= set(titles)


def test_the_font_of_formulas_has_all_that_they_show():
    text = "".join(formula for name in PAGES for formula in slim.FORMULA.findall((SITE / name).read_text()))
    shown = {
        ord(one) for one in BeautifulSoup(text, "html.parser").get_text() if unicodedata.category(one)[0] in "LNPS"
    }
    assert shown
    assert shown <= TTFont(SITE / "_static/math.woff2").getBestCmap().keys()


def test_the_download_button_gives_the_notebook_of_the_repository_without_the_cell_that_glues(page, address):
    page.goto(f"{address}/notebooks/quickstart.html")
    link = page.locator("a[href$='quickstart.ipynb']").first.get_attribute("href")
    given = page.request.get(f"{address}/notebooks/{link}").body()
    source = json.loads((ROOT / "notebooks/quickstart.ipynb").read_text())
    assert json.loads(given) == source | {"cells": source["cells"][:-1]}


@pytest.mark.parametrize("name", [mark for mark in slim.AS_TEXT if mark != "pre"])
def test_marks_that_are_left_out_have_the_colour_of_their_text(name):
    styles = (SITE / "_static/pygments.css").read_text()
    for theme in ("light", "dark"):
        begin = rf'html\[data-theme="{theme}"\] \.highlight'
        (text,) = re.findall(begin + r" \{[^}]*?(color: #\w+)", styles)
        assert re.findall(begin + rf" \.{name} \{{ (color: #\w+)", styles) == [text]


def test_the_explorers_answer(page, address):
    answered = 0
    for name in PAGES:
        if 'data-input="sigma"' in (SITE / name).read_text():
            page.goto(f"{address}/{name}", wait_until="networkidle")
            is_the_accountants(page.locator(COMPOSES), **SETTINGS[0])
            answered += 1
    assert answered
