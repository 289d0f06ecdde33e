"""What a reader's browser makes of the explorers."""

import contextlib
import functools
import math
import re

import numpy as np
import pytest
from browsing import SETTINGS, served
from drifting import audited
from scipy.stats import binom, norm

from book.explorers import game
from book.explorers import pages as explorers
from dpsub import accounting
from dpsub.estimators import epsilon_lower_bound, max_certifiable_epsilon, runs_needed

ANSWERED = ".dpsub-explorer:not([aria-busy])"

pytestmark = pytest.mark.book


@contextlib.contextmanager
def on_a_page_of_its_own(html, browser, folder):
    """A page that remembers every address that it asked for."""
    (folder / "index.html").write_text(
        f"<html data-theme='light'><meta charset='utf-8'><link rel='icon' href='data:,'><body>{html.data}</body></html>"
    )
    with served(folder) as address:
        opened = browser.new_page()
        opened.asked, opened.errors = [], []
        opened.on("pageerror", lambda error: opened.errors.append(str(error)))
        opened.on("request", lambda request: opened.asked.append(request.url))
        opened.goto(address)
        yield opened
        opened.close()


PAGES = {
    "explorer": explorers.training_page,
    "attacker": explorers.attacker_page,
    "runs": explorers.runs_page,
    "game": game.page,
    "drift": lambda: explorers.drifting_scores(audited(), delta=1e-5),
}


@functools.cache
def made(name):
    return PAGES[name]()


@pytest.fixture
def page(request, browser, tmp_path):
    with on_a_page_of_its_own(made(request.param), browser, tmp_path) as opened:
        yield opened


def on(*names):
    return pytest.mark.parametrize("page", names, indirect=True)


def fill(page, **values):
    """Type into fields of a page, or of a part of one, and wait until it has answered."""
    for name, value in values.items():
        field = page.locator(f"[data-input={name}]").first
        if field.evaluate("field => field.tagName") == "SELECT":
            field.select_option(str(value))
        else:
            field.fill(str(value))
    page.locator(ANSWERED).first.wait_for()
    return page.locator("[data-shown=answer]").inner_text()


def shown(page, name):
    return float(re.findall(r"[\d.]+", page.locator(f"[data-shown={name}]").inner_text().replace(",", ""))[0])


def is_the_accountants(page, *, sigma, q, steps, delta):
    training = {"noise_multiplier": sigma, "sample_rate": q, "steps": steps}
    answer = fill(page, sigma=sigma, q=q, steps=steps, delta=delta)
    found = dict(zip(("substitute", "add_remove"), map(float, re.findall(r"at most ([\d.]+) %", answer)), strict=True))
    for adjacency in found:
        exact = accounting.epsilon(**training, delta=delta, adjacency=adjacency)
        if page.locator(f"[data-shown={adjacency}]").inner_text() == "< 0.01":
            assert exact < 0.01 * (1 + explorers.WITHIN / 100)
        else:
            assert shown(page, adjacency) == pytest.approx(exact, rel=explorers.WITHIN / 100)
        missed = accounting.tradeoff(0.05, **training, adjacency=adjacency)
        assert found[adjacency] == pytest.approx(100 * (1 - missed), abs=0.3)
    told = page.locator("[data-shown=risk]").inner_text()
    right = int(re.search(r"right at most (\d+) times in 100", told)[1])
    exact = 50 + 50 * accounting.delta(**training, epsilon=0.0, adjacency="substitute")
    assert exact - 0.2 <= right <= exact + 1.2
    assert page.locator(".hundred .learned").count() == right - 50
    half = {**training, "noise_multiplier": sigma / 2, "adjacency": "add_remove"}
    epochs = {**training, "sample_rate": 1, "steps": math.ceil(steps * q - 1e-9), "adjacency": "substitute"}
    for drawn, same in (("fixed", half), ("shuffled", epochs)):
        exact = accounting.epsilon(**same, delta=delta, eps_error=1e-4)
        if page.locator(f"[data-shown={drawn}]").inner_text() == "< 0.01":
            assert exact < 0.01 * (1 + explorers.WITHIN / 100)
        else:
            assert shown(page, drawn) == pytest.approx(exact, rel=explorers.WITHIN / 100)


@on("explorer")
def test_the_explorer_composes_as_the_accountant_does(page):
    for setting in SETTINGS:
        is_the_accountants(page, **setting)


@pytest.mark.slow
@on("explorer")
def test_the_explorer_is_as_exact_as_it_says(page):
    rng = np.random.default_rng(7)
    for _ in range(explorers.CHECKED):
        sigma, q, delta = np.exp(rng.uniform(np.log([0.4, 1e-4, 1e-10]), np.log([100, 1, 1e-3])))
        steps = round(np.exp(rng.uniform(0, np.log(1e5))))
        is_the_accountants(
            page, sigma=float(f"{sigma:.3g}"), q=float(f"{q:.3g}"), steps=steps, delta=float(f"{delta:.2g}")
        )


@on("explorer")
def test_the_explorer_answers_to_the_keyboard(page):
    before = shown(page, "substitute")
    page.locator("[data-input=sigma]").focus()
    page.keyboard.press("Tab")
    for _ in range(5):
        page.keyboard.press("ArrowRight")
    page.wait_for_selector(ANSWERED)
    field = page.locator("[data-input=sigma]")
    assert float(field.input_value()) > 1
    assert shown(page, "substitute") < before
    assert page.locator("input[type=range]").first.get_attribute("aria-valuetext") == field.input_value()


@on("explorer")
def test_the_explorer_names_what_it_cannot_use(page):
    before = page.locator("[data-shown=substitute]").inner_text()
    assert fill(page, q=2) == "q must be a number from 0.00001 to 1."
    assert page.locator("[data-input=q]").get_attribute("aria-invalid") == "true"
    assert page.locator(".answers").evaluate("box => getComputedStyle(box).opacity") == "0.35"
    assert fill(page, q=0.1, steps=1.5) == "T must be a whole number from 1 to 100,000."
    assert fill(page, steps=10).startswith("With 5 % false alarms, an attacker finds at most")
    assert page.locator("[data-shown=substitute]").inner_text() != before
    assert page.locator(".answers").evaluate("box => getComputedStyle(box).opacity") == "1"


MNIST = {"noise_multiplier": 1.1, "sample_rate": 0.00427, "steps": 14_063, "delta": 1e-5, "adjacency": "substitute"}


@on("explorer", "attacker", "runs")
def test_a_preset_is_a_training_and_the_address_keeps_it(page):
    before = page.locator("[data-shown=answer]").inner_text()
    page.get_by_role("button", name="MNIST").click()
    page.locator(ANSWERED).first.wait_for()
    answer, epsilon = page.locator("[data-shown=answer]").inner_text(), accounting.epsilon(**MNIST)
    field = page.locator("[data-input=epsilon]")
    if field.count():
        assert float(field.input_value()) == pytest.approx(epsilon, abs=0.006)
    else:
        assert shown(page, "substitute") == pytest.approx(epsilon, rel=explorers.WITHIN / 100)
    page.goto(page.url)
    assert page.locator("[data-shown=answer]").inner_text() == answer != before


@on("attacker")
def test_what_an_attacker_finds_is_the_closed_form(page):
    for epsilon, delta, rate in ((1, 1e-5, 0.05), (4.38, 1e-6, 0.01), (0.1, 0.01, 0.1)):
        answer = fill(page, epsilon=epsilon, delta=delta, rate=rate)
        missed = max(0, 1 - delta - np.exp(epsilon) * rate, np.exp(-epsilon) * (1 - delta - rate))
        assert f"at most {100 * (1 - missed):.1f} %, whatever the mechanism." in answer
        gaussian = norm.cdf(norm.ppf(rate) + accounting.gdp_mu(epsilon, delta))
        assert shown(page, "gdp") == pytest.approx(100 * gaussian, abs=0.06)
        right = (math.exp(epsilon) + delta) / (1 + math.exp(epsilon))
        told = page.locator("[data-shown=risk]").inner_text()
        assert f"guesses right at most {math.ceil(100 * right - 1e-6)} times in 100, whatever mechanism" in told
        gaussian = norm.cdf(accounting.gdp_mu(epsilon, delta) / 2)
        assert f"and {math.ceil(100 * gaussian - 1e-6)} times if it is a Gaussian mechanism" in told


@pytest.mark.slow
@on("runs")
def test_the_plan_is_the_librarys(page):
    for epsilon, share, claim, alpha in ((10, 80, "gdp", 0.05), (4, 50, "dp", 0.01), (2, 60, "gdp", 0.1)):
        answer = fill(page, epsilon=epsilon, share=share, claim=claim, alpha=alpha, runs=1_000)
        needed = runs_needed(share / 100 * epsilon, delta=1e-5, truth=epsilon, claim=claim, alpha=alpha)
        said = float(re.search(r"takes about ([\d,]+) runs", answer)[1].replace(",", ""))
        assert said == pytest.approx(needed, rel=0.15)
        ceiling = max_certifiable_epsilon(1_000, delta=1e-5, claim=claim, alpha=alpha)
        assert shown(page, "ceiling") == pytest.approx(ceiling, rel=0.01)
    assert "more than 500,000 runs" in fill(page, epsilon=0.2, share=99)


@on("game")
def test_the_first_audit_of_the_game_lies(page):
    answer = page.locator("[data-shown=answer]").inner_text()
    truth, best, ranks = map(float, re.findall(r"ε [=≥] (\d+\.\d+)", answer))
    assert truth == round(accounting.gdp_epsilon(1.0, game.DELTA), 2)
    assert best > truth > ranks
    assert "so it is wrong" in answer


@on("game")
def test_the_game_shows_the_bound_of_the_counts_it_shows(page):
    for cut, delta in ((0.5, 1e-5), (1.3, 1e-5), (-0.4, 1e-3)):
        fill(page, threshold=cut, delta=delta)
        counts = [int(page.locator(f"[data-shown={rate}]").inner_text().split("/")[0]) for rate in ("fpr", "fnr")]
        scores = np.concatenate([np.arange(12_500) < counts[0], np.arange(12_500) >= counts[1]]).astype(float)
        bound = epsilon_lower_bound(scores, np.repeat([1, 0], 12_500), delta=delta, rule=0.5)
        assert shown(page, "yours") == pytest.approx(bound.epsilon, abs=0.02)
        assert shown(page, "best") >= shown(page, "yours")
        assert shown(page, "best") > shown(page, "ranks") > 2


@on("game")
def test_a_hundred_games_count_the_lies(page):
    before = page.locator("[data-shown=best]").inner_text()
    page.get_by_text("another audit").click()
    assert page.locator("[data-shown=best]").inner_text() != before
    page.get_by_text("play 100 times").click()
    best, ranks = map(int, re.findall(r"in (\d+)", page.locator("[data-shown=answer]").inner_text()))
    assert ranks <= binom.ppf(0.9999, 100, 0.05)
    assert best > ranks
    assert f"about {game.TOO_HIGH[12_500][1]} of 100 plays" in page.locator("[data-shown=often]").inner_text()
    truth = float(page.locator("line[data-mark=truth]").get_attribute("x1"))
    for row, wrong in (("best", best), ("ranks", ranks)):
        dots = page.locator(f"[data-row={row}] circle")
        places = dots.evaluate_all("all => all.map(one => Number(one.getAttribute('cx')))")
        assert len(places) == 100
        assert sum(place > truth for place in places) == wrong
    fill(page, runs=125)
    assert not page.locator("[data-part=bounds]").is_visible()


@on("game")
def test_the_threshold_can_be_dragged(page):
    box = page.locator("[data-part=scores]").bounding_box()
    page.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 60)
    page.mouse.up()
    page.locator(ANSWERED).first.wait_for()
    assert float(page.locator("[data-input=threshold]").input_value()) == pytest.approx(1.0, abs=0.02)
    page.mouse.move(box["x"] + 0.8 * box["width"], box["y"] + 60)
    assert float(page.locator("[data-input=threshold]").input_value()) == pytest.approx(1.0, abs=0.02)


@on("drift")
def test_the_animation_plays_pauses_and_can_be_stepped(page):
    slider, button = page.locator("[data-input=step]"), page.locator("[data-do=play]")
    visible = (
        "[...document.querySelectorAll('[data-part=bounds] rect')].filter(r => r.style.visibility === 'visible').length"
    )
    assert slider.input_value() == "4"
    assert page.evaluate(visible) == 5
    button.click()
    assert button.inner_text() == "pause"
    assert page.evaluate(visible) < 5
    button.click()
    assert button.inner_text() == "play"
    slider.focus()
    page.keyboard.press("Home")
    assert page.evaluate(visible) == 1
    assert page.locator("[data-shown=answer]").inner_text().startswith("After 100 steps the audit shows ε ≥ ")
    assert page.locator("[data-world=z]").get_attribute("points")
    button.click()
    page.wait_for_function("document.querySelector('[data-shown=answer]').textContent.startsWith('After 200 steps')")
    assert page.locator("[data-shown=answer]").get_attribute("aria-live") == "off"


@on("drift")
def test_the_animation_is_still_for_those_who_want_it_still(page):
    page.emulate_media(reduced_motion="reduce")
    page.reload()
    assert not page.locator("[data-do=play]").is_visible()
    page.locator("[data-input=step]").focus()
    page.keyboard.press("Home")
    assert page.locator("[data-shown=answer]").inner_text().startswith("After 100 steps")


@on(*PAGES)
def test_a_page_is_accessible_fits_and_asks_for_nothing(page):
    assert page.locator("[aria-live], [role=status]").count() == 1
    assert page.locator("[role=status]").inner_text().count(".") >= 1
    unnamed = page.evaluate(
        "[...document.querySelectorAll('input, select')].filter(one => !one.labels.length && !one.ariaLabel).length"
    )
    assert unnamed == 0
    if page.get_by_text("play 100 times").count():
        page.get_by_text("play 100 times").click()
    for width in (320, 360, 768, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_timeout(50)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        sizes = page.evaluate(
            """[...document.querySelectorAll('svg:not([hidden])')].flatMap(svg =>
            [...svg.querySelectorAll('text')].map(text => parseFloat(getComputedStyle(text).fontSize)
                * svg.getBoundingClientRect().width / svg.viewBox.baseVal.width))"""
        )
        assert min(sizes, default=12) >= 12, width
    assert all(address.startswith("http://127.0.0.1") for address in page.asked)
    assert page.errors == []
