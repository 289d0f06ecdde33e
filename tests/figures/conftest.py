import matplotlib.pyplot as plt
import numpy as np
import pytest
import xarray as xr

from dpsub import figures
from dpsub._core.datasets import numbered
from dpsub.estimators import LowerBound

MECHANISM = {"noise_multiplier": 20.0, "sample_rate": 1.0, "steps": 400}
TRAINING = {**MECHANISM, "max_grad_norm": 1.0, "learning_rate": 0.1}


@pytest.fixture
def axes():
    """Makes axes beside each other, in dpsub's style."""
    with plt.style.context(figures.STYLE):
        yield lambda count: plt.subplots(1, count, squeeze=False)[1][0]
    plt.close("all")


@pytest.fixture
def ax(axes):
    return axes(1)[0]


@pytest.fixture(scope="session")
def bounds_of():
    """Makes one repeat's bounds from numbers."""

    def made(values, *, assumes="gdp", valid=True):
        return [LowerBound(v, "gdp", assumes, valid) for v in values]

    return made


@pytest.fixture(scope="session")
def mechanism():
    return MECHANISM


@pytest.fixture(scope="session")
def audited():
    """Makes an audit's dataset: scores of two worlds that drift apart."""

    def made(repeats=1, steps=(100, 400), scenario="S2", runs=300, **attrs):
        rng = np.random.default_rng(repeats)
        bit = rng.integers(2, size=(repeats, runs)).astype(np.int8)
        mu = np.sqrt(np.array(steps)) / 10
        score = np.where(bit[..., None] == 0, mu, -mu) / 2 + rng.normal(size=(repeats, runs, len(steps)))
        result = xr.Dataset(
            {"score": (("repeat", "run", "step"), score), "bit": (("repeat", "run"), bit)},
            coords={"repeat": np.arange(repeats), "step": list(steps)},
            attrs={"scenario": scenario, "task": "a task", "runs": runs, "seed": 0, **TRAINING, **attrs},
        )
        return numbered(result if repeats > 1 else result.isel(repeat=0, drop=True))

    return made


@pytest.fixture(scope="session")
def drawn():
    """All texts as matplotlib draws them, without the line breaks of long names, and without a crash."""

    def texts(figure):
        figure.draw_without_rendering()
        shown = (text._preprocess_math(text.get_text()) for text in figure.findobj(plt.Text) if text.get_visible())
        return "\n".join(text.replace("\n", "") for text, math in shown if math is False)

    return texts
