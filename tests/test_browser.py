"""What a reader's browser makes of the explorer and the game, and of the explorer in the book if it has been built."""

import contextlib
import functools
import http.server
import itertools
import re
import threading
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom

from dpsub import explorer, game
from dpsub.estimators import epsilon_lower_bound

ROOT = Path(__file__).parent.parent
BOOK = ROOT / "_build" / "html"

pytestmark = pytest.mark.xdist_group("browser")


@contextlib.contextmanager
def served(folder):
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@contextlib.contextmanager
def on_a_page_of_its_own(html, browser, folder):
    """A page that remembers every address that it asked for."""
    (folder / "index.html").write_text(
        f"<html data-theme='light'><meta charset='utf-8'><body>{html.data}</body></html>"
    )
    with served(folder) as address:
        opened = browser.new_page()
        opened.asked = []
        opened.on("request", lambda request: opened.asked.append(request.url))
        opened.goto(address)
        yield opened
        opened.close()


@pytest.fixture
def page(browser, tmp_path):
    with on_a_page_of_its_own(explorer.page(), browser, tmp_path) as opened:
        yield opened


@pytest.fixture
def table(browser, tmp_path):
    with on_a_page_of_its_own(game.page(), browser, tmp_path) as opened:
        yield opened


def shown(page, name):
    return float(page.locator(f"[data-shown={name}]").inner_text())


def at(**setting):
    """The stored row at these values, the sliders' starts elsewhere."""
    names = ("noise_multiplier", "sample_rate", "steps")
    start = {"noise_multiplier": 1.0, "sample_rate": 0.01, "steps": 1_000}
    settings = list(itertools.product(*(explorer.AXES[name] for name in names)))
    wanted = {**start, **setting}
    return explorer.grid()["rows"][settings.index(tuple(wanted[name] for name in names))]


def test_the_explorer_answers_to_the_keyboard(page):
    assert shown(page, "substitute") == at()["substitute"][0]
    page.locator("[data-axis=noise_multiplier]").focus()
    page.keyboard.press("ArrowRight")
    assert shown(page, "substitute") == at(noise_multiplier=1.4)["substitute"][0]
    assert shown(page, "add_remove") == at(noise_multiplier=1.4)["add_remove"][0]
    page.keyboard.press("Tab")
    page.keyboard.press("End")
    row = at(noise_multiplier=1.4, sample_rate=1.0)
    assert shown(page, "substitute") == row["substitute"][0]
    assert page.locator("[data-axis=sample_rate]").get_attribute("aria-valuetext") == "1"
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("End")
    assert shown(page, "add_remove") == row["add_remove"][2]


def test_its_curves_and_its_none_are_the_stored_ones(page):
    page.locator("[data-axis=noise_multiplier]").fill("0")
    page.locator("[data-axis=sample_rate]").fill("5")
    row = at(noise_multiplier=0.5, sample_rate=0.3)
    assert row["group"][0] is None
    assert page.locator("[data-shown=group]").inner_text() == "none"
    points = page.locator("[data-curve=substitute]").get_attribute("points").split()
    assert len(points) == len(explorer.FALSE_POSITIVE_RATES)
    assert float(points[3].split(",")[1]) == pytest.approx(160 - 150 * row["substitute_fnr"][3], abs=1e-6)


def test_it_asks_for_nothing_from_elsewhere(page):
    assert all(address.startswith("http://127.0.0.1") for address in page.asked)


@pytest.mark.parametrize("width", [320, 1200])
def test_it_fits_narrow_and_wide_screens(page, width):
    page.set_viewport_size({"width": width, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_it_can_be_read_in_the_dark(page):
    def looks():
        style = "getComputedStyle(document.querySelector('.dpsub-explorer'))"
        return page.evaluate(f"[{style}.color, {style}.backgroundColor]")

    assert looks() == ["rgb(26, 26, 26)", "rgb(255, 255, 255)"]
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    assert looks() == ["rgb(232, 232, 232)", "rgb(20, 24, 30)"]


def bound_shown(page, name):
    return float(page.locator(f"[data-shown={name}]").inner_text().split()[0])


def test_the_game_shows_the_bound_of_the_counts_it_shows(table):
    for cut in ("0.5", "1.3", "-0.4"):
        table.locator("[data-input=threshold]").fill(cut)
        counts = [int(table.locator(f"[data-shown={rate}]").inner_text().split("/")[0]) for rate in ("fpr", "fnr")]
        scores = np.concatenate([np.arange(1_250) < counts[0], np.arange(1_250) >= counts[1]]).astype(float)
        bound = epsilon_lower_bound(scores, np.repeat([1, 0], 1_250), delta=game.DELTA, threshold=0.5)
        assert bound_shown(table, "yours") == pytest.approx(bound.epsilon, abs=0.02)
        assert bound_shown(table, "best") >= bound_shown(table, "yours")
        assert bound_shown(table, "best") > bound_shown(table, "ranks") > 2


def test_a_hundred_games_count_the_lies(table):
    before = table.locator("[data-shown=best]").inner_text()
    table.get_by_text("another audit").click()
    assert table.locator("[data-shown=best]").inner_text() != before
    table.locator("[data-input=runs]").focus()
    table.keyboard.press("ArrowRight")
    table.get_by_text("play 100 times").click()
    best, ranks = map(int, re.findall(r"in (\d+)", table.locator("[data-shown=lies]").inner_text()))
    assert ranks <= binom.ppf(0.9999, 100, 0.05)
    assert best > ranks
    assert all(address.startswith("http://127.0.0.1") for address in table.asked)


@pytest.mark.parametrize("width", [320, 1200])
def test_the_game_fits_narrow_and_wide_screens(table, width):
    table.set_viewport_size({"width": width, "height": 900})
    assert table.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.book
@pytest.mark.skipif(not (BOOK / "index.html").exists(), reason="the book is not built: make book")
def test_the_books_explorers_answer(browser):
    opened = browser.new_page()
    answered = 0
    with served(BOOK) as address:
        for path in sorted([*BOOK.glob("book/*.html"), *BOOK.glob("notebooks/*.html")]):
            if 'data-axis="noise_multiplier"' not in path.read_text():
                continue
            opened.goto(f"{address}/{path.relative_to(BOOK)}")
            opened.locator("[data-axis=noise_multiplier]").fill("3")
            assert shown(opened, "substitute") == at(noise_multiplier=1.4)["substitute"][0]
            answered += 1
    opened.close()
    assert answered
