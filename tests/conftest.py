import gc
import os
import shutil
import sys

import matplotlib as mpl
import numpy as np
import pytest
import torch

mpl.use("agg")
torch.set_num_threads(1)  # pytest-xdist runs one process a core already
os.environ["HF_HUB_OFFLINE"] = "1"  # read when that library is first imported
sys.modules["rfc3987_syntax"] = None  # jsonschema does without; importing it takes every worker three seconds
collect_ignore_glob = ["conftest.py", "*/conftest.py"]  # one name in many folders, and no doctest in any
gc.disable()  # Collection imports everything and leaves little garbage: without this it takes a third longer.


def pytest_collection_finish():
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def one_thread():
    """No test leaves another number of threads to those after it."""
    yield
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def cast():
    """Tasks of 24 records and a model for each, by name: what tests of models, trainers and audits draw from."""
    from dpsub import data, models

    def images(channels, pixels):
        rng = np.random.default_rng(1)
        return data.from_arrays(rng.random((24, channels, pixels, pixels)), rng.integers(0, 10, 24), num_classes=10)

    digits, grey, colour, deep = data.digits(n_train=24), images(1, 16), images(3, 8), images(16, 16)
    binary = data.from_arrays(digits.x_train, digits.y_train % 2)
    return {
        "linear": (digits, models.linear(digits)),
        "linear, two classes": (binary, models.linear(binary)),
        "mlp": (digits, models.mlp(digits)),
        "deep relu mlp": (digits, models.mlp(digits, (20, 15, 12), activation="relu")),
        "mlp on images": (colour, models.mlp(colour, (11,))),
        "convnet": (grey, models.convnet(grey)),
        "convnet of many channels": (deep, models.convnet(deep)),
        "large convnet": (colour, models.convnet(colour, size="large")),
        "large relu convnet": (colour, models.convnet(colour, size="large", activation="relu")),
    }


@pytest.fixture(scope="session")
def module_of(cast):
    """Makes a task of 24 records and a torch module: of `modules_of_others`, or one model of the cast."""
    from modules_of_others import MODULES

    from dpsub import data

    rows = np.random.default_rng(1).random((24, 8, 8))
    task = data.from_arrays(rows, np.random.default_rng(2).integers(0, 10, 24), num_classes=10)

    def make(name, **options):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return (task, MODULES[name](**options)) if name in MODULES else (cast[name][0], cast[name][1].module())

    return make


@pytest.fixture(scope="session")
def banks_of_modules(module_of):
    """Tasks, and banks of modules, by name."""
    from dpsub import models

    made = {name: module_of(name) for name in ("attention", "lstm", "gru", "residual", "linear", "mlp", "convnet")}
    return {name: (task, models.from_module(module, task)) for name, (task, module) in made.items()}


@pytest.fixture(scope="session")
def canary_of(cast):
    """Makes a canary for one of the cast, or another task and model: a gradient, or a record with another label."""
    from dpsub import CanaryPair

    def make(of, kind, *, slot=7, parameter=3, norm=1.0):
        task, model = cast[of] if isinstance(of, str) else of
        if kind == "record":
            x, y = task.x_train[slot], int(task.y_train[slot])
            return CanaryPair((x, y), (x, (y + 1) % task.num_classes), slot, "S4")
        z = np.zeros(model.parameters, dtype=np.float32)
        z[parameter] = norm
        return CanaryPair(z, -z, slot, "S2")

    return make


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
