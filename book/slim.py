"""Take out of the built site what no page asks for, and write its figures with fewer characters."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

# Of MathJax: formulas from TeX, in its fonts. The menu, which offers the rest, is switched off in _config.yml.
MATHJAX = ("tex-chtml.js", "output/chtml/fonts/woff-v2")
UNUSED = (
    "_static/locales",  # the theme's translations, which are read while building
    "_static/vendor/fontawesome/*/js",  # draws icons that the fonts and their style sheet show, too
    "_static/vendor/fontawesome/*/webfonts/*.ttf",  # browsers take the .woff2
    "_static/**/*.map",
    "_static/sphinx-thebe.*",
)
NEVER_USED = tuple(
    re.compile(pattern)
    for pattern in (
        r'\s*<script src="[^"]*vendor/fontawesome/[^"]*"></script>',
        r"\s*<script>const THEBE_JS_URL(?:(?!</script>).)*</script>",
        r'\s*<script [^>]*src="[^"]*sphinx-thebe\.js[^"]*"></script>',
        r'\s*<link [^>]*href="[^"]*sphinx-thebe\.css[^"]*" />',
        r'\s*<link rel="preload" as="font"[^>]*fa-(?:brands|regular)-400[^>]*/>',  # the style sheet loads them
    )
)
MATHJAX_SCRIPTS = re.compile(
    r'\s*<script>window\.MathJax = (?:(?!</script>).)*</script>|\s*<script [^>]*src="[^"]*mathjax/[^"]*"></script>'
)
AS_TEXT = ("n", "nn", "p", "w")  # names, punctuation and spaces of code, which have the colour of its text
TOKEN = re.compile(rf'<span class="(?:{"|".join(AS_TEXT)})">([^<]*)</span>')
NUMBER = r"-?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
PATH = re.compile(r'(?<= d=")([^"]*)(?=")')
PLACES = re.compile(rf'(?<= )(x|y|width|height|points)="({NUMBER}(?:[ ,]+{NUMBER})*)"')
STYLE = re.compile(r'style="([^"]*)"')
SHIFTED = re.compile(rf'<use xlink:href="(#[^"]+)" transform="translate\(({NUMBER}) 0\)"/>')
SAME_STYLE = re.compile(
    r'<use xlink:href="#[^"]+" x="[^"]*" y="[^"]*" style="([^"]*)"/>'
    r'(?:<use xlink:href="#[^"]+" x="[^"]*" y="[^"]*" style="\1"/>)*'
)
DECIMALS = 2  # of a point, 1/72 inch


def slim(site: Path, notebooks: Path) -> None:
    """Slim a built site, and offer these sources of its notebooks. What is slim already stays as it is."""
    for path in sorted((site / "_static" / "mathjax").rglob("*"), reverse=True):
        name = path.relative_to(site / "_static" / "mathjax").as_posix()
        if not any(name == kept or name.startswith(f"{kept}/") or kept.startswith(f"{name}/") for kept in MATHJAX):
            remove(path)
    for pattern in UNUSED:
        for path in list(site.glob(pattern)):
            remove(path)
    for path in site.rglob("*.html"):
        path.write_text(page(path.read_text()))
    for path in [*site.glob("_static/**/*.css"), *site.glob("_static/**/*.js")]:
        text = path.read_text()
        path.write_text(re.sub(r"\n?(?:/\*# |//# )sourceMappingURL=[^\s*]*(?: ?\*/)?", "", text))
    for path in site.glob("_images/*.svg"):
        path.write_text(figure(path.read_text()))
    for path in site.glob("_sources/notebooks/*.ipynb"):  # what is downloaded runs in JupyterLab
        shutil.copyfile(notebooks / path.name, path)


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def page(html: str) -> str:
    """The page without scripts, fonts and marks of code that it does not use."""
    for pattern in NEVER_USED:
        html = pattern.sub("", html)
    html = TOKEN.sub(r"\1", html)
    return html if 'class="math' in html else MATHJAX_SCRIPTS.sub("", html)


def figure(svg: str) -> str:
    """A figure of matplotlib's in fewer characters: its places rounded to 1/100 point, and short names inside it."""
    if "matplotlib.org" not in svg or "<text" in svg:
        return svg
    svg = re.sub(r"\s*<metadata>.*?</metadata>|\s*<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = PATH.sub(lambda found: path_data(found[1]), svg)
    svg = PLACES.sub(lambda found: f'{found[1]}="{rounded_all(found[2])}"', svg)
    svg = re.sub(r">\s+<", "><", svg)
    svg = STYLE.sub(lambda found: found[0].replace(": ", ":").replace("; ", ";"), svg)
    return named_shortly(SAME_STYLE.sub(styled_once, SHIFTED.sub(shifted, svg)))


def shifted(use: re.Match[str]) -> str:
    """A letter moved along its line, by its place and not by a transformation."""
    return f'<use xlink:href="{use[1]}" x="{rounded_all(use[2])}"/>'


def styled_once(uses: re.Match[str]) -> str:
    """Marks of one style that follow each other, as a group of that style."""
    style = f' style="{uses[1]}"'
    return uses[0] if uses[0].count("<use ") == 1 else f"<g{style}>{uses[0].replace(style, '')}</g>"


def named_shortly(svg: str) -> str:
    """Names that are referred to, as numbers; names that are not, left out."""
    used = dict.fromkeys(re.findall(r'(?<=xlink:href="#)[^"]+(?=")|(?<=url\(#)[^)]+(?=\))', svg))
    short = {name: f"a{i}" for i, name in enumerate(used)}
    svg = re.sub(r' id="([^"]+)"', lambda found: f' id="{short[found[1]]}"' if found[1] in short else "", svg)
    return re.sub(r'(?<=xlink:href="#)[^"]+(?=")|(?<=url\(#)[^)]+(?=\))', lambda found: short[found[0]], svg)


def rounded_all(numbers: str) -> str:
    return re.sub(NUMBER, lambda found: shortest(hundredths(found[0])), numbers)


def hundredths(number: str) -> int:
    return round(float(number) * 10**DECIMALS)


def shortest(value: int) -> str:
    """A number of hundredths in the fewest characters: "-.5" for -50."""
    whole, part = divmod(abs(value), 10**DECIMALS)
    text = (str(whole) if whole or not part else "") + (f".{part:0{DECIMALS}d}".rstrip("0") if part else "")
    return f"-{text}" if value < 0 else text


def path_data(data: str) -> str:
    """A path of lines and curves by absolute places, as matplotlib writes it, by relative ones; others unchanged.

    Rounded places are whole hundredths, so that the sums of their differences are exact.
    """
    pieces = re.findall(rf"[A-Za-z]|{NUMBER}", data)
    if set(re.findall("[A-Za-z]", re.sub(NUMBER, "", data))) - set("MLQCz"):
        return data
    return "".join(_relative(pieces))


def _relative(pieces: list[str]) -> Iterator[str]:
    x = y = begin_x = begin_y = at = 0
    last = ""
    while at < len(pieces):
        command = pieces[at]
        at += 1
        if command == "z":
            x, y, last = begin_x, begin_y, ""
            yield "z"
            continue
        points = {"M": 1, "L": 1, "Q": 2, "C": 3}[command]
        values = [hundredths(number) for number in pieces[at : at + 2 * points]]
        at += 2 * points
        moved = [value - (y if i % 2 else x) for i, value in enumerate(values)]
        x, y = values[-2:]
        if command == "M":
            begin_x, begin_y = x, y
            yield "M" + joined(values)
        elif command == "L" and 0 in moved:
            command = "h" if moved[1] == 0 else "v"
            yield (command if command != last else " " * (sum(moved) >= 0)) + shortest(sum(moved))
        else:
            text = joined(moved)
            yield (command.lower() if command != last else " " * (not text.startswith("-"))) + text
        last = command


def joined(values: list[int]) -> str:
    """Numbers beside each other, with a blank where the next has no sign of its own."""
    texts = [shortest(value) for value in values]
    return "".join(text if i == 0 or text.startswith("-") else f" {text}" for i, text in enumerate(texts))
