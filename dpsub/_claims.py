r"""What an audit can refute: a family of privacy claims, each with the trade-off function it implies.

A claim says: at false-positive rate u, no adversary's false-negative rate is below f(u). Larger parameters claim less.
Privacy region of (ε, δ)-DP: Kairouz, Oh and Viswanath (2015); of μ-GDP: Dong, Roth and Su (2022).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from dpsub._gaussian import gdp_epsilon

Array = NDArray[np.float64]


class Claim(Protocol):
    @property
    def assumes(self) -> Literal["none", "gdp", "mechanism"]: ...

    def tradeoff(self, fpr: Array, parameter: float) -> Array:
        """f(u) of the claim with this parameter."""
        ...

    def kinks(self, parameter: float) -> tuple[float, ...]:
        """Where f is not smooth."""
        ...

    def parameter(self, fpr: Array, fnr: Array) -> Array:
        """The smallest parameter whose claim the rates (fpr, fnr) do not refute, at least 0."""
        ...

    def epsilon(self, parameter: float) -> float: ...


@dataclass(frozen=True)
class GDP:
    r"""μ-GDP: :math:`f(u) = \Phi(\Phi^{-1}(1-u) - \mu)`; the parameter is μ."""

    delta: float
    assumes: Literal["gdp"] = "gdp"

    def tradeoff(self, fpr: Array, parameter: float) -> Array:
        return np.asarray(ndtr(-ndtri(fpr) - parameter))

    def kinks(self, parameter: float) -> tuple[float, ...]:
        return ()

    def parameter(self, fpr: Array, fnr: Array) -> Array:
        with np.errstate(invalid="ignore"):
            mu = -ndtri(fpr) - ndtri(fnr)
        return np.where((fpr < 1) & (fnr < 1), np.maximum(mu, 0.0), 0.0)

    def epsilon(self, parameter: float) -> float:
        return gdp_epsilon(parameter, self.delta)


@dataclass(frozen=True)
class ApproximateDP:
    r"""(ε, δ)-DP: :math:`f(u) = \max(0, 1-\delta-e^{\varepsilon}u, e^{-\varepsilon}(1-\delta-u))`, parameter ε."""

    delta: float
    assumes: Literal["none"] = "none"

    def tradeoff(self, fpr: Array, parameter: float) -> Array:
        steep = 1 - self.delta - np.exp(parameter) * fpr
        flat = np.exp(-parameter) * (1 - self.delta - fpr)
        return np.asarray(np.maximum(0.0, np.maximum(steep, flat)))

    def kinks(self, parameter: float) -> tuple[float, ...]:
        return (1 - self.delta) * np.exp(-parameter), (1 - self.delta) / (1 + np.exp(parameter)), 1 - self.delta

    def parameter(self, fpr: Array, fnr: Array) -> Array:
        with np.errstate(divide="ignore", invalid="ignore"):
            one = np.log(np.maximum(1 - self.delta - fnr, 0.0)) - np.log(fpr)
            other = np.log(np.maximum(1 - self.delta - fpr, 0.0)) - np.log(fnr)
        return np.asarray(np.maximum(np.maximum(one, other), 0.0))

    def epsilon(self, parameter: float) -> float:
        return parameter


CLAIMS = {"gdp": GDP, "dp": ApproximateDP}
