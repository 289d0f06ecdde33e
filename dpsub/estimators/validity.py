r"""How often bounds are wrong and how loose they are, measured on hundreds of audits whose truth is known.

The adversary of every audit here is the strongest that the truth allows: its errors lie on the trade-off function f
itself. The false-positive rate of a z′ run's score is uniform. A run of z exceeds a score whose false-positive rate is
u with probability 1 − f(u).

``python -m dpsub.estimators.validity FILE`` measures everything that the book shows, in about an hour on two cores. It
resumes after an interruption.
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
from dpsub._core.random_streams import stream
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
    """A mechanism that attains μ-GDP."""

    mu: float

    def epsilon(self, delta: float) -> float:
        return accounting.gdp_epsilon(self.mu, delta)

    def tradeoff(self, fpr: Array) -> Array:
        return np.asarray(ndtr(-ndtri(fpr) - self.mu))


@dataclass(frozen=True)
class SampledGaussian:
    """DP-SGD with one record substituted, against an adversary who sees every step."""

    noise_multiplier: float
    sample_rate: float
    steps: int

    def epsilon(self, delta: float) -> float:
        return float(accounting.epsilon_interval(**asdict(self), delta=delta, adjacency="substitute").lower)

    def tradeoff(self, fpr: Array) -> Array:
        return np.asarray(accounting.tradeoff(fpr, **asdict(self), adjacency="substitute"))


@dataclass(frozen=True)
class RandomizedResponse:
    """One bit, reported truthfully with probability e^loss/(1 + e^loss): far from a Gaussian mechanism."""

    loss: float

    def epsilon(self, delta: float) -> float:
        return float(np.log(np.exp(self.loss) * (1 - delta) - delta))

    def tradeoff(self, fpr: Array) -> Array:
        return np.asarray(np.maximum(1 - np.exp(self.loss) * fpr, np.exp(-self.loss) * (1 - fpr)))


Truth = Gaussian | SampledGaussian | RandomizedResponse


@lru_cache(maxsize=16)
def _inverse(truth: Truth) -> tuple[Array, Array]:
    """The normal scores of f(u), increasing, and those of u."""
    fnr = np.clip(truth.tradeoff(ndtr(NORMAL_SCORES)), 1e-300, 1 - 1e-16)
    return ndtri(fnr[::-1]), NORMAL_SCORES[::-1]


def scores(truth: Truth, bits: NDArray[np.integer], rng: np.random.Generator) -> Array:
    """(runs,) the scores of the strongest attack on runs with these bits; higher speaks for z, bit 0."""
    negative = ndtri(rng.random(len(bits)))
    positive = np.interp(negative, *_inverse(truth))  # f is its own inverse
    return np.asarray(-np.where(bits == 0, positive, negative))


@dataclass(frozen=True)
class Cell:
    """One measurement: the method and threshold, the number of runs, the truth, and the number of audits."""

    method: str
    threshold: str | float
    runs: int
    truth: Truth
    delta: float = DELTA
    audits: int = 400
    alpha: float = 0.05

    @property
    def mechanism(self) -> dict[str, Any]:
        """The further arguments of method "pld"."""
        if self.method != "pld":
            return {}
        if isinstance(self.truth, SampledGaussian):
            return {"sample_rate": self.truth.sample_rate, "steps": self.truth.steps, "adjacency": "substitute"}
        return {"sample_rate": 1.0, "steps": 1, "adjacency": "substitute"}


def measure(cell: Cell, seed: int = 0) -> dict[str, Any]:
    """How many of a cell's audits were wrong, and how large their bounds were.

    Returns:
        `wrong`, how many bounds exceeded the truth; `audits`; `mean`, the mean bound divided by the truth; `truth`;
        `valid` and `assumes`, the attributes of the bounds.
    """
    truth = cell.truth.epsilon(cell.delta)
    threshold = cell.threshold
    if threshold == "fixed":  # both rates are equal there: the choice of someone who knows the truth
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
    """The cells of the book: each method where its assumption holds, then some cells where "gdp" fails."""
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
                    few = runs > 5_000 or method == "pld"  # these take longest
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
    """The contents of a file: where and when it was made, and one row for each cell."""
    if not path.exists():
        raise FileNotFoundError(f"no measurements at {path}: make them with python -m dpsub.estimators.validity {path}")
    return dict(json.loads(path.read_text()))


def entries(rows: Mapping[str, Iterable[float]]) -> list[str]:
    """For a table: the percentage of audits that were wrong, and the mean bound divided by the truth."""
    return [f"{100 * share:.1f} / {mean:.2f}" for share, mean in zip(rows["share"], rows["mean"], strict=True)]


def run(path: Path, every: Callable[[], Iterator[Cell]] = cells) -> None:
    """Measure the cells that a file does not hold yet, and write the file after each cell."""
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
