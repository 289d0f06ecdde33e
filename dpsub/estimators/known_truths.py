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
from dpsub.estimators.claims import Array

NORMAL_SCORES = np.linspace(-9, 9, 20_001)


@dataclass(frozen=True)
class Gaussian:
    """A mechanism that attains μ-GDP."""

    mu: float

    def __post_init__(self) -> None:
        checks.real("mu", self.mu, above=0)

    def epsilon(self, delta: float) -> float:
        return accounting.gdp_epsilon(self.mu, delta)

    def tradeoff(self, fpr: Array) -> Array:
        return np.asarray(ndtr(-ndtri(checks.rates("fpr", fpr)) - self.mu))


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
        return float(accounting.epsilon_interval(**asdict(self), delta=delta, adjacency="substitute").lower)

    def tradeoff(self, fpr: Array) -> Array:
        return np.asarray(accounting.tradeoff(fpr, **asdict(self), adjacency="substitute"))


@dataclass(frozen=True)
class RandomizedResponse:
    """One bit, reported truthfully with probability e^loss/(1 + e^loss): far from a Gaussian mechanism."""

    loss: float

    def __post_init__(self) -> None:
        checks.real("loss", self.loss, above=0)

    def epsilon(self, delta: float) -> float:
        delta = checks.probability("delta", delta)
        return float(np.log(max(np.exp(self.loss) * (1 - delta) - delta, 1.0)))

    def tradeoff(self, fpr: Array) -> Array:
        rates = checks.rates("fpr", fpr)
        return np.asarray(np.maximum(1 - np.exp(self.loss) * rates, np.exp(-self.loss) * (1 - rates)))


Truth = Gaussian | SampledGaussian | RandomizedResponse


@lru_cache(maxsize=16)
def _inverse(truth: Truth) -> tuple[Array, Array]:
    """The normal scores of f(u), increasing, and those of u."""
    fnr = np.clip(truth.tradeoff(ndtr(NORMAL_SCORES)), 1e-300, 1 - 1e-16)
    return ndtri(fnr[::-1]), NORMAL_SCORES[::-1]


def scores(truth: Truth, bits: NDArray[np.integer], rng: np.random.Generator) -> Array:
    """(runs,) the scores of the strongest attack on runs with these bits; higher speaks for z, bit 0."""
    if not isinstance(truth, Truth):
        raise ValueError(f"truth must be Gaussian, SampledGaussian or RandomizedResponse, got {type(truth).__name__}")
    if not isinstance(rng, np.random.Generator):
        raise ValueError(f"rng must be a NumPy generator, as np.random.default_rng makes, got {type(rng).__name__}")
    try:
        worlds = np.array(None) if isinstance(bits, Mapping) else np.asarray(bits)
    except (TypeError, ValueError, RuntimeError):
        worlds = np.array(None)
    if worlds.ndim != 1 or worlds.dtype.kind not in "iub" or not np.isin(worlds, (0, 1)).all():
        raise ValueError("bits must have shape (runs,) and be 0 (trained with z) or 1 (with z_prime)")
    negative = ndtri(rng.random(len(worlds)))
    positive = np.interp(negative, *_inverse(truth))  # f is its own inverse
    return np.asarray(-np.where(worlds == 0, positive, negative))
