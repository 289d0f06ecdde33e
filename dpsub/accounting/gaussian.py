r"""Gaussian differential privacy in closed form (Dong, Roth and Su, 2022), in log space throughout."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr, ndtri

from dpsub._core import checks


def gdp_delta(mu: float, epsilon: float) -> float:
    r"""The smallest δ for which every μ-GDP mechanism is (ε, δ)-DP.

    .. math:: \delta(\varepsilon) = \Phi(-\varepsilon/\mu + \mu/2) - e^{\varepsilon}\,\Phi(-\varepsilon/\mu - \mu/2)

    Args:
        mu: ≥ 0; the distance between the two Gaussians, in standard deviations.
        epsilon: ≥ 0.

    Raises:
        ValueError: if an argument is negative or not finite.

    Source: *Beyond Membership*, Theorem 5.1, equation 6; Dong, Roth and Su (2022), Corollary 1.

    >>> round(gdp_delta(1.0, 4.377178), 8)
    1e-05
    """
    mu = checks.real("mu", mu, at_least=0)
    epsilon = checks.real("epsilon", epsilon, at_least=0)
    return _delta(mu, epsilon)


def _delta(mu: float, epsilon: float) -> float:
    if mu == 0:
        return 0.0
    log_p = log_ndtr(-epsilon / mu + mu / 2)
    log_q = log_ndtr(-epsilon / mu - mu / 2)
    return float(-math.exp(log_p) * math.expm1(min(epsilon + log_q - log_p, 0.0)))


def gdp_epsilon(mu: float, delta: float) -> float:
    r"""The smallest ε ≥ 0 for which every μ-GDP mechanism is (ε, δ)-DP.

    Args:
        mu: ≥ 0; the distance between the two Gaussians, in standard deviations.
        delta: 0 < δ < 1.

    Raises:
        ValueError: if `mu` is negative or `delta` is outside (0, 1).

    Source: *Beyond Membership*, Theorem 5.1, equation 6, solved for ε.

    >>> round(gdp_epsilon(1.0, 1e-5), 6)
    4.377178
    """
    mu = checks.real("mu", mu, at_least=0)
    delta = checks.probability("delta", delta)
    if _delta(mu, 0.0) <= delta:
        return 0.0
    # δ(ε) < Φ(-ε/μ + μ/2), which equals δ at the upper end of the bracket.
    most = mu**2 / 2 - mu * float(ndtri(delta))
    return float(brentq(lambda epsilon: _delta(mu, epsilon) - delta, 0.0, most, xtol=1e-13, rtol=1e-14))


def gdp_mu(epsilon: float, delta: float) -> float:
    r"""The largest μ whose Gaussian mechanism is (ε, δ)-DP: the inverse of `gdp_epsilon` in μ.

    Args:
        epsilon: ≥ 0.
        delta: 0 < δ < 1.

    Raises:
        ValueError: if `epsilon` is negative or `delta` is outside (0, 1).

    Source: *Beyond Membership*, Theorem 5.1, equation 6, solved for μ.

    >>> round(gdp_mu(4.0, 1e-5), 6)
    0.924931
    """
    epsilon = checks.real("epsilon", epsilon, at_least=0)
    delta = checks.probability("delta", delta)
    most = 1.0
    while _delta(most, epsilon) < delta:
        most *= 2
    return float(brentq(lambda mu: _delta(mu, epsilon) - delta, 0.0, most, xtol=1e-14, rtol=1e-14))


@dataclass(frozen=True)
class GaussianCurve:
    """δ(ε) of a full-batch composition: a single Gaussian mechanism, known exactly."""

    mu: float

    def epsilon(self, delta: float) -> tuple[float, float]:
        exact = gdp_epsilon(self.mu, delta)
        return exact, exact

    def delta(self, epsilon: float) -> tuple[float, float]:
        exact = gdp_delta(self.mu, epsilon)
        return exact, exact

    def tradeoff(self, fpr: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        exact = ndtr(-ndtri(fpr) - self.mu)
        return exact, exact
