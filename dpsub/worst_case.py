r"""S1, the worst case that the substitute bound allows: exact simulation and exact likelihood ratios."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from dpsub._core import checks, datasets
from dpsub._core.random_streams import stream
from dpsub.accounting.dominating_pairs import Array, Pair
from dpsub.accounting.phases import distance, worlds_of
from dpsub.accounting.worst_case_law import log_likelihood_ratio

BLOCK = 8192
RANGES: dict[str, checks.Check] = {  # scores are stored as float32
    "noise_multiplier": partial(checks.real, at_least=1e-15, at_most=1e15),
    "steps": partial(checks.whole, at_most=10**7),
    "runs": partial(checks.whole, at_most=10**9),  # they take 20 GiB
}


@checks.checked("sample_rate", "adjacency", "sampling", "seed", **RANGES, every_step=checks.flag)
def audit_worst_case(
    *,
    noise_multiplier: float,
    sample_rate: float,
    steps: int,
    runs: int,
    adjacency: str,
    sampling: str = "poisson",
    every_step: bool = False,
    seed: int = 0,
) -> xr.Dataset:
    r"""Scenario S1: the canary's gradient is +C at every step in the world with z, on the worst data set for it.

    With Poisson batches all other gradients are 0. In the world with z′ the canary's gradient is −C under
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
        sampling: "poisson"; "without_replacement", q = b/n, anew at each step; or "epochs": shuffled anew, each record
            in one of the 1/q batches of each epoch. For "epochs" `steps` must be whole epochs. No attack is known that
            shows the whole ε of "epochs" but at q = 1: what these scores show is a lower bound on the truth.
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
    worlds_of(adjacency, sampling)
    if sampling == "epochs" and steps % (batches := checks.steps_an_epoch(sample_rate)):
        raise ValueError(f"steps must be whole epochs of {batches} steps with sampling='epochs', got {steps}")
    law = _Law(noise_multiplier, sample_rate, steps, adjacency, sampling)
    scores, bits = np.empty(runs), np.empty(runs, dtype=np.int8)
    for block, start in enumerate(range(0, runs, BLOCK)):
        here = slice(start, min(start + BLOCK, runs))
        rng = stream(seed, "worst_case", block)
        coins = rng.integers(0, 2, BLOCK)
        found = law.ratios(coins, rng) if every_step else law.sums(coins, rng)
        bits[here], scores[here] = coins[: here.stop - here.start], found[: here.stop - here.start]
    drawn: dict[str, Any] = {"every_step": True} if every_step else {}
    if sampling != "poisson":
        drawn["sampling"] = sampling
    if sampling == "without_replacement":
        drawn["tested_as"] = "add_remove"
    return datasets.build(
        (scores if every_step else law.ratios_of_sums(scores))[:, None],
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
        **drawn,
    )


@dataclass(frozen=True)
class _Law:
    """What the adversary sees, in units in which z moves a batch's sum by 1.

    Under "substitute" with Poisson batches z′ moves it by −1. Otherwise z′ moves nothing, and the unit is 2C where z′
    has another record's gradient, and C where it has none.
    """

    noise_multiplier: float
    sample_rate: float
    steps: int
    adjacency: str
    sampling: str

    @property
    def batches(self) -> int:
        """How many an epoch has."""
        return checks.steps_an_epoch(self.sample_rate)

    @property
    def mirrored(self) -> bool:
        return self.adjacency == "substitute" and self.sampling == "poisson"

    @property
    def sigma(self) -> float:
        return self.noise_multiplier / (1 if self.mirrored else distance(self.adjacency))

    def shifts(self, coins: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.where(coins == 0, 1, -1 if self.mirrored else 0)

    def sums(self, coins: NDArray[np.int64], rng: np.random.Generator) -> Array:
        """Sums over all steps, one for each coin."""
        if self.sampling == "epochs":
            sampled = np.full(len(coins), self.steps // self.batches)
        else:
            sampled = rng.binomial(self.steps, self.sample_rate, len(coins))
        noise = np.sqrt(self.steps) * self.sigma * rng.standard_normal(len(coins))
        return np.asarray(self.shifts(coins) * sampled + noise)

    def ratios_of_sums(self, sums: Array) -> Array:
        if self.sampling == "epochs":
            epochs = self.steps // self.batches
            return np.asarray(epochs * (2 * sums - epochs) / (2 * self.steps * self.sigma**2))
        return log_likelihood_ratio(
            sums,
            noise_multiplier=self.sigma,
            sample_rate=self.sample_rate,
            steps=self.steps,
            adjacency="substitute" if self.mirrored else "add_remove",
        )

    def ratios(self, coins: NDArray[np.int64], rng: np.random.Generator) -> Array:
        """Log-likelihood ratios of all that is seen step by step, one for each coin."""
        return reduce(np.add, self._epochs(coins, rng) if self.sampling == "epochs" else self._steps(coins, rng))

    def _steps(self, coins: NDArray[np.int64], rng: np.random.Generator) -> Iterator[Array]:
        pair = Pair("substitute" if self.mirrored else "remove", self.sigma, self.sample_rate)
        shifts = self.shifts(coins)
        for _ in range(self.steps):
            sampled = rng.random(len(coins)) < self.sample_rate
            yield pair.loss(shifts * sampled + self.sigma * rng.standard_normal(len(coins)))

    def _epochs(self, coins: NDArray[np.int64], rng: np.random.Generator) -> Iterator[Array]:
        shifts = self.shifts(coins)
        for _ in range(self.steps // self.batches):
            place, ratio = rng.integers(0, self.batches, len(coins)), np.full(len(coins), -np.inf)
            for batch in range(self.batches):
                seen = shifts * (place == batch) + self.sigma * rng.standard_normal(len(coins))
                ratio = np.logaddexp(ratio, (2 * seen - 1) / (2 * self.sigma**2))
            yield ratio - np.log(self.batches)
