"""The numbers of the page that plans audits: what so many runs can show at most, and what an ideal attack shows.

``python -m dpsub.figures.planning`` computes them again, which takes some minutes. The tests compare a sample of them
with `estimators.max_certifiable_epsilon` and `estimators.runs_needed`.
"""

from __future__ import annotations

import json
import math
from concurrent.futures import ProcessPoolExecutor
from importlib import resources
from itertools import product
from typing import Any

import numpy as np
from scipy.special import ndtr, ndtri
from tqdm.auto import tqdm

from dpsub._core.random_streams import stream
from dpsub.accounting.gaussian import gdp_mu
from dpsub.estimators import max_certifiable_epsilon
from dpsub.estimators.claims import GDP, ApproximateDP, Claim
from dpsub.estimators.numerics import Array, crossing
from dpsub.estimators.rank_tests import fixed_ranks, p_value
from dpsub.figures.pages import ASSETS

__all__ = ["ALPHAS", "METHODS", "MUS", "POWER", "RUNS", "ceiling", "likely_bounds", "stored"]

FILE = "runs.json"
DELTA = 1e-5  # claims of μ-GDP do not depend on it; claims of (ε, δ)-DP hardly do
POWER = 0.8
METHODS = ("gdp", "dp")
ALPHAS = (0.1, 0.05, 0.01)
RUNS = tuple(2 * round(25 * 10 ** (k / 4)) for k in range(17))  # 50 to 500,000, both worlds together
MUS = (0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.4, 2.0, 2.8, 4.0, 5.6)
AUDITS = 4_000


def stored() -> dict[str, Any]:
    """The stored numbers. A bound of method "gdp" is a μ, one of "dp" an ε."""
    return dict(json.loads(ASSETS.joinpath(FILE).read_text()))


def ceiling(method: str, alpha: float, runs: int) -> float:
    """`max_certifiable_epsilon`, for method "gdp" as a μ."""
    epsilon = max_certifiable_epsilon(runs, delta=DELTA, method=method, alpha=alpha)
    return gdp_mu(epsilon, DELTA) if method == "gdp" else epsilon


def likely_bounds(method: str, alpha: float, runs: int) -> list[float]:
    """For each μ, the bound that the rank test reaches in 80 % of audits, with half of the runs in each world."""
    claim: Claim = GDP(DELTA) if method == "gdp" else ApproximateDP(DELTA)
    half = runs // 2
    ranks = sorted(fixed_ranks(claim, half).items())
    tests = [_refuted(claim, rank, share * alpha, half) for rank, share in ranks]
    return [float(np.quantile(_bounds(ranks, tests, half, mu), 1 - POWER)) for mu in MUS]


def _refuted(claim: Claim, rank: int, alpha: float, half: int) -> tuple[Array, Array]:
    """Normal scores of counts of false negatives, and the largest parameter that the rank's test refutes at each."""

    def excess(parameter: float, count: int) -> float:
        counts = {"rank": rank, "negatives": half, "false_negatives": count, "positives": half}
        return p_value(claim, parameter, **counts) - alpha

    def largest(count: int) -> float:
        return crossing(lambda parameter: excess(parameter, count), 0.0, claim.most) if excess(0.0, count) < 0 else 0.0

    most, too_many = -1, half  # the most with which anything is refuted: the curve has a kink there
    while too_many > most + 1:
        between = (most + too_many) // 2
        most, too_many = (between, too_many) if excess(0.0, between) < 0 else (most, between)
    even = (half * ndtr(np.linspace(-4, 3, 29))).round()
    counts = np.unique(np.concatenate((np.arange(4), even[even < most], [max(most, 0), too_many, half]))).astype(int)
    return _score(counts.astype(float), half), np.array([largest(count) for count in counts.tolist()])


def _score(counts: Array, half: int) -> Array:
    """In which what is refuted is nearly linear."""
    return np.asarray(ndtri((counts + 0.5) / (half + 1)))


def _bounds(ranks: list[tuple[int, float]], tests: list[tuple[Array, Array]], half: int, mu: float) -> Array:
    """The bounds of simulated audits of an attack that is exactly μ-GDP."""
    rng = stream(0, "plan")
    gaps = np.diff([0, *(rank for rank, _ in ranks), half + 1])
    parts = rng.gamma(gaps, size=(AUDITS, len(gaps))).cumsum(axis=1)
    fnr = GDP(DELTA).tradeoff(parts[:, :-1] / parts[:, -1:], mu)
    missed, remaining = np.full(AUDITS, half), np.ones(AUDITS)
    best = np.zeros(AUDITS)
    for (scores, refuted), rate in zip(tests, fnr.T, strict=True):
        below = np.divide(rate, remaining, out=np.zeros(AUDITS), where=remaining > 0)
        missed, remaining = rng.binomial(missed, np.minimum(below, 1.0)), rate
        best = np.maximum(best, np.interp(_score(missed.astype(float), half), scores, refuted))
    return best


def row(setting: tuple[str, float, int]) -> dict[str, Any]:
    """The stored numbers of one method, α and number of runs."""
    return {"ceiling": _down(ceiling(*setting)), "likely": [_down(bound) for bound in likely_bounds(*setting)]}


def _down(value: float) -> float:
    return math.floor(1e4 * value) / 1e4


def compute() -> dict[str, Any]:
    settings = list(product(METHODS, ALPHAS, RUNS))
    with ProcessPoolExecutor() as pool:
        rows = list(tqdm(pool.map(row, settings), total=len(settings)))
    return {"methods": METHODS, "alphas": ALPHAS, "runs": RUNS, "mus": MUS, "rows": rows}


if __name__ == "__main__":
    with resources.as_file(ASSETS.joinpath(FILE)) as file:
        file.write_text(json.dumps(compute(), separators=(",", ":")) + "\n")
