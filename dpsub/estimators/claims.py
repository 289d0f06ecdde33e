r"""What an audit can refute: families of privacy claims, each with the trade-off function it implies.

A claim says that at false-positive rate u no adversary's false-negative rate is below f(u). A larger parameter claims
less. Every f here is its own inverse, so exchanging the worlds changes nothing.

A new claim is one class: a frozen dataclass derived from `Claim`. `epsilon_lower_bound(claim=MyClaim(delta))` takes it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from scipy.special import ndtr, ndtri

from dpsub.accounting.gaussian import gdp_deltas, gdp_epsilon
from dpsub.estimators.guess_tests import Seen, of_odds, of_tradeoff, taken_by_delta
from dpsub.estimators.numerics import Array, Counts, clopper_pearson_upper

Assumption = Literal["none", "gdp", "mechanism", "product", "proxy"]
MUCH = 1 / 3  # of what shows if all guesses are right; if δ takes more, the bound says so


class Errors(NamedTuple):
    """False positives among the runs of z′, false negatives among those of z: at one threshold or at many.

    Thresholds increase, so false positives decrease and false negatives increase along them.
    """

    false_positives: Counts
    negatives: int
    false_negatives: Counts
    positives: int

    def at(self, place: int | Counts) -> Errors:
        places = np.atleast_1d(place)
        return self._replace(false_positives=self.false_positives[places], false_negatives=self.false_negatives[places])

    def rates_upper(self, alpha: float) -> tuple[Array, Array]:
        """Clopper–Pearson bounds on FPR and FNR, at alpha/2 each."""
        return (
            clopper_pearson_upper(self.false_positives, self.negatives, alpha / 2),
            clopper_pearson_upper(self.false_negatives, self.positives, alpha / 2),
        )


class Claim(ABC):
    """A family of claims at one δ, and how the errors at a threshold or the guesses of coins refute them.

    Attributes:
        delta: the δ at which ε is stated.
        name: the string that users pass, and the `claim` of a bound.
        assumes: what must hold for a bound to have a meaning: see `LowerBound`.
        exact: whether bounds can hold with probability 1 − alpha.
        monotone: whether fewer errors always refute more.
        costly: whether to compute the ceiling of this claim takes long.
        most: the largest parameter that can be tested.
        silent: why nothing may be refuted, if that has a reason of its own.
        beyond: what is wrong if even `most` is refuted.
    """

    delta: float
    name: ClassVar[str]
    assumes: ClassVar[Assumption]
    exact: ClassVar[bool]
    monotone: ClassVar[bool] = True
    costly: ClassVar[bool] = False
    most: float = math.inf
    silent: ClassVar[str] = ""
    beyond: ClassVar[str] = "refuted up to the largest claim that can be tested: check the scores"

    @classmethod
    def of_columns(cls, delta: float, options: Mapping[str, Any], columns: int) -> list[Self]:
        """One family for each column of scores, from the options that users give for it."""
        if options:
            raise ValueError(f"{', '.join(options)} are for claims 'pld' and 'bayes_pld', got claim {cls.name!r}")
        return [cls(delta)] * columns  # type: ignore[call-arg]

    @abstractmethod
    def tradeoff(self, fpr: Array, parameter: float) -> Array:
        """f(u) of the claim with this parameter."""

    def kinks(self, parameter: float) -> tuple[float, ...]:
        """Where f is not smooth."""
        return ()

    @abstractmethod
    def parameters(self, fpr: Array, fnr: Array) -> Array:
        """For each pair of rates the smallest parameter whose claim it does not refute, at least 0."""

    def strongest(self, fpr: Array, fnr: Array) -> int:
        """The index of the pair of rates with the largest parameter."""
        return int(np.argmax(self.parameters(fpr, fnr)))

    def parameter(self, fpr: float, fnr: float) -> float:
        """The smallest parameter that one pair of rates does not refute, at least 0."""
        return float(self.parameters(np.array([fpr]), np.array([fnr]))[0])

    @abstractmethod
    def epsilon(self, parameter: float) -> float:
        """The ε of this parameter at δ."""

    @abstractmethod
    def deltas(self, epsilons: Array, parameter: float) -> Array:
        """The privacy curve δ(ε), or an upper bound on it, for ε ≥ 0. It increases with the parameter."""

    def says(self, parameter: float) -> dict[str, Any]:
        """What a bound at this parameter says beside ε: fields of `LowerBound`."""
        return {}

    def refuted_by_errors(self, errors: Errors, alpha: float) -> float:
        """The largest parameter that the errors at one threshold refute, at least 0: see `LowerBound.details`.

        Source: *Tight Auditing*, section 4.1; *Beyond Membership*, equation 5.
        """
        fpr, fnr = errors.rates_upper(alpha)
        return self.parameter(float(fpr[0]), float(fnr[0]))

    def details_of_errors(self, errors: Errors, alpha: float) -> dict[str, float]:
        """What else the errors at one threshold say: entries of `LowerBound.details`."""
        return {}

    def strongest_errors(self, errors: Errors, alpha: float) -> int:
        """The index of the threshold at which the parameter is largest: the papers' rule."""
        return self.strongest(*errors.rates_upper(alpha))

    @classmethod
    def guesses(cls, pairs: int) -> int:
        """How many of so many pairs are guessed by default: what shows most of Gaussian mechanisms of any strength."""
        return min(pairs, int(np.rint(2 * pairs ** (2 / 3))))

    def cannot_judge(self, seen: Sequence[Seen]) -> str:
        """Why the claim has no test of these numbers of guesses; "" if it has."""
        return ""

    def refuted_by_guesses(self, seen: Seen, alpha: float) -> float:
        """The largest parameter that right guesses refute, at least 0."""
        return of_tradeoff(self, seen, alpha)

    def note_of_guesses(self, seen: Seen, alpha: float) -> str:
        """What a bound from these guesses rests on, or loses."""
        return ""


@dataclass(frozen=True)
class GDP(Claim):
    r"""μ-GDP: :math:`f(u) = \Phi(\Phi^{-1}(1-u) - \mu)` (Dong, Roth and Su, 2022); the parameter is μ."""

    delta: float
    name: ClassVar[str] = "gdp"
    assumes: ClassVar[Assumption] = "gdp"
    exact: ClassVar[bool] = True

    def tradeoff(self, fpr: Array, parameter: float) -> Array:
        return np.asarray(ndtr(-ndtri(fpr) - parameter))

    def parameters(self, fpr: Array, fnr: Array) -> Array:
        with np.errstate(invalid="ignore"):
            mu = -ndtri(fpr) - ndtri(fnr)
        return np.where((fpr < 1) & (fnr < 1), np.maximum(mu, 0.0), 0.0)

    def epsilon(self, parameter: float) -> float:
        return gdp_epsilon(parameter, self.delta)

    def deltas(self, epsilons: Array, parameter: float) -> Array:
        return gdp_deltas(epsilons, parameter)

    def says(self, parameter: float) -> dict[str, Any]:
        return {"mu": parameter}


@dataclass(frozen=True)
class Product(GDP):
    """μ-GDP for the guesses of one run, as if they were independent of each other: all coins are guessed.

    Source: Xiang et al. (2025).
    """

    name: ClassVar[str] = "product"
    assumes: ClassVar[Assumption] = "product"

    @classmethod
    def guesses(cls, pairs: int) -> int:
        return pairs

    def cannot_judge(self, seen: Sequence[Seen]) -> str:
        pairs, fewest = seen[0].pairs, min(counts.guesses for counts in seen)
        if fewest == pairs:
            return ""
        return (
            f"guesses must be as many as pairs, {pairs}, for claim 'product', got {fewest}: guess every pair, or give "
            "claim 'gdp'"
        )

    def refuted_by_guesses(self, seen: Seen, alpha: float) -> float:
        wrong = float(clopper_pearson_upper(np.array([seen.guesses - seen.correct]), seen.guesses, alpha)[0])
        return self.parameter(wrong / (seen.candidates - 1), wrong)

    def note_of_guesses(self, seen: Seen, alpha: float) -> str:
        return "assumes independent guesses, which one run does not give by itself, and a Gaussian mechanism's curve"


@dataclass(frozen=True)
class ApproximateDP(Claim):
    r"""(ε, δ)-DP: :math:`f(u) = \max(0, 1-\delta-e^{\varepsilon}u, e^{-\varepsilon}(1-\delta-u))`, parameter ε.

    Source: Kairouz, Oh and Viswanath (2015).
    """

    delta: float
    name: ClassVar[str] = "dp"
    assumes: ClassVar[Assumption] = "none"
    exact: ClassVar[bool] = True
    most = 700.0  # its exponential is finite

    def tradeoff(self, fpr: Array, parameter: float) -> Array:
        steep = 1 - self.delta - np.exp(parameter) * fpr
        flat = np.exp(-parameter) * (1 - self.delta - fpr)
        return np.asarray(np.maximum(0.0, np.maximum(steep, flat)))

    def kinks(self, parameter: float) -> tuple[float, ...]:
        return (1 - self.delta) * np.exp(-parameter), (1 - self.delta) / (1 + np.exp(parameter)), 1 - self.delta

    def parameters(self, fpr: Array, fnr: Array) -> Array:
        with np.errstate(divide="ignore", invalid="ignore"):
            steep = np.log(np.maximum(1 - self.delta - fnr, 0.0)) - np.log(fpr)
            flat = np.log(np.maximum(1 - self.delta - fpr, 0.0)) - np.log(fnr)
        return np.asarray(np.maximum(np.maximum(steep, flat), 0.0))

    def epsilon(self, parameter: float) -> float:
        return parameter

    def deltas(self, epsilons: Array, parameter: float) -> Array:
        # Of f's two lines the steep one has slope e^parameter. At smaller slopes the kink between them decides.
        kink = (1 + np.exp(np.minimum(epsilons, parameter))) / (1 + np.exp(parameter))
        return np.asarray(1 - (1 - self.delta) * kink)

    def refuted_by_guesses(self, seen: Seen, alpha: float) -> float:
        return of_odds(self.delta, seen, alpha)

    def note_of_guesses(self, seen: Seen, alpha: float) -> str:
        taken = taken_by_delta(self.delta, seen._replace(correct=seen.guesses), alpha)
        if taken <= MUCH:
            return ""
        return (
            f"delta takes {100 * taken:.0f} % of what {seen.guesses} guesses could show, since 2 * pairs * delta = "
            f"{2 * seen.pairs * self.delta:.2g}: claims 'gdp' and 'pld' do not lose this"
        )
