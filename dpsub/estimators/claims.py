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
from scipy.special import ndtr, ndtri

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


def crossing(excess: Callable[[float], float], start: float, most: float) -> float:
    """Where an increasing function that is negative at `start` reaches 0; `most` if it does not do so before."""
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
