"""What a training with Opacus protects, in numbers and in words."""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass

from opacus import PrivacyEngine
from opacus.accountants import IAccountant

from dpsub import accounting
from dpsub._core import checks
from dpsub.accounting import History

FALSE_ALARMS = 0.01  # at which a statement says how much is found


@dataclass(frozen=True)
class PrivacyStatement:
    """What a training protects, as numbers and, by `str`, in words.

    Attributes:
        add_remove: ε under add/remove adjacency: membership.
        substitute: ε under substitute adjacency: what a record says.
        group_privacy: the substitute ε that follows from the add/remove accountant alone.
        found_members, found_contents: the most that anyone can find of what is asked, at 1 % false alarms.
        delta: the δ of all three.
        history: phases of (noise_multiplier, sample_rate, steps).
    """

    add_remove: float
    substitute: float
    group_privacy: float
    found_members: float
    found_contents: float
    delta: float
    history: tuple[tuple[float, float, int], ...]

    def __str__(self) -> str:
        return "\n\n".join(textwrap.fill(paragraph, 100) for paragraph in self._paragraphs())

    def _repr_markdown_(self) -> str:
        return "\n\n".join(self._paragraphs())

    def _paragraphs(self) -> list[str]:
        phases = [
            f"{steps:,} steps at noise multiplier {sigma:.4g} and sample rate {q:.4g}"
            for sigma, q, steps in self.history
        ]
        if len(phases) > 3:
            steps = sum(count for *_, count in self.history)
            phases = [f"{steps:,} steps in {len(phases)} phases of different noise multiplier or sample rate"]
        return [
            f"This model was trained with differentially private SGD ({'; '.join(phases)}; δ = {self.delta:g}).",
            f"Membership: whether a record was in the training data is protected with ε = {_up(self.add_remove)} "
            "(add/remove adjacency). Whoever is wrong about 1 % of those who were not in it finds at most "
            f"{_percent(self.found_members)} of those who were.",
            "Labels and attributes: what a record says that is known to be in the training data is protected with "
            f"ε = {_up(self.substitute)} (substitute adjacency). Whoever tells one value of a record from another, and "
            "is wrong about 1 % of the records that have the second, finds at most "
            f"{_percent(self.found_contents)} of those that have the first.",
            "State the second ε if labels or attributes are what has to be protected. It is an upper bound computed "
            "for this training; from accounting for membership alone group privacy would give "
            f"ε = {_up(self.group_privacy)}. All of this assumes that batches were drawn by Poisson sampling.",
        ]


def privacy_statement(engine_or_history: PrivacyEngine | IAccountant | History, *, delta: float) -> PrivacyStatement:
    """What a training with Opacus protects: membership, and what the records say.

    Args:
        engine_or_history: a `PrivacyEngine` after training, with any of Opacus's accountants, or its accountant; or
            phases of (noise_multiplier, sample_rate, steps).
        delta: 0 < δ < 1.

    Returns:
        The numbers, which print as a text to paste.

    Raises:
        ValueError: if no step has been taken, a step added no noise, or the record is not of such phases.

    Source: *Beyond Membership*, sections 2.1 and 4.

    >>> print(privacy_statement([(1.1, 0.064, 469)], delta=1e-5).substitute > 2)
    True
    """
    delta = checks.probability("delta", delta)
    recorded = engine_or_history
    if isinstance(recorded, PrivacyEngine):
        recorded = recorded.accountant
    if isinstance(recorded, IAccountant):
        recorded = recorded.history
    history = tuple(checks.history(recorded))

    def found(adjacency: str) -> float:
        return 1 - float(accounting.tradeoff(FALSE_ALARMS, history=history, adjacency=adjacency))

    return PrivacyStatement(
        add_remove=accounting.epsilon(history=history, delta=delta, adjacency="add_remove"),
        substitute=accounting.epsilon(history=history, delta=delta, adjacency="substitute"),
        group_privacy=accounting.group_privacy_epsilon(history=history, delta=delta),
        found_members=found("add_remove"),
        found_contents=found("substitute"),
        delta=delta,
        history=history,
    )


def _up(epsilon: float) -> str:
    """Three digits, rounded up: a bound stays one."""
    if not 0 < epsilon < math.inf:
        return f"{epsilon:g}"
    unit = 10.0 ** (math.floor(math.log10(epsilon)) - 2)
    return f"{math.ceil(epsilon / unit) * unit:.{max(0, 2 - math.floor(math.log10(epsilon)))}f}"


def _percent(rate: float) -> str:
    return f"{math.ceil(1000 * rate) / 10:g} %"
