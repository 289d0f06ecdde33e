r"""Claims about the noise of DP-SGD itself: claim "pld"."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, ClassVar, Self, TypedDict

import numpy as np
from scipy.special import ndtr, ndtri

from dpsub import accounting
from dpsub._core import checks
from dpsub._core.frozen import Frozen
from dpsub.accounting import Poisson, Sampling
from dpsub.accounting.dominating_pairs import MOST_NOISE, distance
from dpsub.accounting.gaussian import gdp_deltas, gdp_epsilon
from dpsub.accounting.phases import MOST_STEPS, StepCounts
from dpsub.estimators.claims import Assumption, Claim
from dpsub.estimators.numerics import Array, crossing

LEAST_TESTED = 0.2  # the least noise that is tested; a training with less is not worth an audit
PER_OCTAVE = 256  # noise multipliers with computed curves; f is interpolated between them
RATES = ndtr(np.linspace(-8, 5, 3251))  # at which curves are computed; f is below INTERPOLATION beyond the last
INTERPOLATION = 2.5e-5  # interpolation between noise multipliers added at most 2.2e-5 to f, at 1,000 settings
LEAST_FNR = 1e-300  # 0 has no finite score
PERFECT = np.array([0.0, 1.0]), np.array([1.0, 0.0])  # the curve of perfect privacy

Knots = tuple[Array, Array]


class Known(TypedDict, total=False):
    """What claim "pld" must know about the training; `sampling` is "poisson" where it is not given."""

    sample_rate: float
    steps: int | StepCounts
    adjacency: str
    sampling: Sampling | str


@dataclass(frozen=True)
class MechanismDP(Frozen, Claim):
    r"""The trade-off function of DP-SGD at this sample rate and number of steps, for any noise multiplier.

    The parameter is :math:`d\sqrt{T}/\sigma`, where d is the distance of the two worlds: 2 under substitution, 1
    otherwise. It is the μ of the same noise at full batch.

    With batches of fixed size (`sampling="without_replacement"`) a claim is refuted only if no data set explains the
    rates, and ε is what the noise that was not refuted attains on the worst data set that is known.

    Source: *Tight Auditing*, section 4.1 and appendix A.
    """

    delta: float
    sample_rate: float
    steps: int
    adjacency: str
    sampling: Sampling = field(default=Poisson())
    name: ClassVar[str] = "pld"
    assumes: ClassVar[Assumption] = "mechanism"
    exact: ClassVar[bool] = True
    costly: ClassVar[bool] = True
    beyond: ClassVar[str] = (
        f"refuted at every noise_multiplier down to {LEAST_TESTED}: check sample_rate, steps and adjacency"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.sampling.check_adjacency(self.adjacency)

    @classmethod
    def of_columns(cls, delta: float, options: Mapping[str, Any], columns: int) -> list[Self]:
        if missing := sorted({"sample_rate", "steps", "adjacency"} - set(options)):
            raise ValueError(
                f"claim {cls.name!r} needs all parameters but the noise, got them without {', '.join(missing)}"
            )
        counts = np.atleast_1d(checks.array("steps", options["steps"], kind=np.int64, at_least=1, at_most=MOST_STEPS))
        if len(counts) != columns:
            raise ValueError(f"steps must have one entry a column of scores, {columns}, got {len(counts)}")
        return [cls(delta, **{**options, "steps": count})._by_full_batches() for count in counts.tolist()]

    def _by_full_batches(self) -> Self:
        """The same claim, of full batches if its sampling comes to these: their curve has a closed form."""
        phases = self.sampling.phases([(1.0, self.sample_rate, self.steps)])
        known = [phase[:2] for phase in phases] == [(1.0, 1.0)]
        return replace(self, sample_rate=1.0, steps=phases[0][2]) if known else self

    @property
    def most(self) -> float:  # type: ignore[override]
        return self._full_batch / LEAST_TESTED

    @property
    def _full_batch(self) -> float:
        return distance(self.adjacency) * math.sqrt(self.steps)

    @property
    def training(self) -> dict[str, Any]:
        """What is claimed to be known of it: all but the noise."""
        return {name: getattr(self, name) for name in Known.__annotations__}

    def noise_multiplier(self, parameter: float) -> float:
        return self._full_batch / parameter if parameter else math.inf

    def tradeoff(self, fpr: Array, parameter: float) -> Array:
        if self.sample_rate == 1:
            return np.asarray(ndtr(-ndtri(fpr) - parameter))
        least = max(-10 * PER_OCTAVE, math.ceil(PER_OCTAVE * math.log2(self._full_batch / MOST_NOISE)))
        at = PER_OCTAVE * math.log2(parameter) if parameter else -math.inf
        if at < least:
            low, high, part = PERFECT, self._curve(least), parameter / 2 ** (least / PER_OCTAVE)
        else:
            low, high, part = self._curve(math.floor(at)), self._curve(math.floor(at) + 1), at % 1
        # In normal scores Gaussian curves of different noise are parallel lines.
        one, other = (ndtri(np.maximum(np.interp(fpr, *knots), LEAST_FNR)) for knots in (low, high))
        return np.maximum(ndtr((1 - part) * one + part * other) - INTERPOLATION, 0.0)

    def _curve(self, place: int) -> Knots:
        return _from_below(noise_multiplier=self._full_batch / 2 ** (place / PER_OCTAVE), **self.training)

    def parameters(self, fpr: Array, fnr: Array) -> Array:
        return np.array([self.parameter(*rates) for rates in zip(fpr.tolist(), fnr.tolist(), strict=True)])

    def parameter(self, fpr: float, fnr: float) -> float:
        def excess(parameter: float) -> float:
            return fnr - float(self.tradeoff(np.array(fpr), parameter))

        return crossing(excess, 0.0, self.most) if excess(0.0) < 0 else 0.0

    def strongest(self, fpr: Array, fnr: Array) -> int:
        # While a pair refutes the best parameter so far, the one that does so most clearly gives the next.
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
        if (sigma := self.noise_multiplier(parameter)) > MOST_NOISE:
            return 0.0
        found = accounting.epsilon_interval(noise_multiplier=sigma, delta=self.delta, eps_error=2e-4, **self.training)
        return float(found.lower)

    def deltas(self, epsilons: Array, parameter: float) -> Array:
        if self.sample_rate == 1:
            return gdp_deltas(epsilons, parameter)
        sigma = min(self.noise_multiplier(parameter), MOST_NOISE)
        return np.asarray(accounting.delta(noise_multiplier=sigma, epsilon=epsilons, **self.training))

    def says(self, parameter: float) -> dict[str, Any]:
        return {"noise_multiplier": self.noise_multiplier(parameter)}


@lru_cache(maxsize=512)
def _from_below(**mechanism: Any) -> Knots:
    """Rates and least false-negative rates between which lines are nowhere above f.

    f is convex. Between two rates it is above the chords on either side, prolonged until they meet.
    """
    fnr = np.asarray(accounting.tradeoff(RATES, **mechanism))
    widths = np.diff(RATES)
    slopes = np.diff(fnr) / widths
    before, own, after = slopes[:-2], slopes[1:-1], slopes[2:]
    with np.errstate(divide="ignore", invalid="ignore"):
        meet = widths[1:-1] * np.clip(np.nan_to_num((after - own) / (after - before)), 0.0, 1.0)
    rates, least = (RATES[1:-2], RATES[1:-2] + meet), (fnr[1:-2], fnr[1:-2] + before * meet)
    return np.stack(rates, axis=1).ravel(), np.stack(least, axis=1).ravel()
