"""Make a built site small: without what no page asks for, with short pages, figures, style sheets and fonts."""

from __future__ import annotations

import re
import shutil
from html import unescape
from importlib.util import find_spec
from pathlib import Path

import copies
import nbformat
import thumbnails
from fontTools import subset
from fontTools.ttLib import TTFont
from scour import scour

UNUSED_FILES = (
    "_static/locales",  # the theme's translations, which are read while building
    "_static/vendor/fontawesome/*/js",  # draws icons that the fonts and their style sheet show, too
    "_static/vendor/fontawesome/*/webfonts/*.ttf",  # browsers take the .woff2
    "_static/vendor/fontawesome/*/webfonts/fa-v4compatibility.*",
    "_static/**/*.map",
    "_static/sphinx-thebe.*",
    "_sources/book/*.ipynb",  # pages that show several notebooks
)
UNUSED_TAGS = re.compile(
    r"\s*<script [^>]*vendor/fontawesome/[^>]*></script>"
    r"|\s*<link [^>]*fa-(?:brands|regular)-400[^>]*/>"  # preloads: the style sheet loads them
)
AS_TEXT = ("n", "nn", "p", "pre", "w")  # names, punctuation and spaces of code, which have the colour of its text
TOKEN = re.compile(rf'<span class="(?:{"|".join(AS_TEXT)})">([^<]*)</span>')
SHORT_SVG = {"digits": 5, "cdigits": 5, "shorten_ids": True, "strip_ids": True, "strip_comments": True,
             "remove_metadata": True, "strip_xml_prolog": True, "indent_type": "none", "newlines": False}  # fmt: skip
GROUND = re.compile(  # of a figure of matplotlib's, and of its axes
    r'(<g id="(?:figure_1|axes_\d+)">\s*)<g id="patch_\d+">\s*<path [^>]*style="fill: #ffffff"/>\s*</g>'
)
FIGURE = re.compile(r'<img (?=[^>]*\bsrc="([^"]*_images/[^"]+\.svg)")(?![^>]*\b(?:width|loading)=)')
COMMENT = re.compile(r"/\*(?!!).*?\*/", re.DOTALL)  # but for those that state a license
RULE = re.compile(r"(?:^|(?<=[{};/]))[^{}@;/]+\{[^{}]*\}")
CLASS = re.compile(r"\.(-?[A-Za-z_](?:[\w-]|\\.)*)")
EMPTY = re.compile(r"@(?:media|supports)[^{}]*\{\s*\}")
ICON = re.compile(r'[\ue000-\uf8ff]|(?<=")\\[ef][0-9a-f]{3}(?=")')
FORMULA = re.compile(r"<math.*?</math>", re.DOTALL)
PRIME, ROOT = 0x2032, 0x221A
# What formulas show without naming it: roots, and single letters in italics.
UNNAMED = {ROOT, 0x210E, *range(0x1D434, 0x1D468), *range(0x1D6E2, 0x1D71C)}


def slim(site: Path, notebooks: Path) -> None:
    """Take out of a built site what no page asks for, shorten what is left, and offer the notebooks' sources."""
    for path in (path for pattern in UNUSED_FILES for path in site.glob(pattern)):
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    formulas: set[int] = set()
    words: set[str] = set()
    for path in site.rglob("*.html"):
        text = TOKEN.sub(r"\1", UNUSED_TAGS.sub("", path.read_text()))
        path.write_text(text)
        words |= set(re.findall(r"[\w-]+", text))
        formulas |= {ord(one) for formula in FORMULA.findall(text) for one in unescape(formula)}
    for path in site.glob("_static/**/*.js"):
        words |= set(re.findall(r"[\w-]+", path.read_text()))
    icons: set[int] = set()
    for path in site.glob("_static/**/*.css"):
        path.write_text(used_rules(path.read_text(), words))
        icons |= {ord(icon) if len(icon) == 1 else int(icon[1:], 16) for icon in ICON.findall(path.read_text())}
    for path in site.glob("_static/vendor/fontawesome/*/webfonts/*.woff2"):
        write_font(TTFont(path), icons, path)
    if formulas:
        write_font(mathematical(), formulas | UNNAMED, site / "_static" / "math.woff2")
    options = scour.sanitizeOptions()
    vars(options).update(SHORT_SVG)
    for path in site.glob("_images/*.svg"):
        path.write_text(scour.scourString(GROUND.sub(r"\1", path.read_text()), options))
    for path in site.rglob("*.html"):
        path.write_text(with_figures_later(path.read_text(), path.parent))
    offered = [*site.glob("_sources/notebooks/*.ipynb"), *site.glob("_downloads/*/*.ipynb")]
    for path in offered:  # what is downloaded runs in JupyterLab
        nbformat.write(copies.for_readers(nbformat.read(notebooks / path.name, as_version=4)), path)


def with_figures_later(page: str, folder: Path) -> str:
    """A page whose figures load when they come into view, all but the first. Room is kept for each."""
    first = FIGURE.search(page)

    def later(figure: re.Match[str]) -> str:
        if figure.start() == first.start():
            return figure[0]
        return f'<img loading="lazy" {thumbnails.room((folder / figure[1]).read_text())} '

    return FIGURE.sub(later, page)


def used_rules(style: str, words: set[str]) -> str:
    """A style sheet without the selectors that name a class which is not among the words of pages and scripts.

    A word that ends in a hyphen stands for all classes that begin so, since scripts compose names.
    """
    beginnings = tuple(word for word in words if re.search(r"\w-$", word))

    def used(selector: str) -> bool:
        return all("\\" in name or name in words or name.startswith(beginnings) for name in CLASS.findall(selector))

    def shorter(rule: re.Match[str]) -> str:
        selectors, _, declarations = rule[0].partition("{")
        if "(" in selectors:  # such as :not(.this, .that)
            return rule[0]
        left = [selector for selector in selectors.split(",") if used(selector)]
        return ",".join(left) + "{" + declarations if left else ""

    return EMPTY.sub("", RULE.sub(shorter, COMMENT.sub("", style)))


def mathematical() -> TTFont:
    """STIX Two Math as browsers need it.

    Its prime is the one for superscripts, which they do not choose by themselves. Its roots are all as wide as the
    smallest, since Chromium leaves room for the widest behind each, and their bars clear of letters on any screen.
    """
    package = find_spec("ziamath")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("ziamath must be installed, which brings the font of formulas: pip install ziamath")
    font = TTFont(Path(package.origin).with_name("fonts") / "STIXTwoMath-Regular.ttf")
    for table in font["cmap"].tables:
        if PRIME in table.cmap:
            table.cmap[PRIME] = "minute.ssty"
    font["MATH"].table.MathConstants.RadicalVerticalGap.Value = 150
    variants, widths = font["MATH"].table.MathVariants, font["hmtx"]
    smallest = font.getBestCmap()[ROOT]
    roots = variants.VertGlyphConstruction[variants.VertGlyphCoverage.glyphs.index(smallest)]
    names = [root.VariantGlyph for root in roots.MathGlyphVariantRecord]
    for name in names + [part.glyph for part in roots.GlyphAssembly.PartRecords]:
        narrower = widths[smallest][0] / widths[name][0]
        font["glyf"][name].coordinates.scale((narrower, 1))
        widths[name] = (widths[smallest][0], round(narrower * widths[name][1]))
    return font


def write_font(font: TTFont, characters: set[int], path: Path) -> None:
    """Write a font with these characters only."""
    options = subset.Options(hinting=False, layout_features=[], notdef_outline=True)
    options.name_IDs += [13, 14]  # the license
    subsetter = subset.Subsetter(options)
    subsetter.populate(unicodes=characters)
    subsetter.subset(font)
    font.flavor = "woff2"
    font.save(path)
