r"""S1, the worst case that the substitute bound allows: exact simulation and exact likelihood ratios."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from dpsub._core import checks
from dpsub._core.datasets import LONG_NAMES, numbered
from dpsub._core.provenance import versions
from dpsub._core.random_streams import stream
from dpsub.accounting import Poisson, Sampling

BLOCK = 8192


@checks.checked("noise_multiplier", "sample_rate", "steps", "runs", "adjacency", "seed", every_step=checks.flag)
def audit_worst_case(
    *,
    noise_multiplier: float,
    sample_rate: float,
    steps: int,
    runs: int,
    adjacency: str,
    sampling: Sampling | str = "poisson",
    every_step: bool = False,
    seed: int = 0,
) -> xr.Dataset:
    r"""Scenario S1: the canary's gradient is +C at every step in the world with z, on the worst data set for it.

    With Poisson batches, cut or not, all other gradients are 0. In the world with z′ the canary's gradient is −C under
    "substitute", and the slot is empty under "add_remove" and "zero_out". By default the adversary sees the sum of the
    noisy gradients over all steps, in units of C:

    .. math:: g_T \mid z \;\sim\; \textstyle\sum_k \mathrm{Bin}(k;\, T, q)\, N(k,\, T\sigma^2),

    and scores it by the exact log-likelihood ratio of the two worlds. Only the sum at step T is simulated, because its
    law is known without the earlier steps.

    Where batches are of fixed size or shuffled, the canary takes another record's place. Under "substitute" all other
    gradients are then −C, that of z′: a batch with z differs by 2C from all others, and in the world with z′ all
    batches are the same. Under "zero_out" all other gradients are 0.

    Args:
        noise_multiplier: σ, from 1e-15 to 1e15.
        sample_rate: 0 < q ≤ 1.
        steps: T, from 1 to 1e7.
        runs: the number of runs in both worlds together, up to 1e9; a fair coin draws the world of each run.
        adjacency: "substitute", "add_remove" or "zero_out", as far as `accounting.epsilon` takes them with `sampling`.
        sampling: "poisson"; "truncated_poisson:maximum:records"; "without_replacement", q = b/n, anew at each step; or
            "epochs": shuffled anew, each record in one of the 1/q batches of each epoch. For "epochs" `steps` must be
            whole epochs. No attack is known that shows the whole ε of "epochs" but at q = 1: what these scores show is
            a lower bound on the truth.
        every_step: the adversary sees every batch's noisy sum, and knows the worlds' law of each. With "poisson" and
            "without_replacement" the ratio is the sum of those of the steps; with "epochs" that of an epoch is the mean
            of the ratios for each batch that may hold the record. It takes runs times steps normals.
        seed: ≥ 0; each block of 8,192 runs has its own stream of randomness.

    Returns:
        A dataset as `dpsub.audit` returns, at the last step only: `score` (run, step), `bit` (run,). For
        "without_replacement" the attribute `tested_as` says that the two worlds of this data set are those of
        "add_remove" with Poisson batches, at half the noise: `bound` tests claims "pld" as such.

    Raises:
        ValueError: if an argument is out of range.

    Source: *Beyond Membership*, section 3.1, equations 2 and 3, for Poisson batches and the sum.
    """
    resolved = Sampling.of(sampling)
    resolved.check_adjacency(adjacency)
    law = resolved.worst_case(adjacency, noise_multiplier, sample_rate, steps)
    scores, bits = np.empty(runs), np.empty(runs, dtype=np.int8)
    for block, start in enumerate(range(0, runs, BLOCK)):
        here = slice(start, min(start + BLOCK, runs))
        rng = stream(seed, "worst_case", block)
        coins = rng.integers(0, 2, BLOCK)  # always whole blocks: the first runs do not depend on how many follow
        drawn = law.ratios(coins, rng) if every_step else law.sums(coins, rng)
        bits[here], scores[here] = coins[: here.stop - here.start], drawn[: here.stop - here.start]
    optional: dict[str, Any] = {"every_step": True} if every_step else {}
    if resolved != Poisson():
        optional["sampling"] = str(resolved)
    attained = resolved.attained(adjacency, noise_multiplier, sample_rate)
    if attained and attained[0] != adjacency:
        optional["tested_as"] = attained[0]
    attributes = {
        "scenario": "S1",
        "adjacency": adjacency,
        "noise_multiplier": noise_multiplier,
        "sample_rate": sample_rate,
        "steps": steps,
        "runs": runs,
        "seed": seed,
        "block_size": BLOCK,
        **optional,
        **{f"version_{name}": version for name, version in versions().items()},
    }
    ratios = scores if every_step else law.ratios_of_sums(scores)
    made = {
        "score": (("run", "step"), ratios[:, None].astype(np.float32), {"long_name": LONG_NAMES["score"]}),
        "bit": ("run", bits, {"long_name": LONG_NAMES["bit"]}),
    }
    return numbered(xr.Dataset(made, {"step": np.array([steps])}, attributes))
