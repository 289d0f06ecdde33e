r"""What an audit can refute: a family of privacy claims, each with the trade-off function it implies.

A claim says that at false-positive rate u no adversary's false-negative rate is below f(u). A larger parameter claims
less. Every f here is its own inverse, so exchanging the worlds changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr, ndtri

from dpsub.accounting.gaussian import gdp_epsilon

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

    def __hash__(self) -> int: ...

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
        """The index of the pair of rates with the largest parameter."""
        ...

    def epsilon(self, parameter: float) -> float: ...

    def deltas(self, epsilons: Array, parameter: float) -> Array:
        """The privacy curve δ(ε), or an upper bound on it, for ε ≥ 0. It increases with the parameter."""
        ...

    def steepest(self, delta: float, parameter: float) -> float:
        """The ε at which the privacy curve is about `delta`, or beyond which it says nothing new."""
        ...


def crossing(excess: Callable[[float], float], start: float, most: float) -> float:
    """Where an increasing function that is negative at `start` reaches 0; `most` if it does not do so before."""
    high = min(start + 1.0, most)
    while excess(high) < 0:
        if high >= most:
            return most
        start, high = high, min(2 * high, most)
    return float(brentq(excess, start, high, xtol=1e-9))


def gdp_deltas(epsilons: Array, mu: float) -> Array:
    """δ(ε) of μ-GDP, for μ > 0, to an absolute error of about 1e-15."""
    return np.asarray(ndtr(mu / 2 - epsilons / mu) - np.exp(epsilons + log_ndtr(-mu / 2 - epsilons / mu)))


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

    def deltas(self, epsilons: Array, parameter: float) -> Array:
        return gdp_deltas(epsilons, parameter)

    def steepest(self, delta: float, parameter: float) -> float:
        return gdp_epsilon(parameter, delta)


@dataclass(frozen=True)
class ApproximateDP:
    r"""(ε, δ)-DP: :math:`f(u) = \max(0, 1-\delta-e^{\varepsilon}u, e^{-\varepsilon}(1-\delta-u))`, parameter ε.

    Source: Kairouz, Oh and Viswanath (2015).
    """

    delta: float
    assumes: Literal["none"] = "none"
    most: float = 700.0  # its exponential is finite

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

    def deltas(self, epsilons: Array, parameter: float) -> Array:
        # Of f's two lines the steep one has slope e^parameter. At smaller slopes the kink between them decides.
        kink = (1 + np.exp(np.minimum(epsilons, parameter))) / (1 + np.exp(parameter))
        return np.asarray(1 - (1 - self.delta) * kink)

    def steepest(self, delta: float, parameter: float) -> float:
        return parameter
