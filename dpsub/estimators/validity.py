r"""How often a bound is wrong, and how much it gives away: audits whose truth is known, by the hundred.

The adversary of every audit here is the strongest that the truth allows: its errors lie on the trade-off function f
itself. A run of z′ has a score that is uniform in the false-positive rate; a run of z exceeds a score whose
false-positive rate is u with probability 1 − f(u).

``python -m dpsub.estimators.validity FILE`` measures everything that the book shows, in about an hour on two cores, and
goes on where it was interrupted.
"""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri
from tqdm.auto import tqdm

from dpsub import accounting, estimators
from dpsub._core.provenance import commit
from dpsub._core.streams import stream
from dpsub.estimators.claims import Array

__all__ = [
    "RUNS",
    "Cell",
    "Gaussian",
    "RandomizedResponse",
    "SampledGaussian",
    "entries",
    "measure",
    "measured",
    "scores",
]

DELTA = 1e-5
RUNS = (256, 1_000, 5_000, 50_000)
NORMAL_SCORES = np.linspace(-9, 9, 20_001)


@dataclass(frozen=True)
class Gaussian:
    """μ-GDP, attained."""

    mu: float

    def epsilon(self, delta: float) -> float:
        return accounting.gdp_epsilon(self.mu, delta)

    def tradeoff(self, fpr: Array) -> Array:
        return np.asarray(ndtr(-ndtri(fpr) - self.mu))


@dataclass(frozen=True)
class SampledGaussian:
    """The whole transcript of DP-SGD, seen by an adversary whose record it is that is substituted."""

    noise_multiplier: float
    sample_rate: float
    steps: int

    def epsilon(self, delta: float) -> float:
        return float(accounting.epsilon_interval(**asdict(self), delta=delta, adjacency="substitute").lower)

    def tradeoff(self, fpr: Array) -> Array:
        return np.asarray(accounting.tradeoff(fpr, **asdict(self), adjacency="substitute"))


@dataclass(frozen=True)
class RandomizedResponse:
    """One bit, told truly with probability e^loss/(1 + e^loss): nothing like a Gaussian mechanism."""

    loss: float

    def epsilon(self, delta: float) -> float:
        return float(np.log(np.exp(self.loss) * (1 - delta) - delta))

    def tradeoff(self, fpr: Array) -> Array:
        return np.asarray(np.maximum(1 - np.exp(self.loss) * fpr, np.exp(-self.loss) * (1 - fpr)))


Truth = Gaussian | SampledGaussian | RandomizedResponse


@lru_cache(maxsize=16)
def _inverse(truth: Truth) -> tuple[Array, Array]:
    """Normal scores of u against those of f(u), both increasing."""
    fnr = np.clip(truth.tradeoff(ndtr(NORMAL_SCORES)), 1e-300, 1 - 1e-16)
    return ndtri(fnr[::-1]), NORMAL_SCORES[::-1]


def scores(truth: Truth, bits: NDArray[np.integer], rng: np.random.Generator) -> Array:
    """(runs,) the scores of the strongest attack on runs whose bits these are; higher speaks for z, bit 0."""
    negative = ndtri(rng.random(len(bits)))
    positive = np.interp(negative, *_inverse(truth))  # f is its own inverse
    return np.asarray(-np.where(bits == 0, positive, negative))


@dataclass(frozen=True)
class Cell:
    """One question: a way to bound, how many runs, the truth, and how many audits to ask it with."""

    method: str
    threshold: str | float
    runs: int
    truth: Truth
    delta: float = DELTA
    audits: int = 400
    alpha: float = 0.05

    @property
    def mechanism(self) -> dict[str, Any]:
        """What method "pld" is told."""
        if self.method != "pld":
            return {}
        if isinstance(self.truth, SampledGaussian):
            return {"sample_rate": self.truth.sample_rate, "steps": self.truth.steps, "adjacency": "substitute"}
        return {"sample_rate": 1.0, "steps": 1, "adjacency": "substitute"}


def measure(cell: Cell, seed: int = 0) -> dict[str, Any]:
    """How many of a cell's audits were wrong, and how large their bounds were.

    Returns:
        `wrong`, how many bounds exceeded the truth; `audits`; `mean`, the mean bound over the truth; `truth`; `valid`
        and `assumes`, as the bounds say of themselves.
    """
    truth = cell.truth.epsilon(cell.delta)
    threshold = cell.threshold
    if threshold == "fixed":  # where both rates are the same: what one who knows the truth would fix
        fpr = np.linspace(0.0, 1.0, 100_001)
        threshold = float(-ndtri(fpr[np.argmin(np.abs(cell.truth.tradeoff(fpr) - fpr))]))
    bounds = []
    for audit in range(cell.audits):
        rng = stream(seed, "validity", audit)
        bits = rng.integers(0, 2, cell.runs)
        bound = estimators.epsilon_lower_bound(
            scores(cell.truth, bits, rng), bits, delta=cell.delta, method=cell.method, threshold=threshold,
            alpha=cell.alpha, **cell.mechanism,
        )  # fmt: skip
        assert isinstance(bound, estimators.LowerBound)
        bounds.append(bound)
    epsilons = np.array([bound.epsilon for bound in bounds])
    return {
        "wrong": int((epsilons > truth * (1 + 1e-9)).sum()),
        "audits": cell.audits,
        "mean": float(epsilons.mean() / truth),
        "truth": truth,
        "valid": bounds[0].valid,
        "assumes": bounds[0].assumes,
    }


def cells() -> Iterator[Cell]:
    """What the book shows. Each method is asked where what it assumes holds; then "gdp" where it does not."""
    sampled = SampledGaussian(1.0, 0.0625, 500)
    for mu in (0.5, 1.0, 2.0):
        noise = accounting.noise_multiplier(
            target_epsilon=accounting.gdp_epsilon(mu, DELTA), sample_rate=sampled.sample_rate, steps=sampled.steps,
            delta=DELTA, adjacency="substitute",
        )  # fmt: skip
        for method in estimators.METHODS:
            truth = replace(sampled, noise_multiplier=noise) if method == "pld" else Gaussian(mu)
            for threshold in ("ranks", "split", "fixed", "best"):
                if threshold == "ranks" and method not in estimators.EXACT:
                    continue
                for runs in RUNS:
                    few = runs > 5_000 or method == "pld"  # what takes longest
                    yield Cell(method, threshold, runs, truth, audits=400 if few else 1_000)
    rare = SampledGaussian(0.6, 0.01, 50)
    far: list[tuple[Truth, str | float, int, float]] = [
        (RandomizedResponse(1.0), "ranks", 5_000, DELTA),
        (SampledGaussian(1.0, 0.9, 1), "ranks", 5_000, DELTA),
        (rare, "ranks", 5_000, DELTA),
        (rare, float(-ndtri(0.001)), 50_000, 0.05),  # a threshold whose false-positive rate is far below δ
    ]
    for other, cut, runs, delta in far:
        for method in ("gdp", "dp", "pld"):
            if method != "pld" or isinstance(other, SampledGaussian):
                yield Cell(method, cut, runs, other, delta=delta)


def key(cell: Cell) -> dict[str, Any]:
    return {**asdict(cell), "truth": {"kind": type(cell.truth).__name__, **asdict(cell.truth)}}


def measured(path: Path) -> dict[str, Any]:
    """What a file holds: where and when it was made, and one row for each cell."""
    if not path.exists():
        raise FileNotFoundError(f"no measurements at {path}: make them with python -m dpsub.estimators.validity {path}")
    return dict(json.loads(path.read_text()))


def entries(rows: Mapping[str, Iterable[float]]) -> list[str]:
    """For a table: the percentage of audits that were wrong, and the mean bound over the truth."""
    return [f"{100 * share:.1f} / {mean:.2f}" for share, mean in zip(rows["share"], rows["mean"], strict=True)]


def run(path: Path, every: Callable[[], Iterator[Cell]] = cells) -> None:
    """Measure what a file does not hold yet, and write it down cell by cell."""
    rows = measured(path)["rows"] if path.exists() else []
    known = [row["cell"] for row in rows]
    left = sorted((cell for cell in every() if key(cell) not in known), key=lambda cell: -cell.runs)
    start = time.monotonic()
    spent = measured(path)["made"]["seconds"] if path.exists() else 0.0
    with ProcessPoolExecutor() as pool:
        for cell, row in zip(left, tqdm(pool.map(measure, left), total=len(left)), strict=True):
            rows.append({"cell": key(cell), **row})
            made = {
                "date": datetime.now(UTC).date().isoformat(),
                "machine": f"{platform.machine()}, {platform.system()}",
                "commit": commit(),
                "seconds": round(spent + time.monotonic() - start),
                **{name: version(name) for name in ("numpy", "scipy")},
            }
            partial = path.with_suffix(".partial")
            partial.write_text(json.dumps({"made": made, "rows": rows}, indent=None, separators=(",", ":")))
            partial.replace(path)


if __name__ == "__main__":
    run(Path(sys.argv[1]))
