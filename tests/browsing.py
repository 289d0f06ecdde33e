"""What tests of explorers and of the built site share: a server of a folder, and the site's pages."""

import contextlib
import functools
import http.server
import threading
from pathlib import Path

import yaml

ROOT = Path(__file__).parent.parent
SITE = ROOT / "_build" / "html"
SETTINGS = [  # at which explorers are compared with the accountant
    {"sigma": 1.1, "q": 0.004, "steps": 15_000, "delta": 1e-5},
    {"sigma": 48.4, "q": 1, "steps": 500, "delta": 1e-6},
    {"sigma": 0.8, "q": 0.25, "steps": 1, "delta": 1e-3},
    {"sigma": 5, "q": 0.1, "steps": 2_000, "delta": 1e-9},
]


@contextlib.contextmanager
def served(folder):
    """The folder's address on this machine; no file is cached."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def end_headers(self):
            self.send_header("Cache-Control", "no-store")
            super().end_headers()

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder))
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def pages():
    """The built pages, without those that only redirect or show source code."""
    names = sorted(path.relative_to(SITE).as_posix() for path in SITE.rglob("*.html"))
    names = [name for name in names if not name.startswith(("_static/", "_sources/", "_modules/"))]
    return [name for name in names if 'http-equiv="refresh"' not in (SITE / name).read_text()[:1000].lower()]


def listed(root=ROOT):
    """The pages that the table of contents lists."""

    def below(entries):
        for entry in entries:
            yield entry["file"]
            yield from below(entry.get("sections", []))

    toc = yaml.safe_load((root / "book/_toc.yml").read_text())
    return [toc["root"], *(name for part in toc["parts"] for name in below(part["chapters"]))]
