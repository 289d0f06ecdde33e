"""What a reader of the notebooks sees in JupyterLab, with jupyterlab-myst, once all cells have run."""

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import copies
import nbformat
import presets
import pytest
from papermill.parameterize import parameterize_notebook

ROOT = Path(__file__).parent.parent
SEEN = ROOT / "_build" / "lab"
TOKEN = "dpsub"
WIDTH, TALLEST = 1280, 16_000  # pixels
SETTINGS = {
    "notebook-extension/tracker": {"windowingMode": "none"},  # every cell stays on the page
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
}
PLACES = ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTERLAB_WORKSPACES_DIR", "IPYTHONDIR")
RUN_ALL = """async () => {
    const context = jupyterapp.shell.currentWidget.sessionContext;
    await context.ready;
    await context.session.kernel.info;
    window.ran = false;  // not the promise itself: evaluating it would wait for the whole notebook
    jupyterapp.commands.execute('notebook:run-all-cells').then(() => { window.ran = true; });
}"""
ERRORS = """jupyterapp.shell.currentWidget.content.widgets
    .flatMap(cell => cell.model.toJSON().outputs || [])
    .filter(output => output.output_type === 'error')
    .map(error => `${error.ename}: ${error.evalue}`)"""
WAITING = """expressions => [...document.querySelectorAll('.myst code')]
    .every(code => !expressions.includes(code.textContent.trim()))"""
RAW = {
    "a role": r"\{[\w:-]+\}",
    "a directive": r"^\s*(:::|```)",
    "an option": r"^\s*:\w+:",
    "a label": r"^\s*\([\w-]+\)=",
    "a formula": r"\$",
    "no number": r"\bnan\b",
}
SMALL = {"runs": 600, "n_train": 100, "steps": 60, "observe_every": 20, "learning_rate": 0.01, "device": "cpu"}
OTHERS = sorted({path.stem for path in ROOT.glob("notebooks/*.ipynb")} - {"quickstart"})

pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(scope="module")
def lab(browser, tmp_path_factory):
    """JupyterLab in a folder that is laid out as the repository: its address, and the folder."""
    pytest.importorskip("jupyterlab_myst", reason="jupyterlab-myst is not installed")
    folder = tmp_path_factory.mktemp("lab")
    (folder / "notebooks").mkdir()
    for name in ("book", "results", "studies"):
        (folder / name).symlink_to(ROOT / name)
    for name, setting in SETTINGS.items():
        path = folder / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(setting))
    environment = os.environ | {name: os.fspath(folder / name) for name in PLACES}
    environment["JUPYTERLAB_SETTINGS_DIR"] = os.fspath(folder / "settings")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1", f"--port={port}",
             "--ServerApp.port_retries=0", f"--IdentityProvider.token={TOKEN}", "--LabApp.expose_app_in_browser=True"],
            cwd=folder, env=environment, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        wait_for(f"http://127.0.0.1:{port}/api?token={TOKEN}", server, folder / "log")
        yield f"http://127.0.0.1:{port}", folder
    finally:
        server.terminate()
        server.wait(30)


def wait_for(address, server, log, seconds=240):
    end = time.monotonic() + seconds
    while time.monotonic() < end and server.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(address):
            return
        time.sleep(0.1)
    pytest.fail(f"JupyterLab did not start:\n{log.read_text()}")


def copy(name, folder, **parameters):
    """A notebook with other parameters, and the expressions of its prose."""
    notebook = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)
    for cell in notebook.cells:
        cell.metadata.setdefault("tags", [])
    notebook.metadata["papermill"] = {}
    if parameters:
        notebook = parameterize_notebook(notebook, parameters)
    nbformat.write(notebook, folder / "notebooks" / f"{name}.ipynb")
    return [expression for cell in notebook.cells for expression in copies.expressions(cell)]


@contextlib.contextmanager
def after_running_all(browser, lab, name, expressions, seconds):
    address, _ = lab
    page = browser.new_page(viewport={"width": WIDTH, "height": 900})
    try:
        page.goto(f"{address}/lab/tree/notebooks/{name}.ipynb?token={TOKEN}&reset")
        page.wait_for_selector(".jp-Notebook-ExecutionIndicator[data-status=idle]", timeout=60_000)
        page.evaluate(RUN_ALL)
        page.wait_for_function("window.ran", timeout=1000 * seconds)
        assert page.evaluate(ERRORS) == []
        page.wait_for_selector(".jp-Notebook-ExecutionIndicator[data-status=idle]", timeout=60_000)
        with contextlib.suppress(Exception):  # the test says what is left
            page.wait_for_function(WAITING, arg=expressions, timeout=20_000)
        yield page
    finally:
        with contextlib.suppress(Exception):
            page.evaluate("jupyterapp.shell.currentWidget.sessionContext.shutdown()")
        page.close()


def take_picture(page, name):
    """Of the whole notebook."""
    notebook = ".jp-WindowedPanel-outer"
    height = page.evaluate(f"document.querySelector('{notebook}').scrollHeight") + 200
    page.set_viewport_size({"width": WIDTH, "height": min(height, TALLEST)})
    page.evaluate(f"document.querySelector('{notebook}').scrollTop = 0")
    page.wait_for_timeout(500)
    SEEN.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SEEN / f"{name}.png")


def see(browser, lab, name, seconds, **parameters):
    expressions = copy(name, lab[1], **parameters)
    with after_running_all(browser, lab, name, expressions, seconds) as page:
        page.evaluate("document.querySelectorAll('.myst details').forEach(solution => { solution.open = true; })")
        take_picture(page, name)
        seen = page.locator(".jp-MarkdownCell .myst")
        assert seen.count() == page.locator(".jp-MarkdownCell").count()
        prose = "\n".join(seen.all_inner_texts())
        for what, pattern in RAW.items():
            assert re.findall(pattern, prose, re.MULTILINE) == [], what
        assert not set(expressions) & {code.strip() for code in page.locator(".myst code").all_inner_texts()}
        assert page.locator(".myst [data-mime-type*=stderr]").all_inner_texts() == []
        assert page.locator(".myst [title='Cross Reference Not Found']").all_inner_texts() == []
        assert page.locator(".myst .katex-error").count() == 0
        return prose


@pytest.mark.book
def test_the_quickstart_shows_prose_with_its_numbers_and_no_markup(browser, lab):
    prose = see(browser, lab, "quickstart", 60, **SMALL)
    assert "A DP-SGD library reports the first, ε = 4.38, which" in prose
    assert "An attack on 600 models proves ε ≥ " in prose


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_every_other_notebook_shows_prose_with_its_numbers_and_no_markup(browser, lab, name):
    see(browser, lab, name, 600, **presets.sections(ROOT / "notebooks", "quick").get(name, {}))


def notebook_of(lab, name, *cells):
    """A notebook of code cells, in the lab's folder."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, lab[1] / "notebooks" / f"{name}.ipynb")


WIDGETS = {
    "epsilon_explorer": ("widgets.epsilon_explorer(noise_multiplier=20.0, sample_rate=1.0, steps=100)", 4),
    "audit_game": ("widgets.audit_game(runs=125)", 2),
}


@pytest.mark.book
@pytest.mark.parametrize("name", WIDGETS)
def test_a_widget_answers_its_sliders(browser, lab, name):
    call, sliders = WIDGETS[name]
    notebook_of(lab, name, f"from book.explorers import widgets\n{call}")
    with after_running_all(browser, lab, name, [], 120) as page:
        picture = page.locator(".jupyter-widgets img, img.jupyter-widgets").first
        picture.wait_for(timeout=60_000)
        handles = page.locator(".noUi-handle")
        assert handles.count() == sliders
        for i in range(sliders):
            before = picture.get_attribute("src")
            handles.nth(i).focus()
            page.keyboard.press("ArrowLeft")
            page.wait_for_function(
                "([image, src]) => image.src !== src", arg=[picture.element_handle(), before], timeout=60_000
            )
        if name == "audit_game":
            page.get_by_role("button", name="play 100 times").click()
            page.get_by_text("Of 100 audits").wait_for(timeout=60_000)
        take_picture(page, f"widget_{name}")


EXPLORERS = {
    "page": "pages.training_page()",
    "attacker_page": "pages.attacker_page()",
    "runs_page": "pages.runs_page()",
    "game": "game.page()",
    "drift": "pages.drifting_scores(audits.load('../results/paper/quickstart/S2.db'), delta=1e-5)",
}


@pytest.mark.book
def test_the_explorers_answer_as_output_of_a_cell(browser, lab):
    imports = "from dpsub import audits\nfrom book.explorers import game, pages"
    notebook_of(lab, "explorers", imports, *EXPLORERS.values())
    with after_running_all(browser, lab, "explorers", [], 240) as page:
        roots = page.locator(".dpsub-explorer")
        assert roots.count() == len(EXPLORERS)
        for i in range(len(EXPLORERS)):
            root = roots.nth(i)
            root.scroll_into_view_if_needed()
            answer = root.locator("[data-shown=answer]")
            before = answer.text_content()
            assert "." in before
            root.locator("input[type=range]").first.focus()
            for _ in range(8):
                page.keyboard.press("ArrowLeft")
            if 'data-do="again"' in root.inner_html():
                root.get_by_text("another audit").click()
            page.wait_for_function("([one, text]) => one.textContent !== text", arg=[answer.element_handle(), before])
        take_picture(page, "explorers")
