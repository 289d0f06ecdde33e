r"""Compositions of steps on a grid of losses, to any precision.

They are computed with an exponential tilt, which moves the losses that decide δ(ε) to the middle of the distribution.
The floating-point error is then relative to δ, however small δ is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray
from scipy import fft
from scipy.optimize import minimize_scalar

from dpsub.accounting.discretisation import Step
from dpsub.accounting.dominating_pairs import Array

OUTSIDE = 45.0  # e^-OUTSIDE is the tilted mass left outside a composition's window, on either side
EPS = float(np.finfo(float).eps)
TILTS = 4  # tilts per factor of e; a tilt that is off by a factor of e^(1/4) costs almost nothing
LEAST_TILT = -12.0  # the logarithm of the smallest tilt, which has almost no effect
NEGLIGIBLE = 1e-4  # a rounding error of less than this share of δ needs no other tilt
WIDEST = 2**22  # points of a composition, 32 MiB an array; no useful tilt needs more
PRECISIONS = ("double", "longdouble")  # the second is slow, and on some machines it is the same as the first


class TooWide(Exception):
    """A composition of more than WIDEST points."""


class Composition:
    """δ(ε) of independent steps, in phases of identical steps, with a bound on the floating-point error.

    The grids of all steps have the same mesh.
    """

    def __init__(self, *phases: tuple[Step, int]) -> None:
        self.phases = phases
        self.mesh = phases[0][0].mesh
        self.steps = sum(count for _, count in phases)
        certain = any(step.infinite >= 1 for step, _ in phases)
        finite = -math.inf if certain else sum(count * math.log1p(-step.infinite) for step, count in phases)
        self.infinite = -math.expm1(finite)
        self.lowest = sum(count * step.low for step, count in phases)
        self.highest = sum(count * (step.low + len(step.mass) - 1) for step, count in phases)
        self.relative = 1000 * EPS * self.steps  # the relative error of each mass, for exponents below 1000
        self._at_tilt = lru_cache(maxsize=2)(self._compose)

    def delta(self, epsilon: float, *, rounding: int) -> float:
        """δ(ε), with the rounding error added (`rounding` = +1) or subtracted (−1)."""
        tilt = self._best_tilt(partial(self._log_chernoff, epsilon=epsilon))
        try:
            losses, mass, log_error = self._at_tilt(tilt, "double")
        except TooWide:
            return 1.0 if rounding > 0 else self.infinite
        if epsilon >= self.highest * self.mesh:
            return self.infinite
        log_error -= tilt * epsilon
        if log_error >= 0:
            return 1.0 if rounding > 0 else self.infinite
        above = losses > epsilon
        finite = float(mass[above] @ -np.expm1(epsilon - losses[above]))
        answer = self.infinite + finite * (1 + rounding * self.relative) + rounding * math.exp(log_error)
        return min(max(answer, 0.0), 1.0)

    def deltas(self, *, rounding: int) -> Array:
        """δ at 0 and at every multiple of the mesh up to the largest loss, with the rounding error as in `delta`.

        The error is not relative to δ here, but absolute: about 1e-15 for each step.
        """
        losses, tail, tail_under_q, log_error = self._tails(math.exp(LEAST_TILT), "double")
        first = round(losses[0] / self.mesh)
        if first > WIDEST:
            raise TooWide
        error = math.exp(min(log_error, 1.0))
        delta = self.infinite + (tail - tail_under_q) * (1 + rounding * self.relative) + rounding * error
        if first > 0:  # below the window all the mass lies above ε
            epsilon = np.arange(first) * self.mesh
            all_above = delta[0] + tail_under_q[0] * -np.expm1(epsilon - losses[0])
            delta = np.concatenate((all_above, delta))
        return np.clip(delta[min(max(-first, 0), len(delta) - 1) :], 0.0, 1.0)

    def epsilon(self, delta: float, *, rounding: int) -> float:
        """The smallest ε ≥ 0 with δ(ε) ≤ delta, for δ(ε) rounded as in `delta`."""
        if delta <= self.infinite:
            return math.inf
        # Every tilt gives a bound. The tilt of Chernoff's bound for δ is the best, unless the loss is bounded or has a
        # tail heavier than any exponential. There its answer leads to a better tilt. If no tilt is precise enough, the
        # next precision is tried.
        tilt = self._best_tilt(lambda t: (self._rough_log_moment(t) - math.log(delta)) / t)
        best, least_error, at_tilt = math.inf if rounding > 0 else 0.0, math.inf, tilt
        for precision in PRECISIONS:
            tilt = at_tilt
            while math.log(tilt) >= LEAST_TILT:
                answer, log_error = self._solve(delta, tilt, rounding, precision)
                best = min(best, answer) if rounding > 0 else max(best, answer)
                if log_error <= math.log(NEGLIGIBLE) + math.log(delta):
                    return best
                if log_error > least_error:
                    break
                least_error, at_tilt = log_error, tilt
                tilt *= math.exp(-1 / TILTS)
                if math.isfinite(log_error):
                    tilt = min(tilt, self._best_tilt(partial(self._log_chernoff, epsilon=answer)))
        return best

    def _solve(self, delta: float, tilt: float, rounding: int, precision: str) -> tuple[float, float]:
        """A bound on ε, and the logarithm of the rounding error of δ there: infinite if the bound is not tight."""
        try:
            losses, tail, tail_under_q, log_error = self._tails(tilt, precision)
        except TooWide:
            return math.inf if rounding > 0 else 0.0, math.inf
        # At each multiple ℓ of the mesh: δ(ℓ) = P(loss = ∞) + P(loss > ℓ) - e^ℓ Q(loss > ℓ), and its error. Above the
        # largest loss δ is P(loss = ∞) exactly. ε lies between the last multiple with δ(ℓ) > delta and the next.
        log_errors = log_error - tilt * losses
        error = rounding * np.exp(np.minimum(log_errors, 0.0)) * (losses < (self.highest - 0.5) * self.mesh)
        excess = self.infinite + (tail - tail_under_q) * (1 + rounding * self.relative) + error - delta
        excess[log_errors >= 0] = rounding  # δ is not known there
        above = np.flatnonzero(excess > 0)
        if not len(above):
            # The answer lies below the window, unless the window begins at 0.
            first = max(float(losses[0]), 0.0)
            return first if rounding > 0 else 0.0, math.inf if first else -math.inf
        k = int(above[-1])
        if tail_under_q[k] <= 0:
            return (math.inf, math.inf) if rounding > 0 else (max(float(losses[k]), 0.0), math.inf)
        # From ℓ = losses[k] to the next multiple no mass is passed: δ(ε) = δ(ℓ) - (e^(ε-ℓ) - 1) · e^ℓ Q(loss > ℓ), and
        # the error decreases. It is delta where e^(ε-ℓ) = 1 + excess / (e^ℓ Q(loss > ℓ)).
        with np.errstate(over="ignore"):
            within_cell = min(math.log1p(excess[k] / tail_under_q[k]), self.mesh)
        answer = max(float(losses[k]) + within_cell, 0.0)
        return answer, log_error - tilt * answer

    def _tails(self, tilt: float, precision: str) -> tuple[Array, Array, Array, float]:
        """The losses ℓ of the window; P(loss > ℓ) and e^ℓ Q(loss > ℓ) at each; and the error, as in `_compose`."""
        from scipy.signal import lfilter  # imports scipy.stats, which takes as long as all other imports

        losses, mass, log_error = self._at_tilt(tilt, precision)
        # Q's mass at ℓ is e^-ℓ times P's, so r(ℓ) = e^ℓ Q(loss > ℓ) = Σ_{k > ℓ} e^(ℓ - k) mass(k) follows from the
        # multiple above: r(ℓ) = e^-mesh · (r(ℓ + mesh) + mass(ℓ + mesh)). Forming e^ℓ would overflow.
        tail = np.append(np.cumsum(mass[::-1])[::-1][1:], 0.0)
        decay = math.exp(-self.mesh)
        tail_under_q = lfilter([0.0, decay], [1.0, -decay], mass[::-1])[::-1]
        return losses, tail, tail_under_q, log_error

    def _log_chernoff(self, tilt: float, epsilon: float) -> float:
        return self._rough_log_moment(tilt) - tilt * epsilon

    def _rough_log_moment(self, tilt: float) -> float:
        return sum(count * step.rough_log_moment(tilt) for step, count in self.phases)

    def _best_tilt(self, log_bound: Callable[[float], float]) -> float:
        """The tilt with the smallest Chernoff bound, rounded so that similar questions share one composition.

        It is rounded down: where tails are heavy, a slightly larger tilt would move all the mass to the largest losses.
        """
        steepest = math.log(5 / self.mesh)  # with more than e^5 a cell, only the last cell would count
        if steepest <= LEAST_TILT:
            return math.exp(LEAST_TILT)
        best = minimize_scalar(lambda u: log_bound(math.exp(u)), bounds=(LEAST_TILT, steepest), method="bounded")
        return math.exp(math.floor(TILTS * best.x) / TILTS)

    def _compose(self, tilt: float, precision: str) -> tuple[Array, Array, float]:
        """Losses, their masses, and log_error: the mass above any ε is off by at most e^(log_error - tilt · ε)."""
        # Each step's mass m(ℓ) is tilted to m(ℓ) e^(tℓ - Λ), where Λ = log E[e^(t·loss)]. Tilting commutes with
        # convolution: the tilted steps are composed by a Fourier transform, and the sum's mass is the result times
        # e^(ΣΛ - tℓ). So is its error, which is thus small beside the mass around the losses that the tilt is for.
        mesh, variance, log_moment = self.mesh, 0.0, 0.0
        tilted = []
        for step, count in self.phases:
            moment = step.log_moment(tilt)
            weights = np.exp(step.log_mass + tilt * step.losses - moment)
            mean = float(weights @ step.losses)
            variance += count * float(weights @ (step.losses - mean) ** 2)
            log_moment += count * moment
            tilted.append(weights)
        # The window holds all but e^-OUTSIDE of the tilted mass on either side. What lies outside is folded into it.
        scale = math.sqrt(variance) + mesh
        first = max(math.floor(-self._reach(tilt, log_moment, -1, scale) / mesh), self.lowest)
        last = min(math.ceil(self._reach(tilt, log_moment, 1, scale) / mesh), self.highest)
        if last - first > WIDEST:
            raise TooWide
        if self.steps == 1:
            composed, error = tilted[0][first - self.lowest :][: last - first + 1], 0.0
        else:
            size = int(fft.next_fast_len(last - first + 1, real=True))
            power = np.ones(1, dtype=np.result_type(precision, complex))
            for weights, (_, count) in zip(tilted, self.phases, strict=True):
                folded = np.bincount(np.arange(len(weights)) % size, weights=weights, minlength=size)
                power = power * _power(fft.rfft(folded.astype(precision)), count)
            composed = np.roll(fft.irfft(power, size), -((first - self.lowest) % size))[: last - first + 1]
            # The transforms' error is bounded in the Euclidean norm; by Cauchy–Schwarz, so is a sum's error.
            norm = math.sqrt(float(np.mean(np.abs(power) ** 2)))
            counted = min(len(composed), -1 / math.expm1(-2 * tilt * mesh))
            roundings = 2 * self.steps + 5 * math.log2(size) + 5
            error = float(np.finfo(precision).eps) * roundings * norm * math.sqrt(counted)
        losses = np.asarray((first + np.arange(len(composed))) * mesh)
        with np.errstate(divide="ignore"):
            log_mass = np.log(np.maximum(composed, 0.0)) + (log_moment - tilt * losses)
        # Far below the losses that the tilt is for, log_mass is noise and could overflow.
        mass = np.exp(np.minimum(log_mass, 300.0))
        error += 2 * math.exp(-OUTSIDE)
        return losses, mass, log_moment + math.log(error)

    def _reach(self, tilt: float, log_moment: float, sign: int, scale: float) -> float:
        """Chernoff's bound on how far above 0 (`sign` = +1) or below 0 (−1) the sum of tilted losses lies."""
        rough = self._rough_log_moment(tilt)

        def bound(u: float) -> float:
            extra = math.exp(u)
            return (self._rough_log_moment(tilt + sign * extra) - rough + OUTSIDE) / extra

        steepest = minimize_scalar(bound, bounds=(math.log(1e-3), math.log(1e3 + 50 / scale)), method="bounded")
        extra = math.exp(steepest.x)
        shifted = sum(count * step.log_moment(tilt + sign * extra) for step, count in self.phases)
        return (shifted - log_moment + OUTSIDE) / extra


def _power(values: NDArray[np.complexfloating], exponent: int) -> NDArray[np.complexfloating]:
    """Powers by repeated squaring, which is faster than NumPy in extended precision, and more exact."""
    result = np.ones_like(values)
    while exponent:
        if exponent % 2:
            result *= values
        values, exponent = values * values, exponent // 2
    return result
