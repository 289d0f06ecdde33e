import os
import shutil

import matplotlib as mpl
import pytest
import torch

mpl.use("agg")
torch.set_num_threads(1)  # pytest-xdist runs one process a core already
os.environ["HF_HUB_OFFLINE"] = "1"  # read when that library is first imported

CHROMIUM = shutil.which("chromium")
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
FLAGS += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]


@pytest.fixture(scope="module")
def browser():
    """Debian's chromium; no longer than one file's tests, since its event loop keeps others from running."""
    if CHROMIUM is None:
        pytest.skip("Debian's chromium is not installed")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as session:
        started = session.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield started
        started.close()
