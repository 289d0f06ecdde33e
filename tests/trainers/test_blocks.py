import subprocess
import sys
from pathlib import Path

import pytest

from dpsub.trainers import block_size


def test_blocks_shrink_with_the_model_alone():
    class Sized:
        parameters = 0

    sizes = []
    for Sized.parameters in (1, 540, 89_828, 2**20, 2**20 + 1, 2**24, 2**40):
        sizes.append(block_size(Sized))
    assert sizes == [128, 128, 128, 128, 64, 8, 1]


MEMORY = """
import re, pathlib
import numpy as np, psutil, torch
from dpsub import DPSGD, CanaryPair, data, models
from dpsub.trainers import assemble, block_bytes

torch.set_num_threads(1)
rng = np.random.default_rng(0)
task = data.from_arrays(rng.random({shape}), rng.integers(0, {classes}, {shape}[0]), num_classes={classes})
model, spec, device = models.{model}, DPSGD(1.0, 1.0, {q}, 1, 0.1, {optimizer!r}), torch.device("cpu")
before = psutil.Process().memory_info().rss
bits, generator = np.zeros({runs}, np.int8), torch.Generator()
pair = CanaryPair((task.x_train[0], 0), (task.x_train[0], 1), 0, "S4")
if {gradient}:
    z = np.eye(1, model.parameters, dtype=np.float32)[0]
    pair = CanaryPair(z, -z, 0, "S2")
bank = assemble(model, task, spec, bits=bits, generator=generator, canary=pair, coordinates="span")
bank.advance()
spare = 1
if {watched}:
    spare = 2
    bank.slot.distance(bank)
peak = re.search(r"VmHWM:\\s+(\\d+) kB", pathlib.Path("/proc/self/status").read_text())
used = 1024 * int(peak[1]) - before
print(used / block_bytes(model, task, spec, device, {runs}, spare=spare))
"""


CONVOLVED = (
    "torch.nn.Sequential(torch.nn.Unflatten(1, (1, 28, 28)), torch.nn.Conv2d(1, 8, 5), torch.nn.Tanh(), "
    "torch.nn.Flatten(), torch.nn.Linear(8 * 24 * 24, 100))"
)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peaks are read where Linux keeps them")
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            {"model": "mlp(task, (4,))", "shape": (100_000, 2), "classes": 2, "q": 0.45, "runs": 64}, id="coins"
        ),
        pytest.param(
            {"model": "mlp(task)", "shape": (2_000, 600), "q": 0.25, "optimizer": "adam", "runs": 128},
            id="mlp with adam",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {
                "model": "mlp(task, (2_000,))",
                "shape": (20, 600),
                "q": 1.0,
                "runs": 64,
                "gradient": False,
                "watched": True,
            },
            id="watched records",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"model": "linear(task)", "shape": (2_000, 8_000), "q": 1.0, "runs": 4}, id="span", marks=pytest.mark.slow
        ),
        pytest.param(
            {"model": "convnet(task)", "shape": (2_000, 1, 28, 28), "q": 0.02, "runs": 16},
            id="convnet",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"model": f"from_module({CONVOLVED}, task)", "shape": (500, 784), "q": 1.0, "runs": 16},
            id="module",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_blocks_memory_is_not_underestimated(case):
    usual = {"classes": 100, "optimizer": "sgd", "gradient": True, "watched": False}
    code = MEMORY.format(**usual | case)
    share = float(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)
    assert 0.1 < share < 1
