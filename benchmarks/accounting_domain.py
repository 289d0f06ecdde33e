"""ε at corners and random settings: is the error kept everywhere, how long does it take, and how much memory."""

from __future__ import annotations

import itertools
import resource
import sys
import time

import numpy as np

from dpsub import accounting
from dpsub.accounting.engines import TOLERANCE

CORNERS = ([1e-4, 1e-2, 0.5, 0.99, 1.0], [0.3, 1.0, 20.0, 200.0], [1, 100, 100_000], [1e-12, 1e-2])


def random_settings(number: int, seed: int) -> list[tuple[float, float, int, float]]:
    """(q, σ, T, δ), each spread evenly over its orders of magnitude."""
    rng = np.random.default_rng(seed)
    bounds = np.log([(1e-4, 1), (0.3, 200), (1, 100_000), (1e-12, 1e-2)])
    drawn = np.exp(rng.uniform(*bounds.T, size=(number, 4)))
    return [(q, sigma, round(steps), delta) for q, sigma, steps, delta in drawn]


if __name__ == "__main__":
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    settings = [*itertools.product(*CORNERS), *random_settings(number, seed)]
    seconds = []
    unmet = 0
    for q, sigma, steps, delta in settings:
        for adjacency in ("substitute", "add_remove"):
            start = time.perf_counter()
            found = accounting.epsilon_interval(
                noise_multiplier=sigma, sample_rate=q, steps=steps, delta=delta, adjacency=adjacency
            )
            seconds.append(time.perf_counter() - start)
            unmet += not found.upper - found.estimate <= TOLERANCE * max(1, found.lower)
    print(f"{len(seconds)} questions, error not met: {unmet}")
    print(
        f"seconds: mean {np.mean(seconds):.3f}, 99 % within {np.quantile(seconds, 0.99):.2f}, most {max(seconds):.2f}"
    )
    print(f"peak memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB")
