"""What a browser finds on each page of the built site: weight, scroll, console, accessibility, requests elsewhere.

A page is looked at 1280 and 360 pixels wide, in light and in dark mode.

look.py [FOLDER] [--pages WORD ...] prints a table of the site in _build/html, or in another folder.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import http.server
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import yaml

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "_build" / "html"
WIDTHS = {"desktop": 1280, "phone": 360}
CHECKS = [  # a mode changes colours only, and a width what fits
    ("desktop", "light", []),
    ("desktop", "dark", ["color-contrast"]),
    ("phone", "dark", ["color-contrast", "scrollable-region-focusable", "target-size"]),
    ("phone", "light", ["color-contrast"]),
]
RESIZED = 250  # milliseconds after which a page has taken its new width
SERIOUS = ("serious", "critical")
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
FLAGS += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
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


@dataclass
class Look:
    """What was found on one page."""

    name: str
    weight: int = 0  # bytes of everything that a first visit asks for
    overflow: dict[str, int] = field(default_factory=dict)  # pixels that the page is wider than its window
    cut: list[str] = field(default_factory=list)  # what is wider than its place and does not scroll
    unset: int = 0  # formulas that are still TeX
    console: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)
    findings: dict[str, str] = field(default_factory=dict)  # a rule of axe, in a mode: the first element that breaks it


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """The folder's address on this machine; no file is cached."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

        def end_headers(self) -> None:
            self.send_header("Cache-Control", "no-store")
            super().end_headers()

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder))
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def pages(site: Path) -> list[str]:
    """The site's pages, the reader's own first; not those that only redirect."""
    found = sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html"))
    found = [name for name in found if not name.startswith(("_static/", "_sources/"))]
    return [name for name in found if 'http-equiv="Refresh"' not in (site / name).read_text()[:1000]]


def listed(toc: Path) -> list[str]:
    """The pages that a table of contents lists, the opening page first."""

    def below(entries: list[dict[str, Any]]) -> Iterator[str]:
        for entry in entries:
            yield entry["file"]
            yield from below(entry.get("sections", []))

    read = yaml.safe_load(toc.read_text())
    return [read["root"], *(name for part in read["parts"] for name in below(part["chapters"]))]


def look(page: Any, axe: str, address: str, name: str, site: Path) -> Look:
    """One page in light and dark, wide and narrow, loaded once."""
    seen = Look(name)
    asked: set[str] = set()

    def remember(request: Any) -> None:
        asked.add(request.url)

    def note(message: Any) -> None:
        if message.type in ("error", "warning"):
            seen.console.append(f"{message.type}: {message.text} {message.location.get('url', '')}".strip())

    def fail(error: Any) -> None:
        seen.console.append(f"uncaught: {error}")

    listeners = {"request": remember, "console": note, "pageerror": fail}
    for event, listener in listeners.items():
        page.on(event, listener)
    try:
        page.set_viewport_size({"width": WIDTHS["desktop"], "height": 900})
        page.goto(f"{address}/{name}", wait_until="load")
        page.evaluate(SETTLED)
        page.evaluate(axe)
        for screen, mode, rules in CHECKS:
            page.set_viewport_size({"width": WIDTHS[screen], "height": 900})
            page.evaluate(f"{MARKED}.theme = {MARKED}.mode = '{mode}'")
            if screen not in seen.overflow:
                page.wait_for_timeout(RESIZED)
                seen.overflow[screen] = page.evaluate(OVERFLOW)
                seen.cut += page.evaluate(CUT)
            seen.findings |= {f"{rule}, {mode}, {screen}": where for rule, where in violations(page, rules)}
        seen.unset = page.evaluate(UNSET)
    finally:
        for event, listener in listeners.items():
            page.remove_listener(event, listener)
    local = [url for url in asked if url.startswith(address)]
    seen.elsewhere = sorted(url for url in asked if not url.startswith((address, "data:", "blob:")))
    seen.weight = sum(size(site / unquote(urlsplit(url).path).lstrip("/")) for url in local)
    return seen


def size(path: Path) -> int:
    """The bytes of a file, 0 where there is none."""
    return path.stat().st_size if path.is_file() else 0


def violations(page: Any, rules: list[str]) -> Iterator[tuple[str, str]]:
    """The rules (these, or all) that are broken seriously, each with its first element."""
    options = {"resultTypes": ["violations"], "preload": False} | ({"runOnly": rules} if rules else {})
    for broken in page.evaluate("options => axe.run(options).then(found => found.violations)", options):
        if broken["impact"] in SERIOUS:
            yield broken["id"], f"{len(broken['nodes'])} × {broken['nodes'][0]['html'][:100]}"


@contextlib.contextmanager
def calm_page(browser: Any) -> Iterator[Any]:
    """A page without motion, so that a change of mode is done at once."""
    context = browser.new_context(reduced_motion="reduce")
    try:
        yield context.new_page()
    finally:
        context.close()


def row(seen: Look) -> str:
    """A line of the table."""
    rules = {finding.split(",")[0] for finding in seen.findings}
    said = len(seen.console)
    return (
        f"{seen.name:<45} {seen.weight / 1e6:7.2f} {seen.overflow['desktop']:6d} {seen.overflow['phone']:6d} "
        f"{len(seen.cut):4d} {said:8d} {len(seen.elsewhere):9d} {len(rules):5d}  {', '.join(sorted(rules))}"
    )


def details(seen: Look) -> list[str]:
    """Each thing that was found, on a line of its own."""
    return [*seen.cut, *sorted(set(seen.console)), *(f"{rule}: {where}" for rule, where in seen.findings.items())]


def main() -> int:
    from axe_playwright_python.base import AXE_SCRIPT
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("site", nargs="?", type=Path, default=SITE)
    parser.add_argument("--pages", nargs="*", default=[""], help="only pages whose names hold one of these words")
    parser.add_argument("--details", action="store_true", help="each console message and each element")
    asked = parser.parse_args()
    start = time.monotonic()
    print(f"{'page':<45} {'MB':>7} {'x 1280':>6} {'x 360':>6} {'cut':>4} {'console':>8} {'elsewhere':>9} {'axe':>5}")
    with served(asked.site) as address, sync_playwright() as session:
        browser = session.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        with calm_page(browser) as page:
            for name in pages(asked.site):
                if not any(word in name for word in asked.pages):
                    continue
                seen = look(page, AXE_SCRIPT, address, name, asked.site)
                print(row(seen), flush=True)
                if asked.details:
                    print("".join(f"    {line}\n" for line in details(seen)), end="")
        browser.close()
    print(f"{time.monotonic() - start:.0f} s")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
