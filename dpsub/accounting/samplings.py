r"""How batches are drawn: one class for each sampling, which answers all that accountants ask about it.

A further sampling is a class here, its drawing in `dpsub.trainers.batches`, and a line in the face of this room.
"""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import ClassVar

import numpy as np
from scipy.special import betainc

from dpsub._core import checks
from dpsub.accounting.dominating_pairs import MirroredPair, MixedPair, SinglePair, StepPair, distance, poisson_pairs
from dpsub.accounting.worst_case_law import IndependentBatches, Law, SecretEpochs

TAIL = 12.0  # standard deviations of a batch's size, and as many records more: less than 1e-20 lies beyond
RATES = 33  # that stand for all sizes of a batch
WHOLE = 1e-3  # how far 1 / sample_rate may be from a whole number of steps

Phase = tuple[float, float, int]  # noise multiplier, sample rate, steps
History = Sequence[tuple[float, float, int]]
"""Phases of a training as (noise_multiplier, sample_rate, steps), as Opacus's accountants record them."""


class Sampling(ABC):
    """How the batches of a training are drawn. Its name stands for it in arguments, data sets and checkpoints.

    Derive from this class, not from another sampling, whose pairs and drawing a subclass would inherit. A sample rate
    of 1 means that each batch holds all records. What `__init__` takes are whole numbers or floats, and all attributes
    of an object: the text of `TruncatedPoisson(9, 50)` is "truncated_poisson:9:50".

    Attributes:
        name: what stands for the class in a text.
        words: which batches a privacy statement holds for.
        own_coins: whether a record enters each batch by a coin of its own, which no other record depends on.
        without_epsilon: the adjacencies that no ε is known for, each with the reason.
    """

    BY_NAME: ClassVar[dict[str, type[Sampling]]] = {}

    name: ClassVar[str]
    words: ClassVar[str]
    own_coins: ClassVar[bool] = False
    without_epsilon: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls) -> None:
        cls.BY_NAME[cls.name] = cls

    @staticmethod
    def of(value: Sampling | str) -> Sampling:
        """The sampling that a text names, or the sampling itself."""
        if isinstance(value, Sampling):
            return value
        name, *parameters = value.split(":") if isinstance(value, str) else [value]
        kind = Sampling.BY_NAME[checks.choice("sampling", name, tuple(Sampling.BY_NAME))]
        takes = [*inspect.signature(kind).parameters]
        if len(takes) != len(parameters):
            raise ValueError(f"sampling must be given as {':'.join([name, *takes])!r}, got {value!r}")
        return kind(*map(float, parameters))

    def __str__(self) -> str:
        return ":".join([self.name, *map(str, vars(self).values())])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, vars(self).values()))})"

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str):  # False would choose another branch, and give a wrong number
            raise TypeError(f"{self!r} cannot be compared with a text: give Sampling.of({other!r}), or compare its str")
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((self.name, *vars(self).values()))  # equal for 9 and 9.0, as these are

    def check_rate(self, sample_rate: float, records: int | None = None) -> None:  # noqa: B027
        """Raise ValueError if no such batches have this rate, of so many records if their number is known.

        A `DPSGD` and trainers ask this. Accountants ask only `phases`, which must refuse such a rate itself.
        """

    def check_adjacency(self, adjacency: str) -> None:
        """Raise ValueError if no ε is known for this adjacency."""
        if reason := self.without_epsilon.get(adjacency):
            known = " or ".join(repr(name) for name in checks.ADJACENCIES if name not in self.without_epsilon)
            raise ValueError(f"adjacency must be {known} with sampling='{self}', got {adjacency!r}: {reason}")

    def phases(self, history: Sequence[Phase]) -> list[Phase]:
        """Independent phases that have the ε of a history. `noise_multiplier` needs one phase for a history of one.

        The sample rate of a phase is the probability with which each of its steps uses the record, independently of
        other steps. Given that a step uses the record, it is a Gaussian mechanism, whose means are `distance` apart.
        The phases of phases are themselves: several trainings in a row are the phases of each.
        """
        return list(history)

    @abstractmethod
    def pairs(self, adjacency: str, sigma: float, q: float) -> tuple[StepPair, ...]:
        """The pairs of distributions, one for each direction, whose largest δ bounds that of a step of `phases`."""

    def distance(self, adjacency: str) -> float:
        """The largest distance of the two worlds' means at a step that uses the record, in units of C."""
        return distance(adjacency)

    def attained(self, adjacency: str, sigma: float, q: float) -> tuple[str, float, float] | None:
        """What the worst known data set attains, if that may be less than the pairs promise; otherwise None.

        The adjacency, noise multiplier and sample rate of steps with Poisson batches that have this ε.
        """
        return None

    def worst_case(self, adjacency: str, sigma: float, q: float, steps: int) -> Law:
        """The law of what the adversary of S1 sees, on the worst data set that is known: here that of `attained`."""
        attained = self.attained(adjacency, sigma, q)
        assert attained, f"{type(self).__name__} must have a method worst_case, since it attains what it promises"
        adjacency, sigma, rate = attained
        return IndependentBatches(sigma, rate, steps, mirrored=adjacency == "substitute")


class Poisson(Sampling):
    """Each record enters each batch by a coin of its own, with probability q."""

    name = "poisson"
    words = "Poisson sampling"
    own_coins = True

    def pairs(self, adjacency: str, sigma: float, q: float) -> tuple[StepPair, ...]:
        return poisson_pairs(adjacency, sigma, q)

    def worst_case(self, adjacency: str, sigma: float, q: float, steps: int) -> Law:
        return IndependentBatches(sigma, q, steps, mirrored=adjacency == "substitute")


class TruncatedPoisson(Sampling):
    r"""Poisson batches, of which one with more than `maximum` records is cut to so many, drawn evenly from it.

    The sum is divided by an expected batch size that does not depend on the batch. Let m be the number of other records
    that a step samples. If m < `maximum`, no batch is cut, and the step is Poisson's. Otherwise a batch has `maximum`
    records with and without the record, which has taken the place of another one: a step as `WithoutReplacement`, in
    which the record is with probability :math:`q\cdot\text{maximum}/(m+1)`. Given m ≥ `maximum`, which others are in
    the batch does not depend on m, so that only the mean of these probabilities matters. Under add/remove the two
    worlds of such a step differ by up to 2C, too.

    Divergences are jointly convex, so the pair in which it is shown whether m ≥ `maximum` dominates the step. For
    "zero_out" that pair is not tight, since there a cut batch is counted as under "substitute".

    Args:
        maximum: ≥ 1; the most records of a batch.
        records: ≥ 2; n, the number of records. It counts the record that is replaced, added or removed: under
            "add_remove" the other data set has n − 1.

    Source: "Tighter Privacy Analysis for Truncated Poisson Sampling" (arXiv 2508.15089) for add/remove.

    >>> Sampling.of("truncated_poisson:600:60000")
    TruncatedPoisson(600, 60000)
    """

    name = "truncated_poisson"

    def __init__(self, maximum: int, records: int) -> None:
        self.maximum = checks.whole("maximum", maximum)
        self.records = checks.whole("records", records, at_least=2)

    @property
    def words(self) -> str:  # type: ignore[override]
        return f"Poisson sampling with batches that are cut to {self.maximum:,} of {self.records:,} records at most"

    def _cut(self, q: float) -> tuple[float, float]:
        """The probability that so many others are sampled that a record takes another one's place, and the probability
        with which it is in the batch in this case.
        """
        left = self.records - self.maximum
        if left <= 0 or not (cut := float(betainc(self.maximum, left, q))):  # Pr(Bin(n - 1, q) ≥ maximum)
            return 0.0, q
        return cut, min(self.maximum / self.records * float(betainc(self.maximum + 1, left, q)) / cut, q)

    def check_rate(self, sample_rate: float, records: int | None = None) -> None:
        if records not in (None, self.records):
            raise ValueError(f"spec.sampling must be of the task's {records} records, got '{self}'")
        if sample_rate == 1 and self.maximum < self.records:
            raise ValueError(
                f"sample_rate must be < 1 with sampling='{self}', got 1: batches are then of fixed size, which is "
                f"sampling='without_replacement' with sample_rate={self.maximum} / {self.records}"
            )

    def phases(self, history: Sequence[Phase]) -> list[Phase]:
        for _, q, _ in history:
            self.check_rate(q)
        return list(history)

    def pairs(self, adjacency: str, sigma: float, q: float) -> tuple[StepPair, ...]:
        cut, rate = self._cut(q)
        whole = poisson_pairs(adjacency, sigma, q)
        if not cut:
            return whole
        displaced: tuple[SinglePair, ...] = len(whole) * (MirroredPair(sigma / 2, rate),)
        if adjacency == "add_remove":
            displaced = poisson_pairs(adjacency, sigma / 2, rate)
        return tuple(MixedPair(((1 - cut, one), (cut, other))) for one, other in zip(whole, displaced, strict=True))

    def distance(self, adjacency: str) -> float:
        return 2.0

    def attained(self, adjacency: str, sigma: float, q: float) -> tuple[str, float, float]:
        # If all other gradients are 0, all that the cut does is to leave the record out more often.
        cut, rate = self._cut(q)
        return adjacency, sigma, (1 - cut) * q + cut * rate


class PoissonMean(Sampling):
    r"""Poisson batches whose noisy sum is divided by the number of records in the batch, and not by the expected one.

    Who sees by how much the noise was divided knows this number, k. If a record is replaced, k has the same law in both
    worlds, and dividing by a number that is known is post-processing. Given k, a batch is a draw of k of the n records,
    a step of `WithoutReplacement` with sample rate k/n: so the pair in which k is drawn, and shown, dominates the step.
    The divergence of such steps is convex in their rate, and at most what lies between a few rates on a straight line.

    If a record is removed, k has another law, and there is no ε. Banks divide by the expected number, and refuse this.

    Args:
        records: ≥ 2; n, the number of records.

    Source: "Rethinking the Security of DP-SGD" (arXiv 2605.15648) for add/remove.

    >>> Sampling.of("poisson_mean:60000")
    PoissonMean(60000)
    """

    name = "poisson_mean"
    words = "Poisson sampling with sums that are divided by the number of records in the batch"
    without_epsilon: ClassVar[Mapping[str, str]] = {
        "add_remove": "a removed record changes what the sum is divided by, and with many parameters no noise hides it",
        "zero_out": "no tight ε is known for it; that of 'substitute' holds for it, too",
    }

    def __init__(self, records: int) -> None:
        self.records = checks.whole("records", records, at_least=2)

    def check_rate(self, sample_rate: float, records: int | None = None) -> None:
        if records not in (None, self.records):
            raise ValueError(f"spec.sampling must be of the task's {records} records, got '{self}'")

    def pairs(self, adjacency: str, sigma: float, q: float) -> tuple[StepPair, ...]:
        from scipy.stats import binom  # its import takes as long as the rest of this room

        n, spread = self.records, TAIL * math.sqrt(q * (1 - q) * self.records) + TAIL
        sizes = np.arange(max(math.floor(q * n - spread), 0), min(math.ceil(q * n + spread), n) + 1)
        mass, beyond = binom.pmf(sizes, n, q), binom.cdf(sizes[0] - 1, n, q) + binom.sf(sizes[-1], n, q)
        ends = np.linspace(sizes[0], sizes[-1], min(RATES, len(sizes)))
        # Each size is split between the two rates around it. What lies beyond all sizes counts as whole batches.
        place = np.clip(np.searchsorted(ends, sizes, side="right") - 1, 0, len(ends) - 2)
        above = (sizes - ends[place]) / (ends[place + 1] - ends[place])
        weights = np.bincount(place, mass * (1 - above), len(ends)) + np.bincount(place + 1, mass * above, len(ends))
        rates = [*zip(weights.tolist(), (ends / n).tolist(), strict=True), (float(beyond), 1.0)]
        return (MixedPair(tuple((weight, MirroredPair(sigma / 2, rate)) for weight, rate in rates if rate and weight)),)

    def attained(self, adjacency: str, sigma: float, q: float) -> tuple[str, float, float]:
        return "add_remove", sigma / 2, q  # as without replacement, with so many parameters that k is seen


class WithoutReplacement(Sampling):
    """Each batch is drawn anew: q·n of the n records.

    If a record is in the batch, it has taken the place of another one.
    """

    name = "without_replacement"
    words = "batches of fixed size that are drawn anew at each step"
    without_epsilon: ClassVar[Mapping[str, str]] = {
        "add_remove": "a removed record changes how many there are, and so how often each is sampled",
        "zero_out": "no tight ε is known for it; that of 'substitute' holds for it, too",
    }

    def check_rate(self, sample_rate: float, records: int | None = None) -> None:
        batch = sample_rate * (records or 0)
        if abs(batch - round(batch)) > 1e-6 * batch:
            raise ValueError(
                f"spec.sample_rate must be a whole number of the {records} records with sampling='{self}', got "
                f"{sample_rate:g}, which is {batch:g} of them: give {math.ceil(batch)} / {records}"
            )

    def pairs(self, adjacency: str, sigma: float, q: float) -> tuple[StepPair, ...]:
        return (MirroredPair(sigma / 2, q),)

    def attained(self, adjacency: str, sigma: float, q: float) -> tuple[str, float, float]:
        # If all other gradients are that of z′, a batch with z differs by 2C from all others.
        return "add_remove", sigma / 2, q


class Epochs(Sampling):
    """Each record is in one of the 1/q batches of each epoch, in an order that an adversary may know."""

    name = "epochs"
    words = "batches that use each record once an epoch, shuffled or not"
    without_epsilon: ClassVar[Mapping[str, str]] = {
        "add_remove": "a removed record would shift the others between batches"
    }

    def check_rate(self, sample_rate: float, records: int | None = None) -> None:
        self.batches(sample_rate)

    def batches(self, sample_rate: float) -> int:
        """The batches of an epoch: 1 / sample_rate, which must be a whole number."""
        inverse = min(1 / sample_rate, 1e18)
        steps = round(inverse)
        if abs(inverse - steps) > WHOLE:
            fewer = math.floor(inverse)
            raise ValueError(
                f"sample_rate must be 1 / (steps an epoch) with sampling='epochs', got {sample_rate:g}: give 1/{fewer} "
                f"or 1/{fewer + 1}, whichever number of steps an epoch has. If the steps do not fill an epoch, as when "
                "gradients are accumulated across its end, one step may use a record twice: this is not covered"
            )
        return steps

    def phases(self, history: Sequence[Phase]) -> list[Phase]:
        """One full batch an epoch: who knows the order knows which batch of an epoch holds the record.

        An epoch in which the noise changes counts with its least noise, since the record's batch may come then. An
        incomplete last epoch counts as a whole one. A phase that begins within an epoch is taken to finish the same
        pass over the records: with a loader that starts anew there, a record may be used twice.
        """
        phases: list[Phase] = []
        done = Fraction(0)  # epochs so far
        for sigma, q, steps in history:
            end = done + Fraction(steps, self.batches(q))
            if done.denominator != 1 and sigma < phases[-1][0]:  # this phase begins within an epoch
                *before, (earlier, _, count) = phases
                phases = [*before, *([(earlier, 1.0, count - 1)] if count > 1 else []), (sigma, 1.0, 1)]
            if begun := math.ceil(end) - math.ceil(done):
                phases.append((sigma, 1.0, begun))
            done = end
        return phases

    def pairs(self, adjacency: str, sigma: float, q: float) -> tuple[StepPair, ...]:
        return poisson_pairs(adjacency, sigma, q)

    def worst_case(self, adjacency: str, sigma: float, q: float, steps: int) -> Law:
        batches = self.batches(q)
        if steps % batches:
            raise ValueError(f"steps must be whole epochs of {batches} steps with sampling='epochs', got {steps}")
        return SecretEpochs(sigma / distance(adjacency), batches, steps // batches)


checks.ARGUMENTS["sampling"] = lambda name, value: Sampling.of(value)
