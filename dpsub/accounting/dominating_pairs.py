r"""The pairs of distributions that dominate one step of subsampled DP-SGD.

Everything is in units of the clipping bound: the record's gradient has norm 1, and the noise has standard deviation
``sigma = noise_multiplier``. In every pair the privacy loss :math:`L(x) = \log P(x)/Q(x)` increases in x.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from dpsub._core import checks

Array = NDArray[np.float64]
LEAST_NOISE, MOST_NOISE, LEAST_RATE = 1e-4, 1e6, 1e-300  # the range that floating point covers
NOISE = partial(checks.real, at_least=LEAST_NOISE, at_most=MOST_NOISE)


def distance(adjacency: str) -> float:
    """The distance of the two worlds' means at a step that samples the record, in units of the clipping bound."""
    return 2.0 if adjacency == "substitute" else 1.0


def _asinh_exp(s: Array) -> Array:
    """arcsinh(exp(s)), without forming exp(s) where it would overflow."""
    large = np.maximum(s, 0)
    return np.where(s > 0, large + np.log1p(np.sqrt(1 + np.exp(-2 * large))), np.arcsinh(np.exp(np.minimum(s, 0))))


@dataclass(frozen=True)
class Pair:
    r"""One direction of one step: P against Q, mixtures of N(0, sigma^2) and one shifted Gaussian.

    ============ ============================== ===============================
    direction    P                              Q
    ============ ============================== ===============================
    "substitute" (1-q) N(0) + q N(1)            (1-q) N(0) + q N(-1)
    "remove"     (1-q) N(0) + q N(1)            N(0)
    "add"        N(0)                           (1-q) N(0) + q N(-1)
    ============ ============================== ===============================
    """

    direction: Literal["substitute", "remove", "add"]
    sigma: float
    q: float

    def _log_shift(self, x: Array) -> Array:
        """log of ((1-q) N(0) + q N(1)) / N(0) at x."""
        tilt = (2 * x - 1) / (2 * self.sigma**2)
        return np.asarray(np.logaddexp(np.log1p(-self.q) if self.q < 1 else -np.inf, np.log(self.q) + tilt))

    def loss(self, x: Array) -> Array:
        """log P(x)/Q(x)."""
        up = 0.0 if self.direction == "add" else self._log_shift(x)
        return np.asarray(up - (0.0 if self.direction == "remove" else self._log_shift(-x)))

    def inverse_loss(self, loss: Array) -> Array:
        """The x at which the privacy loss is `loss`; ±inf outside the range of the loss."""
        loss = np.asarray(loss, dtype=np.float64)
        if self.direction == "remove":
            return self._inverse_remove(loss)
        if self.direction == "add":
            return -self._inverse_remove(-loss)
        if self.q == 1:
            return self.sigma**2 * loss / 2
        size = np.abs(loss)
        log_weight = 1 / (2 * self.sigma**2) + np.log1p(-self.q) - np.log(self.q)
        with np.errstate(divide="ignore"):
            log_sinh = size / 2 + np.log(-np.expm1(-size)) - np.log(2)  # of size / 2
        bend = _asinh_exp(log_weight + log_sinh)
        return np.asarray(self.sigma**2 * np.sign(loss) * (size / 2 + np.where(size > 0, bend, 0)))

    def _inverse_remove(self, loss: Array) -> Array:
        rest = np.log1p(-self.q) if self.q < 1 else -np.inf
        with np.errstate(divide="ignore", invalid="ignore"):
            inside = loss + np.log(-np.expm1(np.minimum(rest - loss, 0))) - np.log(self.q)
        x = self.sigma**2 * inside + 0.5
        return np.where(loss > rest, x, -np.inf)

    def _weights(self, under: Literal["P", "Q"]) -> tuple[float, float]:
        """The weight of the shifted Gaussian in P or Q, and its mean."""
        if under == "P":
            return (0.0, 1.0) if self.direction == "add" else (self.q, 1.0)
        return (0.0, -1.0) if self.direction == "remove" else (self.q, -1.0)

    def cdf(self, x: Array) -> Array:
        """P(outcome ≤ x)."""
        weight, mean = self._weights("P")
        return np.asarray((1 - weight) * ndtr(x / self.sigma) + weight * ndtr((x - mean) / self.sigma))

    def masses(self, edges: Array, under: Literal["P", "Q"]) -> Array:
        """The probability of each interval between consecutive edges, accurate in either tail."""

        def gaussian(mean: float) -> Array:
            u = (edges - mean) / self.sigma
            low, high = u[:-1], u[1:]
            return np.where(low > 0, ndtr(-low) - ndtr(-high), ndtr(high) - ndtr(low))

        weight, mean = self._weights(under)
        return (1 - weight) * gaussian(0.0) + (weight * gaussian(mean) if weight else 0.0)

    def nodes(self, reach: float) -> tuple[Array, Array]:
        """Gauss–Legendre points with |x| < reach, and their log-probabilities under P."""
        panels = max(1, math.ceil(8 * reach / self.sigma))
        return self.nodes_between(-reach, reach, panels)

    def nodes_between(self, low: float, high: float, panels: int) -> tuple[Array, Array]:
        points, weights = np.polynomial.legendre.leggauss(20)
        edges = np.linspace(low, high, panels + 1)
        half = np.diff(edges)[:, None] / 2
        x = (edges[:-1, None] + half * (1 + points)).ravel()
        weight, mean = self._weights("P")
        with np.errstate(divide="ignore"):
            log_density = np.logaddexp(
                np.log(1 - weight) - x**2 / (2 * self.sigma**2), np.log(weight) - (x - mean) ** 2 / (2 * self.sigma**2)
            ) - np.log(self.sigma * np.sqrt(2 * np.pi))
        return x, log_density + np.log((half * weights).ravel())


@dataclass(frozen=True)
class MirroredPair:
    r"""One step of batches of fixed size, one record of the data set replaced.

    A record in the batch has taken the place of another one. If the gradients of all others are that of z′, the step's
    worlds are (1-q) N(0) + q N(2) against N(0), which is `half` in units of 2: `sigma` is half the noise multiplier.
    The others may also point the other way. So this pair has the outcomes of `half` above loss 0, their mirror image
    below, and the rest of the probability at loss 0. Here x is the distance from the outcome of loss 0, in units of the
    distance between the two means.

    Source: Zhu, Dong and Wang (2022), on sampling without replacement with one record replaced.
    """

    sigma: float
    q: float

    @property
    def half(self) -> Pair:
        return Pair("remove", self.sigma, self.q)

    def loss(self, x: Array) -> Array:
        return np.asarray(np.sign(x) * self.half.loss(np.abs(x) + 0.5))

    def inverse_loss(self, loss: Array) -> Array:
        size = np.abs(np.asarray(loss, dtype=np.float64))
        return np.asarray(np.sign(loss) * np.where(size > 0, np.maximum(self.half.inverse_loss(size) - 0.5, 0.0), 0.0))

    @property
    def _atom(self) -> float:
        """The probability of loss 0: what the outcomes of `half` above loss 0 leave under P and Q."""
        below, above = np.array([-np.inf, 0.5]), np.array([0.5, np.inf])
        return max(float(self.half.masses(below, "P")[0] - self.half.masses(above, "Q")[0]), 0.0)

    def masses(self, edges: Array, under: Literal["P", "Q"]) -> Array:
        """The probability of each interval between consecutive edges: the lower edge excluded, the upper included."""
        above = self.half.masses(np.maximum(edges, 0.0) + 0.5, under)
        below = self.half.masses(np.maximum(-edges[::-1], 0.0) + 0.5, "Q" if under == "P" else "P")[::-1]
        at_zero = (edges[:-1] < 0) & (edges[1:] >= 0)
        return np.asarray(above + below + np.where(at_zero, self._atom, 0.0))

    def nodes(self, reach: float) -> tuple[Array, Array]:
        """Points with |x| < reach, and their log-probabilities under P."""
        outcomes, log_p = self.half.nodes_between(0.5, reach + 0.5, max(1, math.ceil(8 * reach / self.sigma)))
        x = outcomes - 0.5
        with np.errstate(divide="ignore"):
            return np.concatenate((x, -x, [0.0])), np.concatenate((log_p, log_p - self.loss(x), [np.log(self._atom)]))


# What the grid asks of a pair: `sigma`, an increasing `loss`, `inverse_loss`, `masses` and `nodes`. `merge_outcomes`
# treats the bounded ends of a `Pair`'s loss, and "prv" takes a `Pair` only.
SinglePair = Pair | MirroredPair


@dataclass(frozen=True)
class MixedPair:
    """One of several pairs, drawn with these probabilities and shown: its loss has the mixture of their laws.

    Divergences are jointly convex, so it dominates a step in which the draw stays hidden. If the probabilities do not
    sum to 1, the rest is that of two equal worlds.
    """

    parts: tuple[tuple[float, SinglePair], ...]


StepPair = SinglePair | MixedPair


def parts_of(pair: StepPair) -> tuple[tuple[float, SinglePair], ...]:
    """The pairs that a pair is a mixture of, each with its probability."""
    return pair.parts if isinstance(pair, MixedPair) else ((1.0, pair),)


def poisson_pairs(adjacency: str, sigma: float, q: float) -> tuple[Pair, ...]:
    """The pairs whose largest δ is that of a step that uses each record with probability q, independently of others.

    A replaced record has one pair, which is its own mirror image. An added or removed record has two.
    """
    if adjacency == "substitute":
        return (Pair("substitute", sigma, q),)
    return Pair("remove", sigma, q), Pair("add", sigma, q)
