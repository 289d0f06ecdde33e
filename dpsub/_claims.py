r"""What an audit can refute: a family of privacy claims, each with the trade-off function it implies.

A claim says: at false-positive rate u, no adversary's false-negative rate is below f(u). Larger parameters claim less.
Every f here is its own inverse: exchanging the worlds changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri

from dpsub import accounting
from dpsub._gaussian import gdp_epsilon
from dpsub._training import MOST_NOISE, distance

Array = NDArray[np.float64]


class Claim(Protocol):
    @property
    def delta(self) -> float: ...

    @property
    def assumes(self) -> Literal["none", "gdp", "mechanism"]: ...

    @property
    def most(self) -> float:
        """The largest parameter that can be tested."""
        ...

    def tradeoff(self, fpr: Array, parameter: float) -> Array:
        """f(u) of the claim with this parameter."""
        ...

    def kinks(self, parameter: float) -> tuple[float, ...]:
        """Where f is not smooth."""
        ...

    def parameter(self, fpr: float, fnr: float) -> float:
        """The smallest parameter whose claim the rates (fpr, fnr) do not refute, at least 0."""
        ...

    def strongest(self, fpr: Array, fnr: Array) -> int:
        """Which of these pairs of rates has the largest parameter."""
        ...

    def epsilon(self, parameter: float) -> float: ...


def crossing(excess: Callable[[float], float], start: float, most: float) -> float:
    """Where an increasing function that is negative at `start` reaches 0, or `most` if it does not before."""
    high = min(start + 1.0, most)
    while excess(high) < 0:
        if high >= most:
            return most
        start, high = high, min(2 * high, most)
    return float(brentq(excess, start, high, xtol=1e-9))


@dataclass(frozen=True)
class GDP:
    r"""μ-GDP: :math:`f(u) = \Phi(\Phi^{-1}(1-u) - \mu)` (Dong, Roth and Su, 2022); the parameter is μ."""

    delta: float
    assumes: Literal["gdp"] = "gdp"
    most: float = math.inf

    def tradeoff(self, fpr: Array, parameter: float) -> Array:
        return np.asarray(ndtr(-ndtri(fpr) - parameter))

    def kinks(self, parameter: float) -> tuple[float, ...]:
        return ()

    def parameter(self, fpr: float, fnr: float) -> float:
        return float(self._parameters(np.float64(fpr), np.float64(fnr)))

    def strongest(self, fpr: Array, fnr: Array) -> int:
        return int(np.argmax(self._parameters(fpr, fnr)))

    def _parameters(self, fpr: Array | np.float64, fnr: Array | np.float64) -> Array:
        with np.errstate(invalid="ignore"):
            mu = -ndtri(fpr) - ndtri(fnr)
        return np.where((fpr < 1) & (fnr < 1), np.maximum(mu, 0.0), 0.0)

    def epsilon(self, parameter: float) -> float:
        return gdp_epsilon(parameter, self.delta)


@dataclass(frozen=True)
class ApproximateDP:
    r"""(ε, δ)-DP: :math:`f(u) = \max(0, 1-\delta-e^{\varepsilon}u, e^{-\varepsilon}(1-\delta-u))`, parameter ε.

    Source: Kairouz, Oh and Viswanath (2015).
    """

    delta: float
    assumes: Literal["none"] = "none"
    most: float = 700.0  # whose exponential is a number

    def tradeoff(self, fpr: Array, parameter: float) -> Array:
        steep = 1 - self.delta - np.exp(parameter) * fpr
        flat = np.exp(-parameter) * (1 - self.delta - fpr)
        return np.asarray(np.maximum(0.0, np.maximum(steep, flat)))

    def kinks(self, parameter: float) -> tuple[float, ...]:
        return (1 - self.delta) * np.exp(-parameter), (1 - self.delta) / (1 + np.exp(parameter)), 1 - self.delta

    def parameter(self, fpr: float, fnr: float) -> float:
        return float(self._parameters(np.float64(fpr), np.float64(fnr)))

    def strongest(self, fpr: Array, fnr: Array) -> int:
        return int(np.argmax(self._parameters(fpr, fnr)))

    def _parameters(self, fpr: Array | np.float64, fnr: Array | np.float64) -> Array:
        with np.errstate(divide="ignore", invalid="ignore"):
            one = np.log(np.maximum(1 - self.delta - fnr, 0.0)) - np.log(fpr)
            other = np.log(np.maximum(1 - self.delta - fpr, 0.0)) - np.log(fnr)
        return np.asarray(np.maximum(np.maximum(one, other), 0.0))

    def epsilon(self, parameter: float) -> float:
        return parameter


LEAST_NOISE = 0.2  # of the claims; no training with less is worth an audit
PER_OCTAVE = 256  # noise multipliers whose curves are computed; between them f is interpolated
SCORES = np.linspace(-8, 8, 4001)  # normal scores of the rates at which they are
INTERPOLATION = 2.5e-5  # interpolation was found to add 1.7e-5 to f at most, at 48 settings, half-way between curves


@dataclass(frozen=True)
class MechanismDP:
    r"""The trade-off function of DP-SGD itself at this sample rate and number of steps, whatever its noise.

    The parameter is :math:`d\sqrt{T}/\sigma` with d the distance of the two worlds, 2 under substitution: the μ that
    the same noise would have at full batch.

    Source: *Tight Auditing*, section 4.1 and appendix A.
    """

    delta: float
    sample_rate: float
    steps: int
    adjacency: str
    assumes: Literal["mechanism"] = "mechanism"

    @property
    def most(self) -> float:
        return self._full_batch / LEAST_NOISE

    @property
    def _full_batch(self) -> float:
        return distance(self.adjacency) * math.sqrt(self.steps)

    def noise_multiplier(self, parameter: float) -> float:
        return self._full_batch / parameter if parameter else math.inf

    def tradeoff(self, fpr: Array, parameter: float) -> Array:
        if self.sample_rate == 1:
            return np.asarray(ndtr(-ndtri(fpr) - parameter))
        least = max(-10 * PER_OCTAVE, math.ceil(PER_OCTAVE * math.log2(self._full_batch / MOST_NOISE)))
        at = PER_OCTAVE * math.log2(parameter) if parameter else -math.inf
        if at <= least:
            low, high, part = 1 - ndtr(SCORES), self._curve(least), parameter / 2 ** (least / PER_OCTAVE)
        else:
            low, high, part = self._curve(math.floor(at)), self._curve(math.floor(at) + 1), at % 1
        f = (1 - part) * low + part * high - INTERPOLATION
        return np.maximum(np.interp(ndtri(fpr), SCORES, f), 0.0)

    def _curve(self, place: int) -> Array:
        sigma = self._full_batch / 2 ** (place / PER_OCTAVE)
        return _lowest_fnr(sigma, self.sample_rate, self.steps, self.adjacency)

    def kinks(self, parameter: float) -> tuple[float, ...]:
        return ()

    def parameter(self, fpr: float, fnr: float) -> float:
        def excess(parameter: float) -> float:
            return fnr - float(self.tradeoff(np.array(fpr), parameter))

        return crossing(excess, 0.0, self.most) if excess(0.0) < 0 else 0.0

    def strongest(self, fpr: Array, fnr: Array) -> int:
        # Each pair that refutes the best parameter so far takes its place, until none does.
        chosen, parameter = 0, 0.0
        left = np.arange(len(fpr))
        while parameter < self.most:
            excess = fnr[left] - self.tradeoff(fpr[left], parameter)
            refuting = excess < 0
            left, excess = left[refuting], excess[refuting]
            if not len(left):
                break
            chosen = int(left[np.argmin(excess)])
            left = left[left != chosen]
            parameter = max(parameter, self.parameter(float(fpr[chosen]), float(fnr[chosen])))
        return chosen

    def epsilon(self, parameter: float) -> float:
        if self.sample_rate == 1:
            return gdp_epsilon(parameter, self.delta)
        sigma = self.noise_multiplier(parameter)
        if sigma > MOST_NOISE:
            return 0.0
        interval = accounting.epsilon_interval(
            noise_multiplier=sigma, sample_rate=self.sample_rate, steps=self.steps, delta=self.delta,
            adjacency=self.adjacency, eps_error=2e-4,
        )  # fmt: skip
        return float(interval.lower)


@lru_cache(maxsize=1024)
def _lowest_fnr(noise_multiplier: float, sample_rate: float, steps: int, adjacency: str) -> Array:
    """A certified lower bound on f at the rates with these normal scores."""
    return np.asarray(
        accounting.tradeoff(
            ndtr(SCORES), noise_multiplier=noise_multiplier, sample_rate=sample_rate, steps=steps, adjacency=adjacency
        )
    )
