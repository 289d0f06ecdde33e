"""Twenty step counts of one mechanism: dpsub's two engines against prv-accountant as it is used by others."""

from __future__ import annotations

import time
import warnings

from prv_accountant import PoissonSubsampledGaussianMechanism, PRVAccountant

from dpsub import accounting

STEPS = list(range(25, 501, 25))
SIGMA, Q, DELTA, EPS_ERROR = 12.115, 0.25, 1e-5, 1e-3


def seconds(task) -> float:
    start = time.perf_counter()
    task()
    return time.perf_counter() - start


def prv_accountants_way() -> None:
    """Its own add/remove variable: one direction, at the same error."""
    accountant = PRVAccountant(
        prvs=[PoissonSubsampledGaussianMechanism(noise_multiplier=SIGMA, sampling_probability=Q)],
        max_self_compositions=[STEPS[-1]],
        eps_error=EPS_ERROR,
        delta_error=DELTA / 1000,
    )
    for steps in STEPS:
        accountant.compute_epsilon(DELTA, [steps])


def dpsubs_way(adjacency: str, engine: str) -> None:
    accounting.epsilon(
        noise_multiplier=SIGMA, sample_rate=Q, steps=STEPS, delta=DELTA, adjacency=adjacency, engine=engine
    )


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    peer = seconds(prv_accountants_way)
    print(f"prv-accountant, one direction of add/remove, {len(STEPS)} step counts: {peer:.2f} s")
    for adjacency in ("substitute", "add_remove"):
        for engine in ("auto", "prv"):
            own = seconds(lambda a=adjacency, e=engine: dpsubs_way(a, e))
            print(f"dpsub, {adjacency}, engine={engine!r}: {own:.2f} s, {peer / own:.1f} times as fast")
