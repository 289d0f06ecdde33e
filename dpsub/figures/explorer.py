"""The adjacency explorer without a kernel: a page of sliders over precomputed numbers.

``python -m dpsub.figures.explorer`` computes the numbers again, which takes some minutes. The tests compare a sample of
them with the library.
"""

from __future__ import annotations

import itertools
import json
import math
from concurrent.futures import ProcessPoolExecutor
from importlib import resources
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from dpsub import accounting
from dpsub.figures.pages import ASSETS, Page, filled

__all__ = ["AXES", "FALSE_POSITIVE_RATES", "numbers", "page"]

AXES: dict[str, list[Any]] = {
    "noise_multiplier": [0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0, 5.6, 8.0, 16.0, 32.0, 64.0],
    "sample_rate": [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0],
    "steps": [100, 300, 1_000, 3_000, 10_000],
    "delta": [1e-5, 1e-6, 1e-8],
}
"""The values at which each slider of the explorer can stand."""
FALSE_POSITIVE_RATES = [0.0, 0.001, 0.005, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.65, 0.8, 1.0]
"""The false-positive rates at which the explorer's trade-off curves are computed."""
GRID = "explorer.json"
TEMPLATE = "explorer.html"


def numbers(*, noise_multiplier: float, sample_rate: float, steps: int, delta: float) -> dict[str, float]:
    """The three ε that the explorers show: "add_remove", "substitute" and "group".

    The arguments are those of `accounting.epsilon`. "group" is `inf` if group privacy certifies no ε.
    """
    history = [(noise_multiplier, sample_rate, steps)]
    return {
        "add_remove": accounting.epsilon(history=history, delta=delta, adjacency="add_remove"),
        "substitute": accounting.epsilon(history=history, delta=delta, adjacency="substitute"),
        "group": accounting.group_privacy_epsilon(history=history, delta=delta),
    }


def rounded_up(epsilon: float) -> float | None:
    """The number rounded up to four digits, so that it remains an upper bound; None if it is infinite."""
    if math.isinf(epsilon):
        return None
    if epsilon <= 0:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(epsilon)) - 3)
    return float(f"{math.ceil(epsilon / unit * (1 - 1e-12)) * unit:.4g}")


def row(setting: tuple[float, float, int]) -> dict[str, Any]:
    """The page's numbers for one noise multiplier, sample rate and number of steps, at every δ."""
    sigma, q, steps = setting
    found = [numbers(noise_multiplier=sigma, sample_rate=q, steps=steps, delta=delta) for delta in AXES["delta"]]
    answer: dict[str, Any] = {name: [rounded_up(one[name]) for one in found] for name in found[0]}
    for adjacency in ("add_remove", "substitute"):
        rates = accounting.tradeoff(FALSE_POSITIVE_RATES, history=[setting], adjacency=adjacency)
        answer[f"{adjacency}_fnr"] = [math.floor(1000 * rate) / 1000 for rate in np.asarray(rates)]
    return answer


def grid() -> dict[str, Any]:
    """The stored numbers: the axes, the false-positive rates, and one row for each setting, in the axes' order."""
    return dict(json.loads(ASSETS.joinpath(GRID).read_text()))


def page() -> Page:
    """The explorer as HTML for a web page. It needs no kernel and loads nothing."""
    return filled(TEMPLATE, grid=grid())


def compute() -> dict[str, Any]:
    settings = list(itertools.product(*(AXES[name] for name in ("noise_multiplier", "sample_rate", "steps"))))
    with ProcessPoolExecutor() as pool:
        rows = list(tqdm(pool.map(row, settings), total=len(settings)))
    return {"axes": AXES, "fpr": FALSE_POSITIVE_RATES, "rows": rows}


if __name__ == "__main__":
    path = ASSETS.joinpath(GRID)
    with resources.as_file(path) as file:
        file.write_text(json.dumps(compute(), separators=(",", ":")) + "\n")
