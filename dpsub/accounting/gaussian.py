r"""Gaussian differential privacy in closed form (Dong, Roth and Su, 2022), in log space throughout."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import erfcx, exprel, log_ndtr, ndtr, ndtri

from dpsub._core import checks

NOT_NEGATIVE = partial(checks.real, at_least=0)
FARTHEST = Fraction(10**150)  # standard deviations; larger numbers are cut to this
ROUNDING = 1e-14  # above the error of `gdp_deltas`
_points, _weights = np.polynomial.legendre.leggauss(20)
NODES = (2.5 * (1 + _points) + 5 * np.arange(8.0)[:, None]).ravel()  # of a quadrature from 0 to 40
NODE_WEIGHTS = np.tile(2.5 * _weights, 8)


@checks.checked(mu=NOT_NEGATIVE, epsilon=NOT_NEGATIVE)
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
    return math.exp(_log_delta(mu, epsilon)) if mu else 0.0


def gdp_deltas(epsilons: NDArray[np.float64], mu: float) -> NDArray[np.float64]:
    """δ(ε) of μ-GDP, for μ > 0, to an absolute error of about 1e-15."""
    return np.asarray(ndtr(mu / 2 - epsilons / mu) - np.exp(epsilons + log_ndtr(-mu / 2 - epsilons / mu)))


def _log_delta(mu: float, epsilon: float) -> float:
    """log δ(ε) for μ > 0, to an absolute error of about 1e-13."""
    low = _standardised(mu, epsilon)
    unit = max(low, 1.0)
    # With φ the density and R(x) = Φ(-x)/φ(x) the Mills ratio, δ = φ(low) (R(low) - R(low + μ)).
    if mu > 0.1 * unit and low < 0:
        return math.log(float(ndtr(-low)) - math.exp(-low * low / 2) * _scaled_tail(low + mu))
    if mu > 0.1 * unit:
        return -low * low / 2 + math.log(_scaled_tail(low) - _scaled_tail(low + mu))
    # There the two ratios nearly cancel. Their difference is the integral of exp(-s·low - s²/2) (1 - exp(-s·μ)), s > 0.
    integrand = np.exp(-NODES * (low / unit) - (NODES / unit) ** 2 / 2) * NODES * exprel(-NODES * (mu / unit))
    return -low * low / 2 + math.log(mu) + math.log(integrand @ NODE_WEIGHTS / unit / unit / math.sqrt(2 * math.pi))


def _excess(mu: float, epsilon: float, delta: float) -> float:
    """Increases with δ(ε), and is 0 where δ(ε) is `delta`. It is accurate for δ close to 0 and for δ close to 1."""
    if delta < 0.5:
        return _log_delta(mu, epsilon) - math.log(delta)
    low = _standardised(mu, epsilon)
    return (1 - delta) - float(ndtr(low) + math.exp(-low * low / 2) * _scaled_tail(low + mu))


def _standardised(mu: float, epsilon: float) -> float:
    """ε/μ - μ/2, correctly rounded: both terms can be large and close to each other."""
    exact = (2 * Fraction(epsilon) - Fraction(mu) ** 2) / (2 * Fraction(mu))
    return float(max(min(exact, FARTHEST), -FARTHEST))


def _scaled_tail(x: float) -> float:
    """Φ(-x) exp(x²/2), for x > 0."""
    return float(erfcx(x / math.sqrt(2)) / 2)


@checks.checked("delta", mu=NOT_NEGATIVE)
def gdp_epsilon(mu: float, delta: float) -> float:
    r"""The smallest ε ≥ 0 for which every μ-GDP mechanism is (ε, δ)-DP.

    Args:
        mu: ≥ 0; the distance between the two Gaussians, in standard deviations.
        delta: 0 < δ < 1.

    Raises:
        ValueError: if `mu` is negative, or so large that ε is not a floating-point number, or if `delta` is outside
            (0, 1).

    Source: *Beyond Membership*, Theorem 5.1, equation 6, solved for ε.

    >>> round(gdp_epsilon(1.0, 1e-5), 6)
    4.377178
    """
    if mu == 0 or _excess(mu, 0.0, delta) <= 0:
        return 0.0
    # δ(ε) < Φ(-ε/μ + μ/2), which equals δ at the upper end of the bracket.
    most = mu * (mu / 2 - float(ndtri(delta))) * (1 + 1e-12)
    if math.isinf(most):
        raise ValueError(f"mu must be at most about 1.8e154 for ε to be a floating-point number, got {mu:g}")
    return _root(lambda epsilon: _excess(mu, epsilon, delta), 0.0, most)


@checks.checked("delta", epsilon=NOT_NEGATIVE)
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
    # δ(ε) < Φ(-ε/μ + μ/2) and δ(ε) ≤ δ(0) < μ/√(2π): each gives a lower end.
    low = -float(ndtri(delta))
    root = math.hypot(low, math.sqrt(2) * math.sqrt(epsilon))
    end = root - low if low < 0 else epsilon / ((low + root) / 2) if epsilon else 0.0
    least = (1 - 1e-12) * max(delta, end)
    most = 2 * least
    while _excess(most, epsilon, delta) < 0:
        least, most = most, 2 * most
    return _root(lambda mu: _excess(mu, epsilon, delta), least, most)


def _root(excess: Callable[[float], float], low: float, high: float) -> float:
    """Where the function is 0, to a relative error of 1e-15 however small the root is."""
    return float(brentq(excess, low, high, xtol=1e-323, rtol=1e-15, maxiter=2000))


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

    def deltas(self, epsilons: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        deltas = gdp_deltas(epsilons, self.mu)
        return np.clip(deltas - ROUNDING, 0.0, 1.0), np.clip(deltas + ROUNDING, 0.0, 1.0)

    def tradeoff(self, fpr: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        exact = ndtr(-ndtri(fpr) - self.mu)
        return exact, exact
