"""Mechanisms whose ε and trade-off function are known, and the scores of the strongest attack on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from dpsub import accounting
from dpsub._core import checks
from dpsub.estimators.numerics import Array

NORMAL_SCORES = np.linspace(-9, 9, 20_001)
MOST_GROUPS = 40  # of SortedByLuck; with more, a place's last digits would be lost in floating-point numbers


@dataclass(frozen=True)
class Gaussian:
    """A mechanism that attains μ-GDP."""

    mu: float

    def __post_init__(self) -> None:
        checks.real("mu", self.mu, above=0)

    def epsilon(self, delta: float) -> float:
        """The true ε at δ."""
        return accounting.gdp_epsilon(self.mu, delta)

    def tradeoff(self, fpr: Array) -> Array:
        """The least false-negative rate at each false-positive rate."""
        return np.asarray(ndtr(-ndtri(checks.rates("fpr", fpr)) - self.mu))


@dataclass(frozen=True)
class Drifting(Gaussian):
    """μ-GDP at each observation, whose place and spread depend on all scores and coins before it."""

    def _scores(self, in_z: NDArray[np.bool_], rng: np.random.Generator) -> Array:
        found, place = np.empty(len(in_z)), 0.0
        for t, (noise, own) in enumerate(zip(rng.normal(size=len(in_z)).tolist(), in_z.tolist(), strict=True)):
            found[t] = place + (1 + (place > 0)) * (noise + self.mu * own)
            place = 0.9 * found[t] + own
        return found


@dataclass(frozen=True)
class SortedByLuck(Gaussian):
    """μ-GDP at each observation, at a place that the coins before it decide so that ranks break their promise.

    After a group of observations in which z came up more often than not, all later scores are made lower, otherwise
    higher, each time by half as much. Given the past, a score is N(0, 1) or N(μ, 1) at a place that is known. But in
    the end groups lie above others because z came up more often in them.
    """

    together: int = 16  # observations at one place

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.whole("together", self.together)

    def _scores(self, in_z: NDArray[np.bool_], rng: np.random.Generator) -> Array:
        groups = np.array_split(in_z, range(self.together, len(in_z), self.together))
        luck = np.array([np.sign(group.mean() - 0.5) if len(group) else 0.0 for group in groups])
        if len(groups) > MOST_GROUPS:
            raise ValueError(
                f"bits must be at most {MOST_GROUPS * self.together} for SortedByLuck with together = {self.together}, "
                f"got {len(in_z)}: its places could not be told apart"
            )
        halved = 10 * 2.0 ** np.arange(len(groups), 0, -1)
        places = -np.concatenate(([0.0], np.cumsum(luck * halved)[:-1]))
        return np.asarray(
            np.repeat(places, [len(group) for group in groups]) + rng.normal(size=len(in_z)) + self.mu * in_z
        )


@dataclass(frozen=True)
class SampledGaussian:
    """DP-SGD with one record substituted, against an adversary who sees every step."""

    noise_multiplier: float
    sample_rate: float
    steps: int

    def __post_init__(self) -> None:
        checks.mechanism(self.noise_multiplier, self.sample_rate)
        checks.whole("steps", self.steps)

    def epsilon(self, delta: float) -> float:
        """The true ε at δ."""
        return float(accounting.epsilon_interval(**asdict(self), delta=delta, adjacency="substitute").lower)

    def tradeoff(self, fpr: Array) -> Array:
        """The least false-negative rate at each false-positive rate."""
        return np.asarray(accounting.tradeoff(fpr, **asdict(self), adjacency="substitute"))


@dataclass(frozen=True)
class RandomizedResponse:
    """One bit, reported truthfully with probability e^loss/(1 + e^loss): far from a Gaussian mechanism."""

    loss: float

    def __post_init__(self) -> None:
        checks.real("loss", self.loss, above=0)

    def epsilon(self, delta: float) -> float:
        """The true ε at δ."""
        delta = checks.probability("delta", delta)
        return float(np.log(max(np.exp(self.loss) * (1 - delta) - delta, 1.0)))

    def tradeoff(self, fpr: Array) -> Array:
        """The least false-negative rate at each false-positive rate."""
        rates = checks.rates("fpr", fpr)
        return np.asarray(np.maximum(1 - np.exp(self.loss) * rates, np.exp(-self.loss) * (1 - rates)))


Truth = Gaussian | Drifting | SortedByLuck | SampledGaussian | RandomizedResponse
KINDS = "Gaussian, Drifting, SortedByLuck, SampledGaussian or RandomizedResponse"


@lru_cache(maxsize=16)
def _inverse(truth: Truth) -> tuple[Array, Array]:
    """The normal scores of f(u), increasing, and those of u."""
    fnr = np.clip(truth.tradeoff(ndtr(NORMAL_SCORES)), 1e-300, 1 - 1e-16)
    return ndtri(fnr[::-1]), NORMAL_SCORES[::-1]


def scores(truth: Truth, bits: NDArray[np.integer], rng: np.random.Generator) -> Array:
    """(runs,) the scores of the strongest attack on runs with these bits; higher speaks for z, bit 0.

    Those of Drifting and SortedByLuck are observations in order, each with a coin of its own.
    """
    if not isinstance(truth, Truth):
        raise ValueError(f"truth must be {KINDS}, got {type(truth).__name__}")
    if not isinstance(rng, np.random.Generator):
        raise ValueError(f"rng must be a NumPy generator, as np.random.default_rng makes, got {type(rng).__name__}")
    try:
        worlds = np.array(None) if isinstance(bits, Mapping) else np.asarray(bits)
    except (TypeError, ValueError, RuntimeError):
        worlds = np.array(None)
    if worlds.ndim != 1 or worlds.dtype.kind not in "iub" or not np.isin(worlds, (0, 1)).all():
        raise ValueError("bits must have shape (runs,) and be 0 (trained with z) or 1 (with z_prime)")
    if isinstance(truth, Drifting | SortedByLuck):
        return truth._scores(worlds == 0, rng)
    negative = ndtri(rng.random(len(worlds)))
    positive = np.interp(negative, *_inverse(truth))  # f is its own inverse
    return np.asarray(-np.where(worlds == 0, positive, negative))
