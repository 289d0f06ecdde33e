"""Formulas of Tight Auditing (Nasr et al., 2023) as the paper has them."""

import numpy as np
from scipy.optimize import brentq
from scipy.stats import beta, norm


def laplace(fpr, loss):
    """The trade-off function of Laplace noise of scale 1/loss."""
    steep = 1 - np.exp(loss) * fpr
    middle = np.exp(-loss) / 4 / np.maximum(fpr, 1e-300)
    flat = np.exp(-loss) * (1 - fpr)
    parts = [fpr < np.exp(-loss) / 2, fpr <= 0.5]
    return np.select(parts, [steep, middle], flat)


def upper(errors, count, alpha):
    """Clopper–Pearson's upper bound on the rate of errors."""
    errors = np.asarray(errors)
    found = beta.ppf(1 - alpha, errors + 1, np.maximum(count - errors, 1))
    return np.where(errors < count, found, 1.0)


def epsilon_dp(fpr, fnr, delta):
    """The ε that two rates show, by (ε, δ)-DP (equation 9)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        one = np.log(np.maximum(1 - delta - fnr, 0) / fpr)
        other = np.log(np.maximum(1 - delta - fpr, 0) / fnr)
    return np.maximum(np.maximum(one, other), 0)


def mu_gdp(fpr, fnr):
    """The μ that two rates show, by μ-GDP (equation 12)."""
    return np.maximum(norm.isf(fpr) - norm.ppf(fnr), 0)


def best_threshold(sigma, delta):
    """Where (ε, δ)-DP shows most of N(0, σ²) and N(1, σ²)."""

    def excess(z):
        # Equation 18. The ratio of densities is e^((2z − 1)/2σ²).
        steep = (2 * z - 1) / (2 * sigma**2)
        missed = np.exp(steep + norm.logsf(z / sigma))
        return norm.sf((z - 1) / sigma) - missed - delta

    return brentq(excess, 0.5, 1 + 40 * sigma)


def lines(epsilon_at, count, delta):
    """Algorithm 4: some δ, evenly spaced, with the ε that each has."""
    deltas = np.linspace(delta, 1 - delta, count)
    epsilons = np.array([epsilon_at(one) for one in deltas])
    return epsilons, deltas


def from_lines(fpr, epsilons, deltas, combine=np.max):
    """The trade-off function that follows from them.

    The paper combines by the minimum. Each line bounds the trade-off
    function from below, so the best of these bounds is the maximum.
    The second line is e^(−ε) (1 − δ − x). The paper's print has the
    bracket in the exponent.
    """
    steep = 1 - deltas - np.exp(epsilons) * fpr[:, None]
    flat = np.exp(-epsilons) * (1 - deltas - fpr[:, None])
    return combine(np.maximum(np.maximum(steep, flat), 0), axis=1)
