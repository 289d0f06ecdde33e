"""What each protocol shows of a direction that has to be learned: mean bounds on μ, and false positives at μ = 0.

`python benchmarks/protocols.py [--audits 400] [--dimensions 50 500] [--models 256 512 2048] [--mu 1 2] [--seed 0]`.
Models are N(μ, 1) with z and N(0, 1) with z′ along one direction, and N(0, 1) along all others. The score is the
projection on the difference of the means of both worlds, learned as the protocol allows:

- in sample: from the models that are judged, at the best threshold. Not valid.
- held out: from the first share of the models. The others are judged by the rank test.
- folds: after a share of 0.35, each of five folds is judged by what all models before it taught, with the pooled test.
- cross-fit: each of three folds is judged by what the two others taught, by the rank test at alpha/3. The bound is the
  largest of the three, which is valid under any dependence.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable

import numpy as np

from dpsub.estimators import LowerBound, epsilon_lower_bound

ALPHA = 0.05
DELTA = 1e-5
FIRST, FOLDS = 0.35, 5  # the defaults of `dpsub.distinguish`
CROSSED = 3


def bound(scores: np.ndarray, bits: np.ndarray, **options: object) -> float:
    found = epsilon_lower_bound(scores, bits, delta=DELTA, **{"alpha": ALPHA, **options})
    assert isinstance(found, LowerBound)
    return found.mu


def judged(models: np.ndarray, bits: np.ndarray, learned_from: np.ndarray, rows: np.ndarray) -> np.ndarray:
    lesson, worlds = models[learned_from], bits[learned_from]
    return models[rows] @ (lesson[worlds == 0].mean(axis=0) - lesson[worlds == 1].mean(axis=0))


def in_sample(models: np.ndarray, bits: np.ndarray) -> float:
    everyone = np.arange(len(bits))
    return bound(judged(models, bits, everyone, everyone), bits, rule="best")


def held_out(models: np.ndarray, bits: np.ndarray, share: float) -> float:
    first, others = np.split(np.arange(len(bits)), [round(share * len(bits))])
    return bound(judged(models, bits, first, others), bits[others], rule="ranks")


def forward_folds(models: np.ndarray, bits: np.ndarray) -> float:
    others = np.arange(round(FIRST * len(bits)), len(bits))
    parts = np.array_split(others, FOLDS)
    scores = [judged(models, bits, np.arange(part[0]), part) for part in parts]
    numbers = np.repeat(np.arange(FOLDS), [len(part) for part in parts])
    return bound(np.concatenate(scores), bits[others], rule="folds", folds=numbers)


def cross_fit(models: np.ndarray, bits: np.ndarray) -> float:
    everyone = np.arange(len(bits))
    return max(
        bound(
            judged(models, bits, np.setdiff1d(everyone, part), part),
            bits[part],
            rule="ranks",
            alpha=ALPHA / CROSSED,
        )
        for part in np.array_split(everyone, CROSSED)
    )


PROTOCOLS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "in sample": in_sample,
    "held out, 0.25": lambda models, bits: held_out(models, bits, 0.25),
    "held out, 0.5": lambda models, bits: held_out(models, bits, 0.5),
    "cross-fit": cross_fit,
    "folds": forward_folds,
}
WIDTHS = (4, 6, 3, *map(len, PROTOCOLS))


def bounds(audits: int, dimensions: int, runs: int, mu: float, seed: int) -> np.ndarray:
    """(audits, protocols): the bounds on μ."""
    rng = np.random.default_rng((seed, dimensions, runs))
    found = []
    for _ in range(audits):
        bits = rng.integers(0, 2, runs)
        models = rng.standard_normal((runs, dimensions), dtype=np.float32)
        models[:, 0] += mu * (bits == 0)
        found.append([protocol(models, bits) for protocol in PROTOCOLS.values()])
    return np.array(found)


def row(*cells: str) -> str:
    return "  ".join(cell.rjust(width) for cell, width in zip(cells, WIDTHS, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--audits", type=int, default=25)
    parser.add_argument("--dimensions", type=int, nargs="+", default=[50, 500])
    parser.add_argument("--models", type=int, nargs="+", default=[256, 512, 2048], help="N")
    parser.add_argument("--mu", type=float, nargs="+", default=[1.0, 2.0], help="besides 0")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()

    begin = time.perf_counter()
    errors = []
    print(f"Mean bounds on μ of {given.audits} audits; at μ = 0, the share of them that are above 0:")
    print(row("d", "N", "μ", *PROTOCOLS))
    for dimensions, runs, mu in itertools.product(given.dimensions, given.models, [0.0, *given.mu]):
        found = bounds(given.audits, dimensions, runs, mu, given.seed)
        shown = [f"{mean:.2f}" for mean in found.mean(axis=0)]
        if mu == 0:
            shown = [f"{share:.1%}" for share in (found > 0).mean(axis=0)]
        else:
            errors.append(found.std(axis=0) / np.sqrt(given.audits))
        print(row(str(dimensions), f"{runs:,}", f"{mu:g}", *shown), flush=True)
    print(f"Standard errors of the means: at most {np.max(errors):.3f}. {time.perf_counter() - begin:.0f} s")


if __name__ == "__main__":
    main()
