import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import pytest
import torch

from dpsub.models import mkl_kernels

FRESH_PROCESS = """
import ctypes, importlib, pkgutil, threading
import distributed, IPython.display, ipywidgets, matplotlib.pyplot, opacus, pooch, sklearn, torch, xarray
import numpy as np
from torch.utils._python_dispatch import TorchDispatchMode

class Refuses(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        raise AssertionError(f"{function} is called at import")

def refuses(*_, **__):
    raise AssertionError("the C library is called at import")

def settings():
    return torch.backends.mkldnn.matmul.fp32_precision, torch.get_num_threads(), torch.random.get_rng_state().tolist()

before, libraries = settings(), (ctypes.CDLL, ctypes.PyDLL)
ctypes.CDLL, ctypes.PyDLL = refuses, refuses
import dpsub
with Refuses():
    for module in pkgutil.walk_packages(dpsub.__path__, "dpsub."):
        importlib.import_module(module.name)
ctypes.CDLL, ctypes.PyDLL = libraries
assert settings() == before

functions, called, threads = dpsub.models.mkl_kernels.ON_VECTORS, [], set()

def recorded(name, function):
    def call(value, *arguments, **options):
        if len(called) < 2 * len(functions):
            called.append((name, value.dtype))
            threads.update(thread.name for thread in threading.enumerate())
        return function(value, *arguments, **options)
    return call

for name in functions:
    setattr(torch, name, recorded(name, getattr(torch, name)))
task = dpsub.data.from_arrays(np.eye(3), [0, 1, 0])
pair = dpsub.CanaryPair(([1, 2, 3], 0), ([1, 2, 3], 1), 0, "S4")
spec = dpsub.DPSGD(1.0, 1.0, 1.0, 1, 0.1)
dpsub.audit(task, dpsub.models.linear(task), pair, spec, runs=200, device="cpu", progress=False)
assert set(called) == {(name, dtype) for name in functions for dtype in (torch.float32, torch.float64)}, called
assert threads <= {"MainThread", "tqdm_monitor"}, threads
"""


@pytest.mark.slow
def test_importing_dpsub_computes_nothing_and_an_audit_calls_each_function_before_it_starts_threads():
    subprocess.run([sys.executable, "-c", FRESH_PROCESS], check=True)


def test_threads_that_begin_at_once_wait_for_the_first_to_have_called_all_functions(monkeypatch):
    called, begun = [], threading.Barrier(4)
    monkeypatch.setattr(mkl_kernels, "_call_each_function", cache(mkl_kernels._call_each_function.__wrapped__))
    for name in mkl_kernels.ON_VECTORS:
        monkeypatch.setattr(torch, name, lambda value, name=name: called.append(name))

    def begin():
        begun.wait()
        mkl_kernels.begin_computing()
        assert len(called) == 2 * len(mkl_kernels.ON_VECTORS)

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(begin) for _ in range(4)]:
            done.result()


FIRST_AUDIT = """
import hashlib
import numpy as np
from dpsub import DPSGD, CanaryPair, audit, data, models
task = data.from_arrays(np.eye(3), [0, 1, 0])
pair = CanaryPair(([1, 2, 3], 0), ([1, 2, 3], 1), 0, "S4")
for _ in range(2):
    found = audit(
        task, models.linear(task), pair, DPSGD(1.0, 1.0, 1.0, 3, 0.1), runs=5, repeats=2, device="cpu", progress=False
    )
    print(hashlib.sha256(found.score.values.tobytes()).hexdigest())
"""


@pytest.mark.slow
def test_the_first_audit_of_a_process_has_the_numbers_of_the_second():
    """Without the early calls, about one process in twenty had other numbers in its first audit."""
    for _ in range(60):
        first, second = subprocess.run(
            [sys.executable, "-c", FIRST_AUDIT], capture_output=True, text=True, check=True
        ).stdout.split()
        assert first == second
