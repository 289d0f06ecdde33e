r"""S1, the worst case that the substitute bound allows: exact simulation and exact likelihood ratios."""

from __future__ import annotations

from functools import partial

import numpy as np
import xarray as xr

from dpsub._core import checks, datasets
from dpsub._core.random_streams import stream
from dpsub.accounting.worst_case_law import log_likelihood_ratio

BLOCK = 8192
RANGES: dict[str, checks.Check] = {  # scores are stored as float32
    "noise_multiplier": partial(checks.real, at_least=1e-15, at_most=1e15),
    "steps": partial(checks.whole, at_most=10**7),
    "runs": partial(checks.whole, at_most=10**9),  # they take 20 GiB
}


@checks.checked("sample_rate", "adjacency", "seed", **RANGES)
def audit_worst_case(
    *, noise_multiplier: float, sample_rate: float, steps: int, runs: int, adjacency: str, seed: int = 0
) -> xr.Dataset:
    r"""Scenario S1: the canary's gradient is +C at every step in the world with z; all other gradients are 0.

    In the world with z′ the canary's gradient is −C under "substitute", and the slot is empty under "add_remove" and
    "zero_out". The adversary sees the sum of the noisy gradients over all steps, in units of C:

    .. math:: g_T \mid z \;\sim\; \textstyle\sum_k \mathrm{Bin}(k;\, T, q)\, N(k,\, T\sigma^2),

    and scores it by the exact log-likelihood ratio of the two worlds. Only the sum at step T is simulated, because its
    law is known without the earlier steps.

    Args:
        noise_multiplier: σ, from 1e-15 to 1e15.
        sample_rate: 0 < q ≤ 1.
        steps: T, from 1 to 1e7.
        runs: the number of runs in both worlds together, up to 1e9; a fair coin draws the world of each run.
        adjacency: "substitute", "add_remove" or "zero_out".
        seed: ≥ 0; each block of 8,192 runs has its own stream of randomness.

    Returns:
        A dataset as `dpsub.audit` returns, at the last step only: `score` (run, step), `bit` (run,).

    Raises:
        ValueError: if an argument is out of range.

    Source: *Beyond Membership*, section 3.1, equations 2 and 3.
    """
    sums, bits = np.empty(runs), np.empty(runs, dtype=np.int8)
    for block, start in enumerate(range(0, runs, BLOCK)):
        here = slice(start, min(start + BLOCK, runs))
        rng = stream(seed, "worst_case", block)
        size = here.stop - here.start
        bits[here] = rng.integers(0, 2, BLOCK)[:size]
        sampled = rng.binomial(steps, sample_rate, BLOCK)[:size]
        sign = np.where(bits[here] == 0, 1, -1 if adjacency == "substitute" else 0)
        sums[here] = sign * sampled + np.sqrt(steps) * noise_multiplier * rng.standard_normal(BLOCK)[:size]
    scores = log_likelihood_ratio(
        sums, noise_multiplier=noise_multiplier, sample_rate=sample_rate, steps=steps, adjacency=adjacency
    )
    return datasets.build(
        scores[:, None],
        bits,
        [steps],
        scenario="S1",
        adjacency=adjacency,
        noise_multiplier=noise_multiplier,
        sample_rate=sample_rate,
        steps=steps,
        runs=runs,
        seed=seed,
        block_size=BLOCK,
    )
