"""What the built site weighs, and what a browser says of its pages."""

import json
import re
from pathlib import Path

import pytest
import slim
from look import served
from test_browser import BOOK

ROOT = Path(__file__).parent.parent
MEGABYTE = 1e6
SITE, FIRST_VISIT = 12.0, 1.5  # the most that they may weigh, uncompressed

pytestmark = pytest.mark.xdist_group("browser")
BUILT = pytest.mark.skipif(not (BOOK / "index.html").exists(), reason="the book is not built: make book")


PATIENCE = 120_000  # milliseconds, beside other work


def opened(browser):
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.set_default_timeout(PATIENCE)
    return page


def weight(places):
    return sum(path.stat().st_size for path in places if path.is_file()) / MEGABYTE


@pytest.mark.book
@BUILT
def test_the_site_is_light():
    assert weight(BOOK.rglob("*")) < SITE


@pytest.mark.book
@BUILT
def test_a_first_visit_is_light(browser):
    with served(BOOK) as address:
        page = opened(browser)
        seen = {}
        page.on("response", lambda response: seen.setdefault(response.url, response.status))
        page.goto(address, wait_until="networkidle")
        page.wait_for_url("**/book/intro.html")
        page.wait_for_load_state("networkidle")
        page.close()
    places = [BOOK / url.removeprefix(f"{address}/").split("?")[0] for url in seen if url.startswith(address)]
    assert len(places) > 10
    assert weight(places) < FIRST_VISIT


@pytest.mark.book
@BUILT
def test_no_page_complains_or_misses_a_file(browser):
    complaints = {}
    with served(BOOK) as address:
        for path in sorted(BOOK.rglob("*.html")):
            if "_static" in path.parts or path.name == "index.html":
                continue
            page = opened(browser)
            found = []
            page.on("console", lambda said, found=found: said.type == "log" or found.append(said.text))
            page.on("pageerror", lambda error, found=found: found.append(str(error)))
            page.on("response", lambda answer, found=found: answer.ok or found.append(f"{answer.status} {answer.url}"))
            page.goto(f"{address}/{path.relative_to(BOOK)}", wait_until="networkidle")
            page.close()
            if found:
                complaints[path.name] = found
    assert not complaints


@pytest.mark.book
@BUILT
def test_icons_and_formulas_are_drawn_and_read_aloud(browser):
    with served(BOOK) as address:
        page = opened(browser)
        page.goto(f"{address}/book/what_does_my_epsilon_protect.html", wait_until="networkidle")
        page.evaluate("MathJax.startup.promise")
        for family in ("Font Awesome", "MJX"):
            loaded = f"one => one.status == 'loaded' && one.family.includes('{family}')"
            page.wait_for_function(f"() => [...document.fonts].some({loaded})")
        drawn = "[...document.querySelectorAll('i[class*=fa-]')].filter(icon => icon.offsetParent)"
        icons = page.evaluate(f"{drawn}.map(icon => getComputedStyle(icon, '::before').content)")
        assert icons
        assert not {"none", "normal", '""'} & set(icons)
        formulas = page.locator("mjx-container").count()
        assert formulas
        assert page.locator("mjx-assistive-mml math").count() == formulas
        page.close()


@pytest.mark.book
@BUILT
def test_the_download_button_gives_the_notebook_as_it_is_in_the_repository(browser):
    with served(BOOK) as address:
        page = opened(browser)
        page.goto(f"{address}/notebooks/quickstart.html")
        link = page.locator("a[href$='quickstart.ipynb']").first.get_attribute("href")
        given = page.request.get(f"{address}/notebooks/{link}").body()
        page.close()
    assert json.loads(given) == json.loads((ROOT / "notebooks/quickstart.ipynb").read_text())


PAGE = """<html><head>
  <script src="../_static/vendor/fontawesome/6.5.2/js/all.min.js?digest=d"></script>
  <link rel="preload" as="font" type="font/woff2" href="../fa-solid-900.woff2" />
<link rel="preload" as="font" type="font/woff2" href="../fa-brands-400.woff2" />
    <script>const THEBE_JS_URL = "u"; const thebe_selector = ".cell"</script>
    <script async="async" src="../_static/sphinx-thebe.js?v=c"></script>
    <link rel="stylesheet" type="text/css" href="../_static/sphinx-thebe.css?v=4" />
    <script>let toggleHintShow = 'Click to show';</script>
    <script>window.MathJax = {"options": {}}</script>
    <script defer="defer" src="../_static/mathjax/tex-chtml.js"></script>
    <script>DOCUMENTATION_OPTIONS.pagename = 'page';</script>
</head><body>%s</body></html>"""
SLIM = """<html><head>
  <link rel="preload" as="font" type="font/woff2" href="../fa-solid-900.woff2" />
    <script>let toggleHintShow = 'Click to show';</script>
    <script>DOCUMENTATION_OPTIONS.pagename = 'page';</script>
</head><body>%s</body></html>"""


def test_pages_keep_what_they_use():
    assert slim.page(PAGE % "") == SLIM % ""
    formula = '<span class="math notranslate nohighlight">x</span>'
    found = slim.page(PAGE % formula)
    assert "THEBE" not in found
    assert found.count("mathjax/tex-chtml.js") == found.count("window.MathJax") == 1
    assert slim.page(found) == found


def test_code_keeps_the_marks_that_have_a_colour_of_their_own():
    code = '<pre><span class="kn">import</span><span class="w"> </span><span class="nn">dpsub</span></pre>'
    assert slim.page(code) == '<pre><span class="kn">import</span> dpsub</pre>'


@pytest.mark.book
@BUILT
@pytest.mark.parametrize("name", slim.AS_TEXT)
def test_marks_that_are_left_out_have_the_colour_of_their_text(name):
    styles = (BOOK / "_static/pygments.css").read_text()
    for theme in ("light", "dark"):
        begin = rf'html\[data-theme="{theme}"\] \.highlight'
        (text,) = re.findall(begin + r" \{[^}]*?(color: #\w+)", styles)
        assert re.findall(begin + rf" \.{name} \{{ (color: #\w+)", styles) == [text]


@pytest.mark.parametrize(
    ("written", "short"),
    [
        ("M 0 223.39976 \nL 493.203857 223.39976 \nL 493.203857 -0 \nL 0 -0 \nz\n", "M0 223.4h493.2v-223.4h-493.2z"),
        ("M 1 1 \nL 1.004 2.006 \nL 1.008 3.014", "M1 1v1.01l.01 1"),
        ("M 10 20 Q 11 21 12 20 Q 13 19 14 20 ", "M10 20q1 1 2 0 1-1 2 0"),
        ("M 0 0 C 1 1 2 2 3 3 L 4 4 L 3 3 L 2.5 3", "M0 0c1 1 2 2 3 3l1 1-1-1h-.5"),
        ("M 1e-3 0 L 5 5 z M 2 2 L 3 4", "M0 0l5 5zM2 2l1 2"),
        ("M 5 5 L 6 5 L 8 5 L 7 5", "M5 5h1 2-1"),
        ("M 0 0 A 1 1 0 0 0 2 2", "M 0 0 A 1 1 0 0 0 2 2"),
        ("m 0.123 0 l 1 1", "m 0.123 0 l 1 1"),
        ("", ""),
    ],
)
def test_paths_are_short_and_lead_to_the_same_places(written, short):
    assert slim.path_data(written) == short


def ends(data):
    """Where each line and curve of a path ends, in hundredths; a second reading of the notation."""
    found, x, y, begin = [], 0, 0, (0, 0)
    for command, rest in re.findall(r"([A-Za-z])([^A-Za-z]*)", data):
        numbers = [round(100 * float(number)) for number in re.findall(r"-?(?:\d+\.?\d*|\.\d+)", rest)]
        step = {"m": 2, "l": 2, "q": 4, "c": 6, "h": 1, "v": 1, "z": 0}[command.lower()]
        for i in range(0, len(numbers), step) if step else [0]:
            part = numbers[i : i + step]
            along = command.islower()
            if command.lower() == "z":
                x, y = begin
            elif command == "h":
                x += part[0]
            elif command == "v":
                y += part[0]
            else:
                x, y = (x * along + part[-2], y * along + part[-1])
            begin = (x, y) if command.lower() == "m" else begin
            found.append((x, y))
    return found


def test_a_figure_of_matplotlib_is_shorter_and_its_lines_end_where_they_did(tmp_path):
    import matplotlib.pyplot as plt
    import numpy as np

    rng = np.random.default_rng(0)
    fig, ax = plt.subplots()
    ax.plot(rng.normal(size=300).cumsum(), label="a walk")
    ax.plot(rng.normal(size=20), "o--")
    ax.fill_between(range(5), range(5), 1, hatch="//")
    ax.set_xlabel("steps − α")
    ax.legend()
    fig.savefig(tmp_path / "figure.svg")
    plt.close(fig)
    before = (tmp_path / "figure.svg").read_text()
    after = slim.figure(before)
    assert len(after) < 0.6 * len(before)
    assert slim.figure(after) == after
    paths = [re.findall(r'<path[^>]* d="([^"]*)"', svg) for svg in (before, after)]
    assert len(paths[0]) == len(paths[1]) > 20
    for long, short in zip(*paths, strict=True):
        assert ends(long) == ends(short)
    assert before.count("<use ") == after.count("<use ")
    names = set(re.findall(r' id="([^"]+)"', after))
    referred = set(re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', after))
    assert {one or other for one, other in referred} == names


def test_figures_of_others_and_of_text_stay_as_they_are():
    for svg in ('<svg><path d="M 0.123 0 L 1.234 1"/></svg>', "<svg>matplotlib.org <text x='0.123'>a</text></svg>"):
        assert slim.figure(svg) == svg


def test_a_site_is_slimmed_once_and_for_all(tmp_path):
    files = {
        "_static/mathjax/tex-chtml.js": "a //# sourceMappingURL=tex.js.map\n",
        "_static/mathjax/tex-svg.js": "a",
        "_static/mathjax/sre/mathmaps/en.json": "{}",
        "_static/mathjax/output/chtml/fonts/woff-v2/Main.woff": "a",
        "_static/mathjax/output/chtml/fonts/tex.js": "a",
        "_static/mathjax/input/tex/extensions/cancel.js": "a",
        "_static/vendor/fontawesome/6.5.2/js/all.min.js": "a",
        "_static/vendor/fontawesome/6.5.2/webfonts/fa-solid-900.ttf": "a",
        "_static/vendor/fontawesome/6.5.2/webfonts/fa-solid-900.woff2": "a",
        "_static/styles/theme.css": "b { }\n/*# sourceMappingURL=theme.css.map*/",
        "_static/styles/theme.css.map": "{}",
        "_static/locales/de/x.mo": "a",
        "_sources/notebooks/page.ipynb": '{"executed": true}',
        "notebooks/page.html": PAGE % "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "repository").mkdir()
    (tmp_path / "repository/page.ipynb").write_text('{"executed": false}')
    for _ in range(2):
        slim.slim(tmp_path, tmp_path / "repository")
        kept = {
            path.relative_to(tmp_path).as_posix(): path.read_text() for path in tmp_path.rglob("*.*") if path.is_file()
        }
        assert kept == {
            "_static/mathjax/tex-chtml.js": "a \n",
            "_static/mathjax/output/chtml/fonts/woff-v2/Main.woff": "a",
            "_static/vendor/fontawesome/6.5.2/webfonts/fa-solid-900.woff2": "a",
            "_static/styles/theme.css": "b { }",
            "_sources/notebooks/page.ipynb": '{"executed": false}',
            "notebooks/page.html": SLIM % "",
            "repository/page.ipynb": '{"executed": false}',
        }
