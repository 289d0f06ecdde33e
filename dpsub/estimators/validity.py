r"""How often bounds are wrong and how loose they are, measured on hundreds of audits whose truth is known.

The adversary of every audit here is the strongest that the truth allows: its errors lie on the trade-off function f
itself. The false-positive rate of a z′ run's score is uniform. A run of z exceeds a score whose false-positive rate is
u with probability 1 − f(u).

``python -m dpsub.estimators.validity FILE`` measures everything that the book shows of runs, in about an hour on two
cores. With ``steps`` behind the file, it measures what the book shows of steps. It resumes after an interruption.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import ndtri
from tqdm.auto import tqdm

from dpsub import accounting, estimators
from dpsub._core import checks
from dpsub._core.provenance import commit
from dpsub._core.random_streams import stream
from dpsub.estimators.known_truths import (
    KINDS,
    Drifting,
    Gaussian,
    RandomizedResponse,
    SampledGaussian,
    SortedByLuck,
    Truth,
    scores,
)

__all__ = [
    "RUNS",
    "Cell",
    "Drifting",
    "Gaussian",
    "RandomizedResponse",
    "SampledGaussian",
    "SortedByLuck",
    "entries",
    "measure",
    "measured",
    "scores",
]

DELTA = 1e-5
RUNS = (256, 1_000, 5_000, 50_000)
"""The numbers of runs at which the study measures bounds."""
OBSERVATIONS = (200, 1_000, 2_000, 5_000, 20_000, 100_000)


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

    def __post_init__(self) -> None:
        checks.whole("runs", self.runs, at_least=2)
        checks.whole("audits", self.audits)
        checks.probability("delta", self.delta)
        if not isinstance(self.truth, Truth):
            raise ValueError(f"truth must be {KINDS}, got {self.truth!r}")

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
        `wrong`, how many bounds exceeded the truth; `audits`; `mean` and `spread`, the mean and the standard deviation
        of the bounds divided by the truth; `truth`; `valid` and `assumes`, the attributes of the bounds; and `mean_mu`,
        the mean bound on μ divided by the truth's, where both are μ-GDP.

    Raises:
        ValueError: if the truth's ε at the cell's δ is 0: nothing can be divided by it.
    """
    if not isinstance(cell, Cell):
        raise ValueError(f"cell must be a Cell, got {type(cell).__name__}")
    seed = checks.whole("seed", seed, at_least=0)
    truth = cell.truth.epsilon(cell.delta)
    if not truth > 0:
        raise ValueError(f"cell must have a truth with an epsilon > 0 at delta = {cell.delta:g}, got {cell.truth}")
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
    row = {
        "wrong": int((epsilons > truth * (1 + 1e-9)).sum()),
        "audits": cell.audits,
        "mean": float(epsilons.mean() / truth),
        "spread": float(epsilons.std() / truth),
        "truth": truth,
        "valid": bounds[0].valid,
        "assumes": bounds[0].assumes,
    }
    if isinstance(cell.truth, Gaussian) and cell.method == "gdp":
        row["mean_mu"] = float(np.mean([bound.mu for bound in bounds]) / cell.truth.mu)
    return row


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


def cells_of_steps() -> Iterator[Cell]:
    """The cells of the page on steps: claims and rules by ε, bets by μ, and what depends on the past."""
    ways = (("gdp", "ranks"), ("gdp", "best"), ("dp", "ranks"), ("dp", "best"), ("gdp", "bets"))
    for epsilon in (1.0, 2.0, 4.0, 6.0, 8.0, 16.0):
        truth = Gaussian(accounting.gdp_mu(epsilon, DELTA))
        for method, threshold in ways:
            for count in OBSERVATIONS:
                few = threshold == "bets" or count == OBSERVATIONS[-1]  # these take longest
                yield Cell(method, threshold, count, truth, audits=100 if few else 400)
    for mu in (0.5, 1.0, 2.0):
        for threshold in ("bets", "ranks"):
            for count in (1_000, 5_000, 20_000):
                yield Cell("gdp", threshold, count, Gaussian(mu), audits=100)
    for past in (Gaussian(0.1), Drifting(0.1), SortedByLuck(0.1)):
        for threshold in ("ranks", "bets"):
            yield Cell("gdp", threshold, 640, past, audits=1_000)


STUDIES = {"runs": cells, "steps": cells_of_steps}


def key(cell: Cell) -> dict[str, Any]:
    return {**asdict(cell), "truth": {"kind": type(cell.truth).__name__, **asdict(cell.truth)}}


def measured(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The contents of a file: where and when it was made, and one row for each cell."""
    file = checks.path("path", path)
    if not file.exists():
        raise FileNotFoundError(f"no measurements at {path}: make them with python -m dpsub.estimators.validity {path}")
    try:
        found = json.loads(file.read_text())
        return {"made": dict(found["made"]), "rows": list(found["rows"])}
    except (OSError, ValueError, TypeError, KeyError):
        raise ValueError(
            f"path must be a file of measurements, with made and rows, got {path} with something else"
        ) from None


def entries(rows: Mapping[str, Iterable[float]]) -> list[str]:
    """For a table: the percentage of audits that were wrong, and the mean bound divided by the truth."""
    try:
        both = list(zip(rows["share"], rows["mean"], strict=True))
        return [f"{100 * share:.1f} / {mean:.2f}" for share, mean in both]
    except (LookupError, TypeError, ValueError):
        raise ValueError(
            f"rows must hold numbers share and mean, one of each for a row, got {type(rows).__name__}"
        ) from None


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
    run(Path(sys.argv[1]), STUDIES[sys.argv[2] if len(sys.argv) > 2 else "runs"])
