r"""Roots, exact intervals and integrals: what the tests of claims are made of.

P(X > f(U)) for independent X and U with Beta laws is the integral behind the rank test and the posteriors. With
u = sin²θ, a Beta law has a smooth density in θ. It is at least as log-concave as a Gaussian of variance
1/(2(a + b − 1)), whatever its mean. So the integral is over θ. Its nodes lie where U has its mass, and where f(U) lies
in the mass of X; the latter are the images of X's nodes, because f is its own inverse.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import betainc, betaincc, betainccinv, betaln, gammaln, xlog1py, xlogy

Array = NDArray[np.float64]
Counts = NDArray[np.int64]
Law = tuple[Array, Array]  # the two parameters, (laws,) each

PIECES, REACH = 10, 9.0  # of each law; in standard deviations of that Gaussian, and of a binomial law
NEGLIGIBLE = 1e-40  # probabilities at the ends of a law, which are left out
POINTS, WEIGHTS = np.polynomial.legendre.leggauss(6)


class Tested(Protocol):
    """What the tests need of a family of claims: see `dpsub.estimators.claims.Claim`."""

    @property
    def most(self) -> float: ...

    def tradeoff(self, fpr: Array, parameter: float) -> Array: ...

    def kinks(self, parameter: float) -> tuple[float, ...]: ...


def crossing(excess: Callable[[float], float], start: float, most: float) -> float:
    """Where an increasing function that is negative at `start` reaches 0; `most` if it does not do so before."""
    high = min(start + 1.0, most)
    while excess(high) < 0:
        if high >= most:
            return most
        start, high = high, min(2 * high, most)
    return float(brentq(excess, start, high, xtol=1e-9))


def clopper_pearson_upper(counts: Counts, trials: int, alpha: float) -> Array:
    """The upper ends of one-sided exact intervals for a proportion, at confidence 1 − alpha."""
    missed = np.maximum(trials - counts, 1)
    return np.where(counts < trials, betainccinv(counts + 1.0, missed, alpha), 1.0)


def law_breaks(a: Array, b: Array) -> Array:
    """(laws, PIECES + 1) angles that hold all but a negligible part of each law."""
    total = a + b - 1
    mode = np.arcsin(np.sqrt(np.clip((a - 0.5) / total, 0.0, 1.0)))
    reach = REACH / np.sqrt(2 * total)
    low, high = np.maximum(mode - reach, 0.0), np.minimum(mode + reach, np.pi / 2)
    return np.linspace(low, high, PIECES + 1, axis=-1)


def probability_above(claim: Tested, parameter: float, u: Law, x: Law, *, tail: np.ufunc = betaincc) -> Array:
    """P(X > f(U)), one for each pair of laws, to a relative error of 1e-5; P(X < f(U)) with tail=betainc.

    The error can be 1e-3 where f is interpolated or a law is Beta(½, n).
    """
    a, b = u[0][:, None], u[1][:, None]
    own = law_breaks(*u)
    images = claim.tradeoff(np.sin(law_breaks(*x)) ** 2, parameter)
    rate, weights = _nodes(claim, parameter, own, images, a, b)
    inside = tail(x[0][:, None], x[1][:, None], np.clip(claim.tradeoff(rate, parameter), 0.0, 1.0))
    low, high = np.sin(own[:, 0]) ** 2, np.sin(own[:, -1]) ** 2
    outside = betainc(*u, low) + betaincc(*u, high)
    return np.asarray(np.einsum("ij,ij->i", weights, inside) + outside)


def false_negatives_law(
    claim: Tested, parameter: float, rank: int, negatives: int, positives: int
) -> tuple[int, Array]:
    """The law of Binomial(n1, f(U)), U ~ Beta(k, n0 - k + 1): the first count, and the probabilities from it on.

    The integral over U is over the angle θ, too. Its pieces are short for the Beta law and, by the images of equal
    steps, for the binomial law, whose width is about the same in the angle of f(u).
    """
    a, b = float(rank), negatives - rank + 1.0
    own = law_breaks(np.array([a]), np.array([b]))[0]
    ends = np.clip(claim.tradeoff(np.sin(own[[0, -1]]) ** 2, parameter), 0.0, 1.0)
    high, low = np.arcsin(np.sqrt(ends))
    steps = np.linspace(low, high, 2 + math.ceil((high - low) * math.sqrt(positives)))
    images = claim.tradeoff(np.sin(steps) ** 2, parameter)
    [rate], [weights] = _nodes(claim, parameter, own[None], images[None], np.array([[a]]), np.array([[b]]))
    counted = weights > NEGLIGIBLE
    rate, weights = rate[counted], weights[counted]
    missed = np.clip(claim.tradeoff(rate, parameter), 0.0, 1.0)
    law = _mixture(missed, weights, positives)
    # What lies outside the pieces counts as no false negative, which can only make the p-value larger.
    law[0] += betainc(a, b, np.sin(own[0]) ** 2) + betaincc(a, b, np.sin(own[-1]) ** 2)
    return _trimmed(0, law)


def _nodes(claim: Tested, parameter: float, own: Array, images: Array, a: Array, b: Array) -> tuple[Array, Array]:
    """(laws, nodes) of U, between its own breaks, these images and the kinks of f; and their weights."""
    kinks = np.broadcast_to(np.array(claim.kinks(parameter)), (len(own), len(claim.kinks(parameter))))
    others = np.arcsin(np.sqrt(np.clip(np.concatenate((images, kinks), axis=1), 0.0, 1.0)))
    edges = np.sort(np.concatenate((own, np.clip(others, own[:, :1], own[:, -1:])), axis=1), axis=1)
    half = np.diff(edges)[..., None] / 2
    rate = np.sin(edges[:, :-1, None] + half * (1 + POINTS)).reshape(len(own), -1) ** 2
    weights = 2 * (half * WEIGHTS).reshape(len(own), -1)
    return rate, weights * np.exp(xlogy(a - 0.5, rate) + xlog1py(b - 0.5, -rate) - betaln(a, b))


def law_of_sum(laws: Iterable[tuple[int, Array]]) -> tuple[int, Array]:
    """The law of the sum of independent counts, each as `false_negatives_law` gives it."""
    start, total = 0, np.ones(1)
    for first, law in laws:
        start, total = _trimmed(start + first, np.convolve(total, law))
    return start, total


def _mixture(rates: Array, weights: Array, trials: int) -> Array:
    """(trials + 1,): the probabilities of binomial counts, with rates that have these weights."""
    width = math.ceil(REACH * math.sqrt(trials)) + 20  # on both sides together; the deviation is at most √trials/2
    first = np.clip(np.floor(rates * trials - width / 2), 0, None).astype(np.int64)
    counts = first[:, None] + np.arange(width + 1)
    inside = counts <= trials
    counts = np.minimum(counts, trials)
    logarithms = (
        _coefficients(trials)[counts] + xlogy(counts, rates[:, None]) + xlog1py(trials - counts, -rates[:, None])
    )
    masses = np.where(inside, np.exp(logarithms), 0.0) * weights[:, None]
    return np.asarray(np.bincount(counts.ravel(), masses.ravel(), minlength=trials + 1), dtype=np.float64)


@lru_cache(maxsize=32)
def _coefficients(trials: int) -> Array:
    counts = np.arange(trials + 1)
    return np.asarray(gammaln(trials + 1) - gammaln(counts + 1) - gammaln(trials - counts + 1))


def _trimmed(start: int, law: Array) -> tuple[int, Array]:
    kept = np.flatnonzero(law > NEGLIGIBLE)
    return start + int(kept[0]), law[kept[0] : kept[-1] + 1]
